"""The numbers of ready, in-flight and delayed messages of a queue, without a scan of the ready ones."""

from __future__ import annotations

from typing import NamedTuple

from ...storage.state.queue_state import QueueState
from ..delivery.time_slices import TimeSlice

#: summaries between two checks of the time
_PIECE = 500


class QueueDepths(NamedTuple):
    """The messages of a queue by state."""

    ready: int
    in_flight: int
    delayed: int


async def levels(messages: QueueState, now: int, pace: TimeSlice) -> QueueDepths:
    """Return the depths of a queue now.

    The number of delayed messages is an estimate if some in a cold bucket became visible since the bucket left memory.
    """
    delayed = messages.delayed(now)
    cold = messages.cold
    if cold.next_visible_at is not None:
        for number, summary in enumerate(list(cold.values())):
            delayed += summary.delayed_at(now)
            if number % _PIECE == _PIECE - 1 and pace.is_over:
                await pace.rest()
    backlog = len(messages)
    delayed = min(delayed, backlog)
    return QueueDepths(backlog - delayed, len(messages.in_flight), delayed)
