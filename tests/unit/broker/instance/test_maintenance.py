"""Maintenance duties: on request, by itself, joined, put off; on a real engine in memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.instance.maintenance import COLLECT, DUTIES, EXPIRE_LEASES, check_duties
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.errors import RequestError
from kombu_opendata.protocol.messages import DeclareQueue, Get, Publish
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.maintain.retention import Collector
from tests.support.clock import AdvancedLoop, ManualClock
from tests.support.waiting import turns, until

from ....support.caller import Caller

GRACE_MS = 2000
PATIENCE_SECONDS = 60
HOUR = 3600.0


class World:
    """An instance with one queue ``q`` and a session that uses it."""

    def __init__(self, interval_seconds: float, loop: AdvancedLoop) -> None:
        self.clock = ManualClock()
        self.interval = interval_seconds
        self.loop = loop

    async def open(self) -> None:
        settings = EngineSettings(retention_interval_seconds=self.interval)
        self.engine = await Engine.open(f"memory://{uuid.uuid4().hex}", "default", self.clock, settings)
        self.instance = Instance("default", self.engine, grace_ms=GRACE_MS, max_message_bytes=1 << 20)
        self.maintenance = self.instance.maintenance
        self.session = self.instance.sessions[b"s" * 16] = Session(b"s" * 16, "a consumer")
        self.session.lost_at_ms = self.clock.now_ms()  # it has no connection
        self.call = Caller(self.instance, self.session)
        self.call(DeclareQueue(1, "q", True, False, False, {}, False))
        await self.settle()

    def publish(self, *, ttl_ms: int = -1) -> None:
        seq = self.instance.traffic.published + 1
        self.call(Publish(2, seq, "", "q", b"envelope", {}, 0, self.clock.now_ms(), 0, ttl_ms))

    async def claim(self) -> None:
        before = len(self.instance.queues["q"].messages.in_flight)
        self.call(Get(3, 1, "q", False))
        await until(lambda: len(self.instance.queues["q"].messages.in_flight) == before + 1)

    async def settle(self) -> None:
        await self.engine.commits.commit()


def run(steps: Callable[[World], Awaitable[None]], *, interval_seconds: float = HOUR) -> None:
    async def main(loop: AdvancedLoop) -> None:
        world = World(interval_seconds, loop)
        await world.open()
        try:
            await steps(world)
        finally:
            await world.maintenance.close()
            await world.engine.close()

    with asyncio.Runner(loop_factory=AdvancedLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, AdvancedLoop)
        runner.run(main(loop))


def test_duties_are_named_once_and_in_their_order() -> None:
    assert check_duties([]) == list(DUTIES)
    assert check_duties(["collect", "route", "collect"]) == ["route", "collect"]
    with pytest.raises(RequestError, match=r"no maintenance duty 'sweep': there are route, expire_leases, collect"):
        check_duties(["collect", "sweep"])


def test_a_report_tells_what_was_done() -> None:
    async def steps(world: World) -> None:
        world.publish()
        world.publish(ttl_ms=1000)
        await world.settle()
        await world.claim()
        world.clock.advance(1000)
        world.session.lost_at_ms = world.clock.now_ms() - GRACE_MS
        report = await world.maintenance.run([], "me")
        assert report.pop("seconds") >= 0
        assert report == {
            "duties": ["route", "expire_leases", "collect"],
            "routed": 0,
            "leases_expired": 1,
            "settled_collected": 0,
            "staged_removed": 0,
            "expired_removed": 1,
            "joined": [],
        }
        assert len(world.instance.queues["q"].messages) == 1
        again = await world.maintenance.run([], "me")
        assert [again[count] for count in ("leases_expired", "settled_collected", "expired_removed")] == [0, 0, 0]

    run(steps)


def test_settled_messages_past_their_retention_are_counted() -> None:
    async def steps(world: World) -> None:
        world.publish()
        await world.settle()
        await world.claim()
        stored = world.instance.queues["q"].state()
        world.engine.operations.ack(stored, list(stored.messages.in_flight.values()))
        assert (await world.maintenance.run([COLLECT], "me"))["settled_collected"] == 0
        world.clock.advance(86_400_000)
        assert (await world.maintenance.run([COLLECT], "me"))["settled_collected"] == 1
        assert not world.engine.commits.is_dirty, "it is in the store when the report comes"

    run(steps)


def test_only_what_was_asked_for_is_done_and_reported() -> None:
    async def steps(world: World) -> None:
        world.publish(ttl_ms=1000)
        world.clock.advance(1000)
        report = await world.maintenance.run([EXPIRE_LEASES], "me")
        assert set(report) == {"duties", "leases_expired", "seconds", "joined"}
        assert len(world.instance.queues["q"].messages) == 1
        status = world.maintenance.report()
        assert status["collect"]["at_ms"] == 0
        assert (status["expire_leases"]["by"], status["expire_leases"]["asked_by"]) == ("me", "me")
        assert status["expire_leases"]["at_ms"] == world.clock.now_ms()

    run(steps)


def test_a_second_request_waits_for_the_duty_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        world.publish(ttl_ms=1000)
        await world.settle()
        world.clock.advance(1000)
        sweep, sweeps, gate = world.engine.collector.sweep, 0, asyncio.Event()

        async def slow_sweep() -> int:
            nonlocal sweeps
            sweeps += 1
            await gate.wait()
            return await sweep()

        monkeypatch.setattr(Collector, "sweep", lambda _collector: slow_sweep())
        loop = asyncio.get_running_loop()
        first = loop.create_task(world.maintenance.run([COLLECT], "first"))
        await until(lambda: sweeps == 1)
        second = loop.create_task(world.maintenance.run([COLLECT], "second"))
        abandoned = loop.create_task(world.maintenance.run([COLLECT], "third"))
        await turns()
        abandoned.cancel()
        gate.set()
        reports = [await first, await second]
        assert sweeps == 1
        assert [report["expired_removed"] for report in reports] == [1, 1]
        assert [report["joined"] for report in reports] == [[], ["collect"]]
        assert world.maintenance.report()["collect"]["by"] == "first"

    run(steps)


def test_the_broker_does_it_by_itself_when_nobody_asks() -> None:
    async def steps(world: World) -> None:
        world.publish(ttl_ms=1000)
        world.clock.advance(1000)
        world.maintenance.tick()
        await turns()
        assert len(world.instance.queues["q"].messages)
        world.loop.advance(HOUR)
        world.maintenance.tick()
        await until(lambda: not len(world.instance.queues["q"].messages))
        await until(lambda: world.maintenance.report()["collect"]["by"] == "broker")
        assert world.maintenance.report()["collect"]["asked_by"] == ""

    run(steps)


def test_who_comes_again_puts_the_brokers_own_pass_off() -> None:
    async def steps(world: World) -> None:
        await world.maintenance.run([], "beat", again_in_seconds=HOUR)
        world.loop.advance(HOUR / 2)
        world.maintenance.tick()
        assert world.maintenance._own is None
        await world.maintenance.run([COLLECT], "beat")  # does not say when it comes again
        world.loop.advance(2 * world.interval)
        world.maintenance.tick()
        await until(lambda: world.maintenance.report()["collect"]["by"] == "broker")

    run(steps, interval_seconds=1)


def test_leases_are_never_put_off() -> None:
    async def steps(world: World) -> None:
        world.publish()
        await world.settle()
        await world.claim()
        await world.maintenance.run([], "beat", again_in_seconds=HOUR)
        world.clock.advance(GRACE_MS)
        world.maintenance.tick()
        assert not world.instance.queues["q"].messages.in_flight
        assert world.maintenance.report()["expire_leases"]["by"] == "broker"

    run(steps)


def test_a_report_tells_what_the_broker_did_by_itself_since_the_last_one() -> None:
    async def steps(world: World) -> None:
        world.publish()
        world.publish()
        world.publish(ttl_ms=5000)
        await world.claim()
        stored = world.instance.queues["q"].state()
        world.engine.operations.ack(stored, list(stored.messages.in_flight.values()))
        await world.claim()
        await world.settle()
        world.call(DeclareQueue(1, "all", True, False, False, {"x-start": "first", "x-filter": "1=1"}, False))
        while not world.engine.state.cursors["all"].is_done:
            await world.instance.replays.advance()  # as in the background
        world.clock.advance(86_400_000)
        world.maintenance.tick()
        await until(lambda: world.maintenance.report()["collect"]["by"] == "broker")
        counts = ("routed", "leases_expired", "settled_collected", "expired_removed")
        report = await world.maintenance.run([], "me")
        assert [report[name] for name in counts] == [3, 1, 1, 2]
        report = await world.maintenance.run([], "me")
        assert [report[name] for name in counts] == [0, 0, 0, 0]

    run(steps, interval_seconds=0.01)


def test_a_duty_that_fails_for_good_ends_the_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        async def broken() -> int:
            raise ZeroDivisionError("no such luck")

        monkeypatch.setattr(Collector, "sweep", lambda _collector: broken())
        with pytest.raises(ZeroDivisionError):
            await world.maintenance.run([COLLECT], "me")
        await until(world.instance.failure.future.done)
        assert isinstance(world.instance.failure.future.exception(), ZeroDivisionError)

    run(steps)
