"""The histogram of due times: exact in memory, even where only summaries are known, and the sum is always right."""

from __future__ import annotations

import asyncio

import pytest

from kombu_opendata.broker.metrics.queue_depths import DueTimes
from kombu_opendata.storage.clock import TimeSlice
from kombu_opendata.storage.state.cold_summaries import Summary
from kombu_opendata.storage.state.queue_buckets import Row
from kombu_opendata.storage.state.queue_state import QueueState

NOW, MINUTE = 1_800_000_000_000, 60_000


def count(messages: QueueState, number: int = 5) -> tuple[list[int], int, bool]:
    async def main() -> DueTimes:
        found = DueTimes(NOW, MINUTE, number)
        await found.add(messages, NOW, TimeSlice())
        return found

    found = asyncio.run(main())
    return *found.counts(), found.is_estimate


def cold(*due_after_ms: int) -> QueueState:
    """A queue with one cold bucket."""
    rows: list[Row] = [(id, 255, NOW + after, 0, 0) for id, after in enumerate(due_after_ms)]
    messages = QueueState("q")
    messages.note_cold(1, Summary.of(rows, NOW))
    return messages


def test_messages_in_memory_are_counted_exactly() -> None:
    messages = QueueState("q", durable=False)
    entries = [
        messages.add(0, id, 255, NOW + after, 0, NOW)
        for id, after in enumerate((-5, 0, 1, 59_999, 60_000, 150_000, 299_999, 300_000, 10**12))
    ]
    assert count(messages) == ([2, 1, 1, 0, 1], 2, False)
    messages.remove(entries[2])
    messages.delay(entries[3], NOW + 61_000, NOW)
    messages.claim(entries[5], b"s", NOW, NOW + 1)
    assert count(messages) == ([0, 2, 0, 0, 1], 2, False)


def test_a_cold_bucket_within_one_bucket_of_time_is_exact() -> None:
    assert count(cold(61_000, 62_000, 119_999)) == ([0, 3, 0, 0, 0], 0, False)
    assert count(cold(-1000, -500)) == ([0, 0, 0, 0, 0], 0, False)
    assert count(cold(10**12, 10**12 + MINUTE)) == ([0, 0, 0, 0, 0], 2, False)


def test_a_cold_bucket_is_spread_evenly() -> None:
    evenly = cold(*range(30_000, 210_000, 1000))
    counts, later, is_estimate = count(evenly)
    assert (sum(counts), later, is_estimate) == (180, 0, True)
    assert counts == pytest.approx([30, 60, 60, 30, 0], abs=1)
    counts, later, _is_estimate = count(evenly, 2)
    assert [*counts, later] == pytest.approx([30, 60, 90], abs=1)


@pytest.mark.parametrize("number", [1, 7, 1000])
def test_the_sum_is_right(number: int) -> None:
    messages = QueueState("q")
    total = 0
    for bucket in range(1, 200):
        size = 1 + bucket % 256
        rows: list[Row] = [(id, 255, NOW + 1 + bucket * 777 + id * id * 13, 0, 0) for id in range(size)]
        messages.note_cold(bucket, Summary.of(rows, NOW))
        total += size
    counts, later, is_estimate = count(messages, number)
    assert is_estimate
    assert min(counts) >= 0
    assert sum(counts) + later == total
