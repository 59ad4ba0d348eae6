"""A message that was read by somebody when the broker was killed expires to the millisecond all the same."""

from __future__ import annotations

import time
from pathlib import Path

from kombu_opendata import QueueClient

from ..support.broker import EmbeddedBroker
from ..support.processes import wait_until

#: not a whole number of seconds, which is what the RFC's metadata has
TTL_SECONDS = 3.05


def test_a_message_that_was_read_is_not_delivered_after_its_deadline(store_folder: Path, broker_url: str) -> None:
    with QueueClient(broker_url, start_timeout=60, reconnect_timeout=60) as client:
        client.create("q")
        client.send("q", "late", ttl=TTL_SECONDS)
        expired_at = time.time() + TTL_SECONDS
        (message,) = client.read("q", vt=600)
        for _ in range(2):  # the next one writes its records, which the one after that reads
            EmbeddedBroker(store_folder).kill()
            assert client.metrics("q").in_flight == 1
        wait_until(lambda: time.time() > expired_at, 60, "its deadline")
        client.release("q", message)
        assert client.read("q") == []
        assert client.metrics("q").length == 0
