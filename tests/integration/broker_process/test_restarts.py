"""A broker that is killed or ended and comes back: what its clients hold, publish and find again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import amqp.exceptions as amqp
import pytest

from kombu_opendata import QueueClient
from kombu_opendata.protocol import messages as m
from kombu_opendata.storage.records.keys import RecordKind

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import declare, drain_until, send
from ...support.plain_store import PlainStore
from ...support.raw import RawClient


@pytest.mark.parametrize("end", [EmbeddedBroker.kill, EmbeddedBroker.terminate], ids=["kill", "sigterm"])
def test_a_consumer_goes_on_after_a_restart_with_what_it_holds(
    connect: Callable[..., Any],
    broker_url: str,
    broker: EmbeddedBroker,
    store_folder: Path,
    end: Callable[[EmbeddedBroker], None],
) -> None:
    connection = connect(broker_url)
    channel = connection.channel()
    declare(channel, "q")
    channel.basic_qos(0, 2, False)
    inbox: list[Any] = []
    channel.basic_consume("q", callback=inbox.append)
    send(channel, "q", "a", "b", "c", "d")
    drain_until(connection, lambda: inbox)
    killed = broker.wait_up()
    end(broker)
    send(channel, "q", "e")
    assert broker.wait_up(other_than=killed) != killed
    inbox[0].ack()
    drain_until(connection, lambda: len(inbox) == 2)
    inbox[1].ack()
    drain_until(connection, lambda: len(inbox) == 4)
    for message in inbox[2:]:
        message.ack()
    drain_until(connection, lambda: len(inbox) == 5)
    inbox[4].ack()
    assert [message.body for message in inbox] == list("abcde")
    assert [message.delivery_info["redelivered"] for message in inbox] == [False] * 5
    connection.close()
    broker.terminate()
    store = PlainStore(store_folder)
    assert [row[2] for row in store.rows(RecordKind.DONE, "q")] == [1] * 5
    assert store.active("q") == ([], [])
    assert store.rows(RecordKind.FAILED, "q") == []


def test_what_was_never_received_is_released_at_no_cost(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    path = f"{store_folder}/broker.sock"
    with RawClient(path) as raw:
        raw.hello()
        raw.declare("q")
        for seq in range(1, 4):
            raw.publish("q", seq)
        raw.consume("q")
        held, acked, _lost = raw.wait_deliveries(3)
    broker.kill()
    declare(channel, "q")  # any call brings the broker back
    with RawClient(path) as again:
        settles = [(m.Outcome.ACK, *acked.lease)]
        welcome = again.hello(raw.session, resume=True, held=[(1, *held.lease)], settles=settles)
        assert (welcome.adopted, welcome.last_seq) == (1, 3)
        again.consume("q")
        released = again.wait_deliveries(1)[0]
        assert released.id == raw.deliveries[2].id
        assert released.attempts == 1, "its first attempt, as before"
        assert released.token > raw.deliveries[2].token, "a lease of its own"
        again.send(m.Settle(2, m.Outcome.ACK, 1, [held.lease, released.lease]))
        assert again.call(m.Goodbye(0))
    broker.terminate()
    store = PlainStore(store_folder)
    assert sorted(row[2] for row in store.rows(RecordKind.DONE, "q")) == [1, 1, 1]
    assert store.active("q") == ([], [])


def test_a_publish_that_is_retried_over_a_kill_is_stored_once(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    declare(channel, "q")
    path = f"{store_folder}/broker.sock"
    with RawClient(path) as raw:
        raw.hello()
        first = raw.publish("q", 1)
    broker.kill()
    assert channel._size("q") == 1
    with RawClient(path) as again:
        assert again.hello(raw.session, resume=True).last_seq == 1
        repeated = again.publish("q", 1)
        assert (repeated.message_id, repeated.queues) == (first.message_id, 1)
        assert again.publish("q", 2).message_id > first.message_id
    assert channel._size("q") == 2


def test_settlements_during_the_deletion_of_their_queue(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    """What comes after the deletion in the journal must not speak of the queue: it could not be opened again."""
    channel = connect(broker_url).channel()
    declare(channel, "q")
    send(channel, "q", *map(str, range(1000)))
    with RawClient(f"{store_folder}/broker.sock") as raw:
        raw.hello()
        raw.consume("q")
        leases = [delivery.lease for delivery in raw.wait_deliveries(1000)]
        deleted = raw.send(m.DeleteQueue(0, "q", False, False))
        for number, lease in enumerate(leases, 1):
            raw.send(m.Settle(number, m.Outcome.ACK, 1, [lease]))
        assert raw.answer(deleted).count == 0
    broker.kill()
    with pytest.raises(amqp.NotFound):
        channel.queue_declare("q", passive=True)


@pytest.mark.parametrize("end", [EmbeddedBroker.kill, EmbeddedBroker.terminate], ids=["kill", "sigterm"])
def test_a_queue_keeps_its_totals_and_its_age(
    broker_url: str, broker: EmbeddedBroker, end: Callable[[EmbeddedBroker], None]
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    with QueueClient(broker_url) as client:
        client.create("q")
        ids = client.send_batch("q", range(5))
        first, second = client.read("q", 60, 2)
        client.archive("q", first)
        client.release("q", second)
        created, counted = client.get_queue("q").created_at, client.metrics("q")
        assert created is not None
        assert before <= created <= datetime.now(UTC)
        assert counted.counted_since == created
        killed = broker.wait_up()
        end(broker)
    with QueueClient(broker_url) as client:
        metrics = client.metrics("q")
        assert broker.wait_up(other_than=killed) != killed
        assert (metrics.total, metrics.counts) == (5, counted.counts)
        assert {name: count for name, count in metrics.counts.items() if count} == {
            "published": 5, "delivered": 2, "acked": 1, "released": 1,
        }  # fmt: skip
        assert metrics.counted_since == client.get_queue("q").created_at == created
        read = client.read("q", 60, 10)
        assert [message.id for message in read] == ids[1:]
        received = [client.get(message.id).received_at for message in read]
        assert None not in received
        assert [message.received_at for message in read] == received
        client.delete_queue("q")
        client.create("q")
        assert client.metrics("q").total == 0
