"""Slow steps of the event loop, by their cause; the loop's clock is the test's."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable

import pytest

from kombu_opendata.broker.delivery.slow_turns import COLLECTION, REQUESTS, SlowTurns


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock also passes when the test lets time pass."""

    passed = 0.0

    def time(self) -> float:
        return self.passed


def run(steps: Callable[[Loop, SlowTurns], object]) -> SlowTurns:
    loop = Loop()
    slow_turns = SlowTurns(loop)
    slow_turns.watch(loop)
    try:
        steps(loop, slow_turns)
    finally:
        slow_turns.unwatch(loop)
        loop.close()
    assert not any(getattr(each, "__self__", None) is slow_turns for each in gc.callbacks)
    return slow_turns


def test_a_task_that_computes_for_long_is_counted_by_its_name() -> None:
    async def work(loop: Loop) -> int:
        for milliseconds in (4, 6, 50):
            loop.passed += milliseconds / 1000
            await asyncio.sleep(0)
        return 5

    def steps(loop: Loop, slow_turns: SlowTurns) -> None:
        assert loop.run_until_complete(work(loop)) == 5

    slow_turns = run(steps)
    cause = work.__qualname__
    assert slow_turns.counts == {cause: 2}
    assert slow_turns.seconds[cause] == pytest.approx(0.056)


def test_a_task_may_be_cancelled_and_fail() -> None:
    async def wait(loop: Loop) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            loop.passed += 0.01

    async def main(loop: Loop) -> None:
        task = asyncio.create_task(wait(loop), name="waits")
        assert task.get_name() == "waits"
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ZeroDivisionError):
            await asyncio.create_task(fail())

    async def fail() -> None:
        raise ZeroDivisionError

    slow_turns = run(lambda loop, _slow_turns: loop.run_until_complete(main(loop)))
    assert slow_turns.counts == {wait.__qualname__: 1}


def test_a_collection_is_the_cause_if_it_took_most_of_a_step() -> None:
    def steps(loop: Loop, slow_turns: SlowTurns) -> None:
        def slow_collection(phase: str, _info: dict[str, int]) -> None:
            loop.passed += 0.02 * (phase == "start")

        gc.callbacks.append(slow_collection)  # after the one that reads the clock
        try:
            start = slow_turns.time()
            gc.collect()
            loop.passed += 0.001
            slow_turns.end_step(start, REQUESTS)
        finally:
            gc.callbacks.remove(slow_collection)
        start = loop.passed = 1.0
        loop.passed += 0.01
        slow_turns.end_step(start, REQUESTS)

    assert run(steps).counts == {COLLECTION: 1, REQUESTS: 1}


def test_the_log_has_a_line_for_many_slow_steps(caplog: pytest.LogCaptureFixture) -> None:
    def steps(loop: Loop, slow_turns: SlowTurns) -> None:
        for number in range(100):
            loop.passed += 0.25
            slow_turns.end_step(loop.passed - (0.125 if number == 30 else 0.0625), f"cause {number}", "before f line 7")
            slow_turns.end_step(loop.passed, REQUESTS)
            slow_turns.tick()

    with caplog.at_level(logging.INFO):
        counts = run(steps).counts
    assert len(counts) < 60
    assert sum(counts.values()) == 100
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("slow_turns")]
    assert lines == [
        "40 steps of the event loop took over 5 ms in 10 s; the longest took 125 ms: cause 30 (before f line 7)",
        "40 steps of the event loop took over 5 ms in 10 s; the longest took 62 ms: cause 40 (before f line 7)",
    ]
