"""A message that was read by somebody when the broker was killed expires to the millisecond all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata import QueueClient

from ..support.broker import EmbeddedBroker
from ..support.processes import Children
from ..support.served import ServedBroker

pytestmark = pytest.mark.contract(8)

#: not a whole number of seconds, which is what the RFC's metadata has
TTL_SECONDS = 60.05


def test_a_message_that_was_read_is_not_delivered_after_its_deadline(
    store_folder: Path, broker_url: str, tmp_path: Path, started: Children
) -> None:
    """By the clock of the last broker, the deadline is over."""
    listen = ("--store", f"file://{store_folder}", "--listen", f"unix:{store_folder}/broker.sock")
    with QueueClient(broker_url, start_timeout=60, reconnect_timeout=60) as client:
        client.create("q")
        client.send("q", "late", ttl=TTL_SECONDS)
        (message,) = client.read("q", vt=600)
        EmbeddedBroker(store_folder).kill()  # the next one writes its records, which the one after that reads
        assert client.metrics("q").in_flight == 1
        EmbeddedBroker(store_folder).kill()
        started.add(ServedBroker(tmp_path, *listen, clock_ahead=TTL_SECONDS))
        assert client.metrics("q").in_flight == 1
        client.release("q", message)
        assert client.read("q") == []
        assert client.metrics("q").length == 0
