"""Which queues' figures have changed since a client asked before, so that its next answer has only those.

Each answer has a mark, which the client sends back. A queue keeps the mark of the call that first saw its newest
figures, and a number that differs if they do. So nothing is kept for a client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from operator import attrgetter
from typing import NamedTuple

from ...storage.clock import Clock
from ...storage.state.queue_counters import NAMES
from ..delivery.queues import Queues
from ..delivery.time_slices import TimeSlice
from ..model.queue import BrokerQueue
from .figure_memory import FigureMemory

#: deleted queues that are remembered; a client that missed more gets all queues again
MAX_GONE = 1000
_figures = attrgetter(*(f"counts.{name}" for name in NAMES), "is_paused", "refuses_publishes", "tasks_failed")


class _Seen(NamedTuple):
    """What a queue's figures were, as one number, and the mark of the call that saw them first."""

    figures: int
    mark: int


class _Gone(NamedTuple):
    name: str
    mark: int


class Since(NamedTuple):
    """What has changed since a mark.

    Attributes:
        mark: for the next call.
        queues: those whose figures may have changed.
        gone: queues that were deleted; None if that is not known any more, and all queues are here.
    """

    mark: int
    queues: list[BrokerQueue]
    gone: list[str] | None


class InstanceChanges:
    """Tells what has changed in one instance."""

    def __init__(self, queues: Queues, memory: FigureMemory, clock: Clock) -> None:
        self._queues = queues
        self._memory = memory
        self._clock = clock
        self._mark = self._first = clock.now_ms()  # so those of another start of the broker are older or newer
        self._seen: dict[BrokerQueue, _Seen] = {}
        self._gone: deque[_Gone] = deque()
        self._lock = asyncio.Lock()

    async def since(self, mark: int) -> Since:
        """What has changed since the call that returned this mark; everything for a mark that is not known."""
        async with self._lock:
            last, self._mark = self._mark, self._mark + 1
            await self._note_gone()
            knows = self._first <= mark <= last
            found, now = [], self._clock.now_ms()
            async for queue in TimeSlice().over(list(self._queues.values())):
                if self._see(queue, now) > mark or not knows:
                    found.append(queue)
            gone = [one.name for one in self._gone if one.mark > mark]
            return Since(self._mark, found, gone if knows else None)

    async def _note_gone(self) -> None:
        async for queue in TimeSlice().over(list(self._seen)):
            if self._queues.get(queue.name) is not queue:
                del self._seen[queue]
                if queue.name not in self._queues:
                    self._gone.append(_Gone(queue.name, self._mark))
        while len(self._gone) > MAX_GONE:
            self._first = self._gone.popleft().mark

    def _see(self, queue: BrokerQueue, now: int) -> int:
        """The mark of the call that saw the newest figures first."""
        figures, seen = self._figures_of(queue, now), self._seen.get(queue)
        if seen is None or figures is None or seen.figures != figures:
            seen = self._seen[queue] = _Seen(figures or 0, self._mark)
        return seen.mark

    def _figures_of(self, queue: BrokerQueue, now: int) -> int | None:
        """A number that differs if the figures do; None if they change with time."""
        messages = queue.messages
        due = messages.next_visible_at()
        if due is not None and due <= now:
            messages.promote(now)
            due = messages.next_visible_at()
            if due is not None and due <= now:
                return None
        waiting, held = len(messages), len(messages.in_flight)
        own = waiting, held, messages.delays, len(queue.consumers), due, self._memory.recent_in(queue)
        return hash((_figures(queue), own, queue.settled_version()))
