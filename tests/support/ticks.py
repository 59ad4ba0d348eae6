"""The broker's ticks, twice a second, as clients see them."""

from __future__ import annotations

from typing import Any

from kombu_opendata.queue_client import QueueOptions

from .processes import wait_until


def wait_tick(client: Any, name: str) -> None:
    """Wait until the broker has checked all queues: until it has deleted another unused queue."""
    unused = f"{name}-unused"
    client.create(unused, QueueOptions(expires_seconds=0.001))
    wait_until(
        lambda: unused not in {info.name for info in client.list_queues()}, 60, "the deletion of an unused queue"
    )
