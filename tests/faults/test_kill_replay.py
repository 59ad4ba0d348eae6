"""kill -9 of the broker in the middle of a replay under live traffic: each message is once in the new queue.

The instants come from a seed that is printed; ``FAULT_SEED=… pytest …`` takes the same ones again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ..support import replay_calls as replay
from ..support.broker import EmbeddedBroker
from ..support.kombu_client import connected, declare, open_connection
from ..support.processes import wait_until
from ..support.seeds import seeded_random

pytestmark = pytest.mark.slow

STORED = 50_000
KILLS = 5


class Traffic:
    """Publishes numbers to the exchange and consumes its first queue, each on a connection of its own."""

    def __init__(self, url: str, first: int) -> None:
        self.url = url
        self.confirmed: list[int] = []
        self.consumed = 0
        self.errors: list[BaseException] = []
        self._first = first
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._publish, self._consume)]

    def _run(self, work: Any) -> None:
        try:
            with connected(self.url) as connection:
                work(connection)
        except BaseException as exc:
            self.errors.append(exc)

    def _publish(self, connection: Any) -> None:
        channel, number = connection.channel(), self._first
        while not self._stop.is_set():
            channel.basic_publish(channel.prepare_message(str(number)), "log", "k")
            self.confirmed.append(number)
            number += 1
            self._stop.wait(0.002)

    def _consume(self, connection: Any) -> None:
        channel = connection.channel()
        channel.basic_qos(0, 50, False)

        def take(message: Any) -> None:
            message.ack()
            self.consumed += 1

        channel.basic_consume("keep", callback=take)
        while not self._stop.is_set():
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.5)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(60)
        assert self.errors == []


def store(url: str, count: int) -> None:
    """Publish so many numbers without waiting for each."""
    with open_connection(url, publish_mode="pipeline") as connection:
        channel = connection.channel()
        channel.exchange_declare("log", "fanout", durable=True, auto_delete=False)
        declare(channel, "keep")
        channel.queue_bind("keep", "log", "k")
        for number in range(count):
            channel.basic_publish(channel.prepare_message(str(number)), "log", "k")


def drained(connection: Any, queue: str, expected: Counter[int]) -> Counter[int]:
    """All that is in a queue; ends early when nothing comes for a while."""
    found: list[int] = []
    channel = connection.channel()
    tag = channel.basic_consume(queue, no_ack=True, callback=lambda message: found.append(int(message.body)))
    with suppress(TimeoutError):
        while len(found) < len(expected):
            connection.drain_events(timeout=60)
    channel.basic_cancel(tag)
    while channel.basic_get(queue, no_ack=True) is not None:
        found.append(-1)
    return Counter(found)


def test_each_message_is_once_in_the_new_queue(store_folder: Path, broker_url: str) -> None:
    dice, broker = seeded_random(), EmbeddedBroker(store_folder)
    store(broker_url, STORED)
    traffic = Traffic(broker_url, STORED)
    with traffic.running(), connected(broker_url) as connection:
        wait_until(lambda: traffic.consumed > 100, 60, "live traffic")
        channel = connection.channel()
        declare(channel, "late", arguments={"x-start": "first"})
        channel.queue_bind("late", "log", "k")

        def cursor() -> dict[str, Any]:
            (found,) = replay.progress(channel.connection, ["late"])
            return found

        for threshold in sorted(dice.randrange(1, STORED) for _ in range(KILLS)):
            wait_until(lambda: cursor()["position"] >= threshold, 120, lambda: str(cursor()))  # noqa: B023
            print(f"kill at {cursor()}")
            broker.kill()
        wait_until(lambda: cursor()["done"], 240, lambda: str(cursor()))
    with connected(broker_url) as connection:
        expected = Counter(range(STORED)) + Counter(traffic.confirmed)
        in_queue = drained(connection, "late", expected)
    assert {number: count for number, count in in_queue.items() if count != 1} == {}
    # the last publish may have been stored although it was never confirmed
    assert sorted(set(expected) - set(in_queue)) == []
    assert set(in_queue) - set(expected) <= {max(traffic.confirmed) + 1}
