"""The broker's time as clients see it: its ticks, twice a second, and the ends of messages."""

from __future__ import annotations

import uuid
from typing import Any

from kombu_opendata.queue_client import QueueClient, QueueOptions

from .processes import wait_until


def wait_tick(client: Any, name: str) -> None:
    """Wait until the broker has checked all queues: until it has deleted another unused queue."""
    unused = f"{name}-unused"
    client.create(unused, QueueOptions(expires_seconds=0.001))
    wait_until(
        lambda: unused not in {info.name for info in client.list_queues()}, 60, "the deletion of an unused queue"
    )


def wait_expired(client: QueueClient, seconds: float) -> None:
    """Wait until the broker has expired a message that lives so long: this time has passed by its clock."""
    queue = f"expiring-{uuid.uuid4().hex}"
    client.create(queue)
    client.send(queue, b"", ttl=seconds)
    wait_until(lambda: client.metrics(queue).counts["expired"] == 1, seconds + 60, "the end of the message")
    client.delete_queue(queue)
