"""The order of delivery over cold buckets with delayed messages, against a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_opendata.storage.state.cold_summaries import Summary
from kombu_opendata.storage.state.queue_buckets import Row
from kombu_opendata.storage.state.queue_state import QueueState

pytestmark = pytest.mark.contract(6, 7)

_TIMES = (0, 5, 10, 15)
#: priority, visible at
_MESSAGES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(_TIMES)), max_size=30)


@given(messages=_MESSAGES, bucket_rows=st.integers(1, 4), loaded=st.sets(st.integers(1, 30)), taken=st.integers(0, 9))
def test_order_over_cold_buckets(
    messages: list[tuple[int, int]], bucket_rows: int, loaded: set[int], taken: int
) -> None:
    """At each time up to ``taken`` messages are delivered, and all others at the end."""
    rows: list[Row] = [(id, priority, at, 0, 0) for id, (priority, at) in enumerate(messages)]
    parts = [rows[first : first + bucket_rows] for first in range(0, len(rows), bucket_rows)]
    buckets = dict(enumerate(parts, 1))
    queue = QueueState("q")
    for number, found in buckets.items():
        if number in loaded:
            queue.restore(number, found, [], 0)
        else:
            queue.note_cold(number, Summary.of(found, 0))
    expected = set(rows)
    for now, count in [*((at, taken) for at in _TIMES), (_TIMES[-1], len(rows))]:
        for _ in range(count):
            best = min((row for row in expected if row[2] <= now), key=lambda row: (row[1], row[0]), default=None)
            entry = _next(queue, buckets, now)
            assert (entry and entry[0]) == (best and best[0])
            if best is None:
                waiting = [row[2] for row in expected]
                assert queue.next_visible_at() == min(waiting, default=None)
                break
            expected.remove(best)
    assert not expected
    assert len(queue) == 0


def _next(queue: QueueState, buckets: dict[int, list[Row]], now: int) -> Row | None:
    """Takes the next message as the loader does it."""
    while (number := queue.cold.wanted(now, queue.peek(now))) is not None:
        queue.restore(number, buckets[number], [], now)
    entry = queue.peek(now)
    if entry is None:
        return None
    queue.claim(entry, bytes(16), now, now + 1000)
    return next(row for row in buckets[entry.bucket] if row[0] == entry.id)
