"""One channel that consumes from many queues, with less prefetch than there are queues."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from kombu_opendata.broker import memory
from kombu_opendata.broker.delivery.delivery import Delivery

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
    deliver = Delivery.deliver

    def counted(self: Delivery, queue: Any) -> None:
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
        monkeypatch.setattr(Delivery, "deliver", counted)
        for number in range(QUEUES * EACH):
            drain_until(connection, partial(has, number))
            taken[number].ack()
        # each queue is looked at when a place is free for it, and once more when it is empty
        assert sum(looked.values()) < 3 * QUEUES * EACH
        bodies = [message.body for message in taken]
    assert sorted(bodies) == sorted(f"{name} {number}" for name in names for number in range(EACH))
    assert list(dict.fromkeys(body.split()[0] for body in bodies)) == names  # each gets its turn, in order
