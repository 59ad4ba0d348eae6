"""What has changed since a client asked before: nothing is missed, and what rests is not told again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.metrics.metrics_changes import InstanceChanges
from kombu_opendata.broker.metrics.metrics_memory import MINUTE_SAMPLES, SAMPLE_MS, MetricsMemory
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope
from tests.support.caller import Caller
from tests.support.clock import ManualClock

BODY = encode_envelope("{}", "application/json", "utf-8", {}, {}, "", "")


class Told:
    """A client that keeps the mark of its last answer."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.call = Caller(instance, Session(bytes(16), "test"))
        self.clock = ManualClock(instance.engine.clock.now_ms())
        self.memory = MetricsMemory(instance.queues, self.clock)
        self.changes = InstanceChanges(instance.queues, self.memory, self.clock)
        self.mark = 0
        self._sent = self._requests = 0

    async def ask(self) -> tuple[list[str], list[str] | None]:
        """The names of the queues that have changed, and of those that are gone."""
        found = await self.changes.since(self.mark)
        self.mark = found.mark
        return sorted(queue.name for queue in found.queues), found.gone

    async def do(self, message: m.DeclareQueue | m.Publish | m.DeleteQueue | m.PauseQueue) -> None:
        self._requests += 1
        message.rid = self._requests
        self.call(message)
        await self.call.done()

    async def declare(self, *names: str) -> None:
        for name in names:
            await self.do(m.DeclareQueue(0, name, True, False, False, {}, False))

    async def publish(self, queue: str) -> None:
        self._sent += 1
        await self.do(m.Publish(0, self._sent, "", queue, BODY, {}, 0, 1))

    async def sample(self) -> None:
        self.clock.advance(SAMPLE_MS)
        await self.memory.sample(self.clock.now_ms())


def run(test: Callable[[Told], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server(BrokerSettings(store=f"memory://{uuid.uuid4().hex}"))
        try:
            await test(Told(await server.instances.get("default")))
        finally:
            await server.close()

    asyncio.run(main())


def test_only_what_has_changed_is_told() -> None:
    async def test(told: Told) -> None:
        await told.declare("a", "b", "c")
        assert await told.ask() == (["a", "b", "c"], None)
        assert await told.ask() == ([], [])
        await told.publish("b")
        assert await told.ask() == (["b"], [])
        await told.do(m.PauseQueue(0, "a"))
        await told.declare("d")
        assert await told.ask() == (["a", "d"], [])
        await told.do(m.DeleteQueue(0, "c", False, False))
        assert await told.ask() == ([], ["c"])
        assert await told.ask() == ([], [])

    run(test)


def test_a_queue_that_is_deleted_and_declared_again_is_not_gone() -> None:
    async def test(told: Told) -> None:
        await told.declare("a")
        await told.ask()
        await told.do(m.DeleteQueue(0, "a", False, False))
        await told.declare("a")
        assert await told.ask() == (["a"], [])

    run(test)


def test_each_client_learns_of_each_change() -> None:
    async def test(told: Told) -> None:
        await told.declare("a", "b")
        first = (await told.changes.since(0)).mark
        await told.publish("a")
        await told.ask()
        await told.publish("b")
        await told.ask()
        found = await told.changes.since(first)
        assert sorted(queue.name for queue in found.queues) == ["a", "b"]

    run(test)


def test_rates_of_the_last_minute_are_told_until_they_are_zero() -> None:
    async def test(told: Told) -> None:
        await told.declare("a", "b")
        await told.sample()
        await told.ask()
        await told.publish("a")
        for _ in range(MINUTE_SAMPLES + 1):
            await told.sample()
            assert await told.ask() == (["a"], [])
        assert told.memory.rates(told.instance.queues["a"])["published_per_second"] == 0
        await told.sample()
        await told.ask()
        await told.sample()
        assert await told.ask() == ([], [])

    run(test)


@pytest.mark.parametrize("mark", [1, 1 << 60], ids=["of-an-older-broker", "of-a-newer-broker"])
def test_a_mark_that_is_not_known_gets_all_queues(mark: int) -> None:
    async def test(told: Told) -> None:
        await told.declare("a", "b")
        await told.ask()
        told.mark = mark
        assert await told.ask() == (["a", "b"], None)

    run(test)


def test_a_client_that_missed_too_many_deletions_gets_all_queues() -> None:
    async def test(told: Told) -> None:
        told.changes = InstanceChanges(told.instance.queues, told.memory, told.clock, max_gone=2)
        await told.declare("a", "b", "c", "d")
        await told.ask()
        for name in "abc":
            await told.do(m.DeleteQueue(0, name, False, False))
        assert await told.ask() == (["d"], None)
        assert await told.ask() == ([], [])

    run(test)
