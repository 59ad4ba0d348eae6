"""What a broker remembers of its queues: exact counts, bounded memory, and work in slices."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
import uuid
from array import array
from collections.abc import Awaitable, Callable
from itertools import pairwise, permutations
from typing import Any

import pytest

from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.metrics import metrics_memory
from kombu_opendata.broker.metrics.metrics_memory import (
    LONG,
    MINUTE_SAMPLES,
    POINTS,
    SAMPLE_MS,
    SHORT,
    WIDTH,
    ClientRates,
    MetricsMemory,
    QueuePast,
    Series,
)
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope
from tests.support.caller import Caller
from tests.support.clock import ManualClock
from tests.support.waiting import turns, until

BODY = encode_envelope("{}", "application/json", "utf-8", {}, {}, "", "")


class Memory:
    """The memory of a broker with queues, whose time is turned by hand."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.call = Caller(instance, Session(bytes(16), "test"))
        self.clock = ManualClock()
        self.sent = 0
        self.figures = MetricsMemory(instance.queues, self.clock)

    def declare(self, *names: str) -> None:
        for name in names:
            self.call(m.DeclareQueue(0, name, False, False, False, {}, False))

    def send(self, queue: str, count: int = 1, *, due_in_ms: int = 0) -> None:
        """Put messages into a transient queue."""
        found = self.instance.queues[queue]
        for _ in range(count):
            self.sent += 1
            due = self.instance.engine.clock.now_ms() + due_in_ms if due_in_ms else 0
            found.put(self.sent, BODY, 255, due, -1)  # type: ignore[attr-defined]

    def count(self, queue: str, **counts: int) -> None:
        """Count something, as if it had happened."""
        for name, more in counts.items():
            counters = self.instance.queues[queue].counts
            setattr(counters, name, getattr(counters, name) + more)

    async def sample(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(SAMPLE_MS)
            await self.figures.sample(self.clock.now_ms())

    def of(self, queue: str, since_ms: int = 0) -> Series:
        return self.figures.of(self.instance.queues[queue], self.figures.points(since_ms)[0])

    def total(self) -> Series:
        return self.figures.total(self.figures.points(0)[0])


def run(test: Callable[[Memory], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Server(BrokerSettings(store=f"memory://{uuid.uuid4().hex}"))
        try:
            await test(Memory(await server.instances.get("default")))
        finally:
            await server.close()

    asyncio.run(main())


def test_rates_and_levels_of_each_sample() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        await memory.sample()
        memory.send("q", 50)
        memory.send("q", 3, due_in_ms=3_600_000)
        await memory.sample()
        memory.count("q", delivered=10, acked=5, rejected=2, exhausted=1)
        memory.instance.queues["q"].tasks_failed += 2
        await memory.sample()
        assert memory.of("q") == {
            "published_per_second": [0, 10.6, 0], "delivered_per_second": [0, 0, 2], "acked_per_second": [0, 0, 1],
            "failed_per_second": [0, 0, 1], "ready": [0, 50, 50], "in_flight": [0, 0, 0], "delayed": [0, 3, 3],
        }  # fmt: skip
        assert memory.total() == memory.of("q")

    run(test)


def test_a_tick_takes_one_sample_when_it_is_due() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        for passed_ms, samples in (0, 0), (SAMPLE_MS - 1, 0), (1, 1), (SAMPLE_MS, 2):
            memory.clock.advance(passed_ms)
            for _ in range(2):
                memory.figures.tick()
            await until(lambda samples=samples: len(memory.figures.points(0)[0]) == samples)  # type: ignore[misc]
            await turns(9)
            assert len(memory.figures.points(0)[0]) == samples

    run(test)


def test_messages_that_become_ready() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        memory.send("q", 4, due_in_ms=3_600_000)
        await memory.sample()
        found = memory.instance.queues["q"]
        for entry in list(found.messages.available.values())[:3]:
            found.delay(entry, 0)
        await memory.sample()
        assert (memory.of("q")["ready"], memory.of("q")["delayed"]) == ([0, 3], [4, 1])

    run(test)


def test_delayed_messages_are_ready_when_their_time_has_come() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        memory.clock.not_before(memory.instance.engine.clock.now_ms())
        memory.send("q", 4, due_in_ms=3_600_000)
        await memory.sample()
        memory.clock.not_before(memory.instance.engine.clock.now_ms() + 3_600_000)
        await memory.sample()
        assert (memory.of("q")["ready"], memory.of("q")["delayed"]) == ([0, 4], [4, 0])

    run(test)


def test_messages_that_were_delayed_at_startup_are_not_ready() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        memory.send("q", 3)
        memory.send("q", 2, due_in_ms=3_600_000)
        memory.figures = MetricsMemory(memory.instance.queues, memory.clock)
        await memory.sample(2)
        assert (memory.of("q")["ready"], memory.of("q")["delayed"]) == ([3, 3], [2, 2])

    run(test)


def test_ten_minutes_are_kept_and_a_queue_at_rest_has_all_of_them() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("busy", "rests")
        memory.send("rests", 7)
        for _ in range(2 * LONG):
            memory.send("busy", 5)
            await memory.sample()
        assert len(memory.figures.points(0)[0]) == POINTS
        assert memory.of("busy")["published_per_second"] == [1.0] * POINTS
        assert memory.of("busy")["ready"] == list(range(5 * (2 * LONG - POINTS) + 5, 10 * LONG + 5, 5))
        assert memory.of("rests")["ready"] == [7] * POINTS
        assert memory.of("rests")["published_per_second"] == [0.0] * POINTS
        memory.send("rests", 5)
        await memory.sample()
        assert memory.of("rests")["ready"] == [7] * (POINTS - 1) + [12]
        assert memory.of("rests")["published_per_second"] == [0.0] * (POINTS - 1) + [1.0]

    run(test)


def test_a_queue_that_comes_to_rest_keeps_its_points() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        await memory.sample()
        memory.send("q", 3)
        ready = [0.0]
        for _ in range(LONG + 3):
            await memory.sample()
            ready.append(3)
            assert memory.of("q")["ready"] == ready[-POINTS:]

    run(test)


def test_a_queue_with_few_rows_has_all_of_them_when_it_comes_to_rest() -> None:
    async def test(memory: Memory) -> None:
        memory.figures = MetricsMemory(memory.instance.queues, memory.clock, max_long=0)
        memory.declare("q")
        memory.send("q")
        for number in range(1, 2 * LONG):
            await memory.sample()
            known = min(number, SHORT - 1) if number <= LONG else min(SHORT + number - LONG, POINTS)
            points = memory.of("q")["ready"]
            assert points == [None] * (len(points) - known) + [1] * known

    run(test)


def test_the_rates_change_until_a_minute_after_the_last_change_of_the_queue() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q", "rests")
        queue, rests = (memory.instance.queues[name] for name in ("q", "rests"))
        await memory.sample(3)
        assert memory.figures.recent_in(queue) == 0
        memory.send("q")
        for number in range(4, 4 + MINUTE_SAMPLES + 1):
            await memory.sample()
            assert memory.figures.recent_in(queue) == number
            assert memory.figures.recent_in(rests) == 0
        await memory.sample()
        assert memory.figures.recent_in(queue) == 0
        memory.declare("new")
        assert memory.figures.recent_in(memory.instance.queues["new"]) == 0

    run(test)


def test_the_points_since_a_time() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        await memory.sample(5)
        _numbers, times = memory.figures.points(0)
        assert [after - before for before, after in pairwise(times)] == [SAMPLE_MS] * 4
        assert memory.figures.points(times[2])[1] == times[3:]
        assert memory.of("q", times[2])["ready"] == [0, 0]
        assert memory.figures.points(times[-1])[1] == []

    run(test)


def test_a_queue_that_is_deleted_and_declared_again_counts_on_in_the_total() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        memory.send("q", 10)
        await memory.sample()
        memory.instance.queues["q"].drop()
        await memory.sample()
        memory.declare("q")
        memory.send("q", 5)
        await memory.sample()
        assert memory.of("q")["published_per_second"] == [0, 0, 1]
        assert memory.total()["published_per_second"] == [2, 0, 1]
        assert memory.total()["ready"] == [10, 0, 5]

    run(test)


def test_what_was_counted_before_the_start_is_no_rate() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        memory.count("q", published=1_000_000)
        memory.figures = MetricsMemory(memory.instance.queues, memory.clock)
        await memory.sample()
        assert memory.of("q")["published_per_second"] == memory.total()["published_per_second"] == [0]
        assert memory.figures.rates(memory.instance.queues["q"])["published_per_second"] == 0

    run(test)


def test_counters_may_pass_the_limit_of_a_row() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        memory.count("q", published=(1 << 32) - 3)
        memory.figures = MetricsMemory(memory.instance.queues, memory.clock)
        memory.count("q", published=5)
        await memory.sample()
        assert memory.of("q")["published_per_second"] == [1]

    run(test)


def test_the_rates_of_the_last_minute_include_what_came_since_the_last_sample() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        memory.count("q", published=600)
        await memory.sample(2)
        queue = memory.instance.queues["q"]
        assert memory.figures.rates(queue)["published_per_second"] == 60  # the broker started ten seconds ago
        await memory.sample(MINUTE_SAMPLES)
        memory.count("q", acked=120)
        rates = {"published_per_second": 0, "delivered_per_second": 0, "acked_per_second": 2, "failed_per_second": 0}
        assert memory.figures.rates(queue) == rates

    run(test)


def test_the_rates_are_those_of_a_minute_when_samples_are_late_or_missing() -> None:
    async def test(memory: Memory) -> None:
        memory.declare("q")
        queue = memory.instance.queues["q"]
        published = [0]  # at each sample
        for number in range(1, 2 * MINUTE_SAMPLES):
            memory.count("q", published=number)
            await memory.sample()
            published.append(queue.counts.published)

        def expected(samples: int, seconds: float) -> float:
            return round((published[-1] - published[-1 - samples]) / seconds, 3)

        memory.clock.advance(SAMPLE_MS)
        assert memory.figures.rates(queue)["published_per_second"] == expected(MINUTE_SAMPLES, 65)
        memory.clock.advance(1)
        assert memory.figures.rates(queue)["published_per_second"] == expected(MINUTE_SAMPLES - 1, 60.001)
        memory.clock.advance(3_600_000)
        memory.count("q", published=720)
        assert memory.figures.rates(queue)["published_per_second"] == 0.2, "since the newest sample"

    run(test)


def test_points_are_true_or_unknown_and_those_of_a_minute_are_known() -> None:
    async def test(memory: Memory) -> None:
        dice = random.Random(5)
        memory.figures = MetricsMemory(memory.instance.queues, memory.clock, max_long=2)
        names = [f"q{number}" for number in range(6)]
        memory.declare(*names)
        published: dict[str, list[float]] = {name: [] for name in names}
        speeds = dict.fromkeys(names, 0)
        for number in range(1, 3 * LONG):
            for name in names:
                if dice.random() < 0.05:
                    speeds[name] = dice.choice((0, 0, 1, 10, 100))
                count = dice.randint(0, speeds[name])
                memory.count(name, published=count)
                published[name].append(count / 5)
            await memory.sample()
            for name in names if number % 5 == 0 else ():
                points = memory.of(name)["published_per_second"]
                true = published[name][-POINTS:]
                assert [point for point in points if point is not None] == [
                    rate for rate, point in zip(true, points, strict=True) if point is not None
                ]
                assert points[-MINUTE_SAMPLES:] == true[-MINUTE_SAMPLES:]

    run(test)


@pytest.mark.parametrize("slots", [SHORT, LONG])
def test_the_activity_is_the_growth_of_a_minute(slots: int) -> None:
    past = QueuePast(slots=slots)
    for number in range(1, 3 * MINUTE_SAMPLES):
        past.put(number, array("I", [number**2, number, 0, 0, *[7] * (WIDTH - 4)]))
        first = max(number - MINUTE_SAMPLES, 0)
        assert past.activity(number) == number**2 - first**2 + number - first


@pytest.mark.parametrize("order", list(permutations(("busy", "slow", "late"))))
def test_a_queue_replaces_the_least_busy_of_those_with_all_points(order: tuple[str, ...]) -> None:
    async def test(memory: Memory) -> None:
        memory.figures = MetricsMemory(memory.instance.queues, memory.clock, max_long=2)
        memory.declare(*order)
        memory.count("busy", published=30)
        memory.count("slow", published=5)
        await memory.sample()
        for _ in range(2 * SHORT):
            for name, count in (("busy", 30), ("slow", 5), ("late", 21)):
                memory.count(name, published=count)
            await memory.sample()
        known = {name: sum(value is not None for value in memory.of(name)["ready"]) for name in order}
        assert known == {"busy": 2 * SHORT + 1, "slow": SHORT - 1, "late": 2 * SHORT + 1}

    run(test)


def test_only_the_busiest_have_all_points() -> None:
    async def test(memory: Memory) -> None:
        memory.figures = MetricsMemory(memory.instance.queues, memory.clock, max_long=2)
        names = [f"q{number}" for number in range(5)]
        memory.declare(*names)
        for _ in range(LONG):
            for number, name in enumerate(names):
                memory.send(name, 1 + 10 * number)
            await memory.sample()
        known = {name: sum(value is not None for value in memory.of(name)["ready"]) for name in names}
        assert known["q4"] > POINTS - MINUTE_SAMPLES
        assert known["q3"] > POINTS - MINUTE_SAMPLES
        assert known["q0"] == known["q1"] == known["q2"] == SHORT - 1
        for number, name in enumerate(names):
            queue = memory.instance.queues[name]
            assert memory.figures.rates(queue)["published_per_second"] == (1 + 10 * number) / 5
            rates = [rate for rate in memory.of(name)["published_per_second"] if rate is not None]
            assert rates == [(1 + 10 * number) / 5] * len(rates)

    run(test)


def allocated() -> int:
    """Return the bytes that the module's own code has allocated, since tracing began, and not freed."""
    own = tracemalloc.Filter(True, metrics_memory.__file__)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([own]).traces)


def test_a_thousand_busy_queues_take_less_than_a_megabyte() -> None:
    async def test(memory: Memory) -> None:
        queues = 1000
        memory.declare(*(f"q{number}" for number in range(queues)))
        tracemalloc.start()
        try:
            memory.figures = MetricsMemory(memory.instance.queues, memory.clock, max_long=queues // 10)
            at_rest = allocated()
            for _ in range(3):
                for queue in memory.instance.queues.values():
                    queue.counts.published += 1000
                await memory.sample()
            busy = allocated()
        finally:
            tracemalloc.stop()
        assert 0 < at_rest < 400_000
        assert at_rest < busy < 1_000_000

    run(test)


def test_a_sample_lets_others_have_their_turn() -> None:
    async def test(memory: Memory) -> None:
        memory.declare(*(f"q{number}" for number in range(3000)))
        count = 0
        sampling: asyncio.Task[Any] = asyncio.ensure_future(memory.figures.sample(memory.clock.now_ms() + SAMPLE_MS))
        while not sampling.done():
            count += 1
            await turns()
        assert count > 3

    run(test)


def test_the_rates_of_clients_are_those_of_the_last_minute() -> None:
    clock, sessions = ManualClock(), {bytes([number]): Session(bytes([number]), "client") for number in range(3)}
    first, second, _idle = sessions.values()
    rates = ClientRates(sessions, clock)

    def pass_seconds(seconds: int) -> None:
        for _ in range(seconds):
            clock.advance(1000)
            rates.tick()

    def totals(*of: Session) -> tuple[float, float]:
        found = rates.of(of)
        return found["done_per_minute"], found["failed_per_minute"]

    assert totals(*sessions.values()) == (0, 0)
    first.done, first.failed = 5, 1
    assert totals(first) == (5, 1), "since startup"
    pass_seconds(30)
    first.done, second.done = 7, 100
    assert totals(first, second) == (107, 1)
    assert totals(second) == (100, 0)
    pass_seconds(61 - 30)
    assert totals(first) == (2, 0), "what was before the last minute is not in it"
    pass_seconds(60)
    assert totals(first, second) == (0, 0)
    second.done = 3
    assert totals(second) == (0, 0), "a count that begins again is no negative rate"
    third = sessions[b"3"] = Session(b"3", "client")
    third.failed = 4
    assert totals(third) == (0, 4), "a session that began later counts from zero"
    pass_seconds(5)
    clock.advance(3_600_000)
    third.failed = 6
    assert totals(third) == (0, 2), "without newer samples, the newest counts"
