"""Histograms, and how a queue's messages stand in time: against counting them all, with cold buckets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_opendata.storage.commit import measurements
from kombu_opendata.storage.commit.measurements import Histogram, Standing
from kombu_opendata.storage.state.cold_summaries import Summary
from kombu_opendata.storage.state.queue_state import QueueState
from tests.support.engine import SETTINGS, SMALL_BUCKETS, World, run

NOW = 1_000_000


def test_a_bound_belongs_to_its_range() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, 99.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.sum) == ([2, 2, 2], 106.5)


def test_slow_commits_are_told_once(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        metrics = world.engine.metrics
        declared = metrics.take_slow()
        for _ in range(2):
            world.publish("q")
            await world.engine.commits.commit()
        slow = metrics.take_slow()
        assert (len(declared), [commit.effects for commit in slow]) == (1, [2, 1])  # the first publish reserves ids
        assert sum(commit.seconds for commit in (*declared, *slow)) == pytest.approx(metrics.commit_seconds.sum)
        assert sum(commit.size for commit in (*declared, *slow)) == metrics.commit_bytes.sum
        assert metrics.take_slow() == []

    run(tmp_path / "store", steps, replace(SETTINGS, slow_commit_seconds=0.0))


def test_a_commit_without_effects_has_no_size(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        metrics = world.engine.metrics
        metrics.count_commits()
        histograms = metrics.commit_seconds, metrics.commit_effects, metrics.commit_bytes
        before = [sum(histogram.counts) for histogram in histograms]
        await world.engine.commits.commit()
        metrics.count_commits()
        counts = [sum(histogram.counts) for histogram in histograms]
        assert [after - earlier for after, earlier in zip(counts, before, strict=True)] == [1, 0, 0]
        sizes = [histogram.sum for histogram in histograms[1:]]
        world.publish("q", envelope=bytes(1000))
        await world.engine.commits.commit()
        metrics.count_commits()
        assert metrics.commit_effects.sum == sizes[0] + 2  # the block of ids, and the message
        assert metrics.commit_bytes.sum > sizes[1] + 1000

    run(tmp_path / "store", steps)


def figures_of(messages: QueueState, now: int) -> tuple[int, int, int, int]:
    standing = Standing.of(messages, now)
    return standing.ready, standing.delayed, standing.oldest_at_ms, standing.newest_at_ms


@given(st.lists(st.integers(NOW - 100, NOW + 100), max_size=50), st.integers(NOW - 100, NOW + 100))
def test_loaded_messages_are_counted_exactly(visible: list[int], now: int) -> None:
    messages = QueueState("q")
    for id, at in enumerate(visible):
        messages.add(0, id, 0, at, 0, NOW)
    ready = [at for at in visible if at <= now]
    assert figures_of(messages, now) == (
        len(ready), len(visible) - len(ready), min(ready, default=0), max(ready, default=0),
    )  # fmt: skip


@given(st.lists(st.integers(NOW - 100, NOW + 100), min_size=1, max_size=50), st.integers(NOW, NOW + 200))
def test_a_cold_bucket_is_estimated_within_its_bounds(visible: list[int], now: int) -> None:
    summary = Summary.of([(id, 0, at, 0, 0) for id, at in enumerate(visible)], NOW)
    delayed = [at for at in visible if at > now]
    estimate = summary.delayed_at(now)
    if now == NOW or not delayed or min((at for at in visible if at > NOW), default=now) > now:
        assert estimate == len(delayed)
    assert (estimate > 0) == bool(delayed)
    assert estimate <= sum(at > NOW for at in visible)
    assert (summary.first_visible_at, summary.last_visible_at) == (min(visible), max(visible))


def test_cold_and_loaded_buckets_of_a_real_store(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        began = world.clock.now_ms()
        for number in range(40):
            world.publish("q", visible_at=began + 60_000 if number % 4 == 3 else -1)
            world.clock.advance(10)
        await world.engine.commits.checkpoint()
        assert world.queue("q").messages.cold, "the test is about them"
        world.publish("q")
        await world.engine.commits.commit()
        expected = (31, 10, began, began + 400)
        assert figures_of(world.queue("q").messages, world.clock.now_ms()) == expected
        await world.crash()
        assert figures_of(world.queue("q").messages, world.clock.now_ms()) == expected
        world.clock.advance(120_000)
        assert figures_of(world.queue("q").messages, world.clock.now_ms()) == (41, 0, began, began + 60_000)

    run(tmp_path / "s", steps, SMALL_BUCKETS)


def test_a_long_queue_is_looked_at_in_pieces() -> None:
    messages = QueueState("q")
    for id in range(10 * measurements._PIECE):
        messages.add(messages.place(), id, 0, NOW, 0, NOW)
    standing = Standing()
    assert sum(1 for _ in standing.look(messages, NOW)) > 5
    assert standing.ready == len(messages)


def test_a_queue_may_change_between_the_pieces() -> None:
    messages = QueueState("q")
    for id in range(3 * measurements._PIECE):
        messages.add(messages.place(), id, 0, NOW + 1, 0, NOW)
    standing = Standing()
    for _ in standing.look(messages, NOW):
        for entry in list(messages.available.values())[:1000]:
            messages.remove(entry)
    assert 0 <= standing.delayed <= standing.available == len(messages)


def test_of_a_long_transient_queue_only_a_part_is_looked_at() -> None:
    messages = QueueState("q", durable=False)
    count = measurements._MAX_OF_BUCKET + 5
    for id in range(count):
        messages.add(0, id, 0, NOW, 0, NOW)
    assert figures_of(messages, NOW)[:2] == (count, 0)
