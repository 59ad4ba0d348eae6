"""Which messages a read with a condition looks at."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kombu_opendata.broker.calls.queue_client.read import candidates
from kombu_opendata.storage.state.cold_summaries import Summary
from kombu_opendata.storage.state.queue_buckets import Row
from kombu_opendata.storage.state.queue_state import QueueState
from tests.support.clock import ManualClock


def test_delayed_messages_of_cold_buckets_are_read_once_they_are_visible() -> None:
    clock = ManualClock(0)
    messages = QueueState("q")
    rows: dict[int, list[Row]] = {
        1: [(1, 10, 100, 0, 0), (2, 10, 0, 0, 0)],
        2: [(3, 10, 100, 0, 0), (4, 5, 200, 0, 0)],
        3: [(5, 10, 200, 0, 0)],
    }
    for number, found in rows.items():
        messages.note_cold(number, Summary.of(found, 0))

    async def load_bucket(number: int) -> None:
        messages.restore(number, rows[number], [], clock.now_ms())

    queue: Any = SimpleNamespace(messages=messages, load_bucket=load_bucket)

    async def ids() -> list[int]:
        return [entry.id async for part in candidates(queue, clock.now_ms()) for entry in part]

    assert asyncio.run(ids()) == [2]
    assert sorted(messages.cold) == [2, 3]
    clock.advance(100)
    assert messages.cold.wanted(100, messages.peek(100)) == 2
    assert asyncio.run(ids()) == [1, 2, 3]
    assert sorted(messages.cold) == [3]
    clock.advance(100)
    assert asyncio.run(ids()) == [4, 1, 2, 3, 5]
