"""One channel that consumes from many queues, with less prefetch than there are queues."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from kombu_opendata.broker import memory
from kombu_opendata.broker.delivery.delivery_turn import MessageDelivery
from kombu_opendata.broker.model.sessions import ConsumedQueue

from ..support.kombu_client import connected, declare, drain_until, send

QUEUES, EACH, PREFETCH = 150, 3, 4


@pytest.fixture
def url() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield f"opendata+memory://{name}"
    memory.stop(name)


def test_what_a_free_place_costs_does_not_depend_on_the_number_of_queues(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: Counter[str] = Counter()
    deliver = MessageDelivery.deliver

    def counted(self: MessageDelivery, queue: Any) -> None:
        looked[queue.name] += 1
        deliver(self, queue)

    with connected(url) as connection:
        names = [f"q{number}" for number in range(QUEUES)]
        for name in names:
            declare(connection.default_channel, name)
            send(connection.default_channel, name, *[f"{name} {number}" for number in range(EACH)])
        channel = connection.channel()
        channel.basic_qos(0, PREFETCH, False)
        taken: list[Any] = []

        def has(number: int) -> bool:
            return len(taken) > number

        for name in names:
            channel.basic_consume(name, callback=taken.append, no_ack=False)
        drain_until(connection, lambda: len(taken) == PREFETCH)
        monkeypatch.setattr(MessageDelivery, "deliver", counted)
        for number in range(QUEUES * EACH):
            drain_until(connection, partial(has, number))
            taken[number].ack()
        # each queue is looked at when a place is free for it, and once more when it is empty
        assert sum(looked.values()) < 3 * QUEUES * EACH
        bodies = [message.body for message in taken]
    assert sorted(bodies) == sorted(f"{name} {number}" for name in names for number in range(EACH))
    assert list(dict.fromkeys(body.split()[0] for body in bodies)) == names  # each gets its turn, in order


def test_a_channel_forgets_queues_that_it_no_longer_consumes_from(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be kept in memory, with their messages, for as long as the channel is full."""
    waiting: set[Any] = set()
    starve = ConsumedQueue.starve

    def noted(self: ConsumedQueue) -> None:
        starve(self)
        waiting.update(consumer.channel for consumer in self.consumers)

    monkeypatch.setattr(ConsumedQueue, "starve", noted)
    with connected(url) as connection:
        producer, channel = connection.default_channel, connection.channel()
        channel.basic_qos(0, 1, False)
        taken: list[Any] = []
        names = ["held", "cancelled", "deleted", "kept"]
        for name in names:
            declare(producer, name)
        send(producer, "held", "first")
        tags = {
            name: channel.basic_consume(name, callback=taken.append, no_ack=False, on_cancel=lambda _tag: None)
            for name in names
        }
        drain_until(connection, lambda: len(taken) == 1)
        tags["again"] = channel.basic_consume("kept", callback=taken.append, no_ack=False)
        for name in names[1:]:
            send(producer, name, name)
        channel.basic_cancel(tags["cancelled"])
        channel.basic_cancel(tags["again"])
        producer.queue_delete("deleted")
        (full,) = waiting
        assert [queue.name for queue in full.starved] == ["kept"]
        taken[0].ack()
        drain_until(connection, lambda: len(taken) == 2)
        assert taken[1].body == "kept"
