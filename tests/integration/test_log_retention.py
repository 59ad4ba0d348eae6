"""How long a real broker keeps what no queue needs: a queue that begins in the past finds it, or not any more."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.maintain import maintain
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.errors import RequestError
from kombu_opendata.queue_client.queue_options import QueueOptions
from kombu_opendata.url import parse

from ..support.broker import EmbeddedBroker
from ..support.processes import wait_until
from ..support.replay_calls import progress
from ..support.verified import assert_verified

pytestmark = pytest.mark.contract(8)

MESSAGES = 20


def replayed(client: QueueClient, connection: BrokerConnection, name: str) -> int:
    """How many messages a queue gets that begins with the first one stored; then it is dropped with all it needs."""
    client.create(name, QueueOptions(start="first", filter="routing_key = 'q'"))
    wait_until(lambda: progress(connection, [name])[0]["done"], 60, lambda: repr(progress(connection, [name])))
    found = len(client.pop(name, 2 * MESSAGES))
    client.delete_queue(name)
    return found


@pytest.mark.parametrize("retention", ["forever", "1h", "3s", "settled"])
def test_a_queue_that_begins_in_the_past_finds_what_the_log_kept(
    store_folder: Path, broker_url: str, retention: str
) -> None:
    given = {"log_retention": retention}
    options = Options(name="looks", start_timeout=60, reconnect_timeout=60, broker_options=given)
    connection = BrokerConnection(parse(broker_url), options)
    with (
        QueueClient(broker_url, start_timeout=60, reconnect_timeout=60, broker_options=given) as client,
        closing(connection),
    ):
        connection.connect()
        client.create("q", QueueOptions(done_retention_seconds=1))
        client.send_batch("q", [str(number) for number in range(MESSAGES)])
        assert len(client.pop("q", MESSAGES)) == MESSAGES
        collected = 0

        def are_collected() -> bool:
            nonlocal collected
            collected += int(maintain(connection, ["collect"])["settled_collected"])
            return collected == MESSAGES

        wait_until(are_collected, 60, lambda: f"{collected} are collected")
        EmbeddedBroker(store_folder).kill()
        if retention == "3s":
            assert replayed(client, connection, "late") in (0, MESSAGES)

            def are_gone() -> bool:
                maintain(connection, ["collect"])
                return replayed(client, connection, "late") == 0

            wait_until(are_gone, 60, "the end of their time")
        else:
            assert replayed(client, connection, "late") == (MESSAGES if retention != "settled" else 0)
    assert_verified(store_folder)


def test_a_time_that_is_none_is_refused(broker_url: str) -> None:
    with pytest.raises(RequestError) as told, QueueClient(broker_url, broker_options={"log_retention": "0s"}) as client:
        client.list_queues()
    assert "is not a time to keep anything: write 7d, settled or forever" in told.value.text
