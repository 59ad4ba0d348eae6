"""What the broker left on disk, read with the plain SlateDB package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kombu_opendata.storage.records.keys import RecordKind

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import declare, send
from ...support.plain_store import PlainStore


def test_the_store_is_read_with_the_plain_slatedb_package(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    connection = connect(broker_url, consumer_name="the consumer")
    channel = connection.channel()
    channel.exchange_declare("news", "topic", durable=True, auto_delete=False)
    for queue in ("full", "copy", "häppy"):
        declare(channel, queue, arguments={"x-delivery-limit": 2})
        channel.queue_bind(queue, "news", "eu.#")
    declare(channel, "deleted")
    channel.queue_bind("deleted", "news", "#")
    send(channel, "eu.de", "to three", exchange="news", headers={"task": "t", "retries": 0})
    for number in range(600):  # more than two buckets
        send(channel, "full", f"number {number}", priority=number % 3)
    send(channel, "full", b"\xff" * 70_000, b"z" * (3 << 20))
    send(channel, "full", "short-lived", expiration="600000")
    done, held, returned, rejected = (channel.basic_get("full") for _ in range(4))
    done.ack()
    returned.requeue()
    rejected.reject()
    for _ in range(2):
        channel.basic_get("copy").requeue()  # that was the last attempt
    channel.queue_purge("häppy")
    channel.queue_delete("deleted")
    broker.kill()
    send(channel, "full", "after the kill")
    held.ack()
    unsettled = channel.basic_get("full")
    broker.terminate()

    store = PlainStore(store_folder)
    ids = store.message_ids()
    available, in_flight = store.active("full")
    settled = [*store.rows(RecordKind.DONE, "full"), *store.rows(RecordKind.FAILED, "full")]
    assert (len(available), len(in_flight)) == (601, 1)
    assert [len(store.rows(kind, "full")) for kind in (RecordKind.DONE, RecordKind.FAILED)] == [2, 1]
    assert len({row[0] for row in [*available, *in_flight, *settled]}) == 605, "each in one place"
    assert len(store.buckets(RecordKind.ACTIVE, "full")) >= 3
    assert {row[0] for row in [*available, *in_flight, *settled]} <= ids[RecordKind.PAYLOAD]
    assert ids[RecordKind.PAYLOAD] == ids[RecordKind.METADATA]
    sizes = sorted(len(store.envelope(row[0])) for row in available)
    assert 3 << 20 < sizes[-1] < (3 << 20) + 1000
    assert 70_000 < sizes[-2] < 71_000
    assert not ids[RecordKind.CHUNK]
    assert sum(use.messages for use in store.of[RecordKind.SEGMENT].values()) == 2, "written once"
    failed = store.rows(RecordKind.FAILED, "copy")
    assert [row[2] for row in failed] == [2]
    assert store.of[RecordKind.ATTEMPTS][failed[0][0]] == ["the consumer", "the consumer"]
    assert store.active("häppy") == ([], [])
    assert {name for name, _ in store.of[RecordKind.ACTIVE]} == {"full", "copy", "häppy"}
    assert set(store.of[RecordKind.CONFIG]) == {"full", "copy", "häppy"}
    assert "topic(routing_key, 'eu.#')" in str(store.of[RecordKind.CONFIG]["full"])
    assert set(store.of[RecordKind.BINDING]) == {("news", queue, "eu.#") for queue in ("full", "copy", "häppy")}
    first = store.of[RecordKind.METADATA][min(ids[RecordKind.METADATA])]
    expected = {"task": "t", "retries": "0", "exchange": "news", "routing_key": "eu.de", "priority": "0"}
    assert dict(first.headers) == expected
    assert [row[4] for row in in_flight] == [2], "it was requeued before"
    unsettled.ack()
