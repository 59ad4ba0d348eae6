"""How many messages of a queue are ready, in flight and delayed, without a look at those that are ready."""

from __future__ import annotations

from typing import NamedTuple

from ...storage.state.queue_state import QueueState
from ..delivery.time_slices import TimeSlice

#: summaries between two checks of the time
_PIECE = 500


class QueueDepths(NamedTuple):
    """Messages of a queue by state."""

    ready: int
    in_flight: int
    delayed: int


async def levels(messages: QueueState, now: int, pace: TimeSlice) -> QueueDepths:
    """The levels of a queue now.

    The delayed ones are an estimate where some in a cold bucket have become visible since it left memory.
    """
    delayed = messages.delayed(now)
    cold = messages.cold
    if cold.next_visible_at is not None:
        for number, summary in enumerate(list(cold.values())):
            delayed += summary.delayed_at(now)
            if number % _PIECE == _PIECE - 1 and pace.is_over:
                await pace.rest()
    waiting = len(messages)
    delayed = min(delayed, waiting)
    return QueueDepths(waiting - delayed, len(messages.in_flight), delayed)
