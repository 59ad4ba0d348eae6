"""Changes of queues' metrics since a client's last request, so that the next reply has only the changes.

Each reply has a mark, which the client sends back in its next request. The broker records, for each queue, a hash of
its metrics and the mark of the first call that returned them. So the broker records nothing per client.
"""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import NamedTuple

from ...storage.clock import Clock, TimeSlice
from ...storage.state.queue_counters import NAMES
from ..delivery.queue_registry import Queues
from ..model.queue import BrokerQueue
from .metrics_memory import MetricsMemory

#: maximum number of deleted queues that are remembered; a client that missed more gets all queues again
MAX_GONE = 1000
_values_of = attrgetter(*(f"counts.{name}" for name in NAMES), "is_paused", "refuses_publishes", "tasks_failed")


class Since(NamedTuple):
    """Changes since a mark."""

    mark: int  # for the next call
    queues: list[BrokerQueue]  # queues whose metrics may have changed
    gone: list[str] | None  # deleted queues; None if they are unknown, in which case ``queues`` has all queues


class InstanceChanges:
    """Changes of the queues of one instance."""

    def __init__(self, queues: Queues, memory: MetricsMemory, clock: Clock, *, max_gone: int = MAX_GONE) -> None:
        self._queues = queues
        self._memory = memory
        self._clock = clock
        self._max_gone = max_gone
        self._mark = self._first = clock.now_ms()  # so that the marks of other runs of the broker are out of range
        # the hash of a queue's metrics, and the mark of the first call that returned them
        self._returned: dict[BrokerQueue, tuple[int, int]] = {}
        self._gone: dict[str, int] = {}  # deleted queues, and the mark of the call that noticed it
        self._lock = asyncio.Lock()

    async def since(self, mark: int) -> Since:
        """Return the changes since the call that returned this mark; all queues if the mark is unknown."""
        async with self._lock:
            last, self._mark = self._mark, self._mark + 1
            await self._note_gone()
            knows = self._first <= mark <= last
            changed, now = [], self._clock.now_ms()
            async for queue in TimeSlice().over(list(self._queues.values())):
                if self._see(queue, now) > mark or not knows:
                    changed.append(queue)
            deleted_names = [name for name, at in self._gone.items() if at > mark]
            return Since(self._mark, changed, deleted_names if knows else None)

    async def _note_gone(self) -> None:
        async for queue in TimeSlice().over(list(self._returned)):
            if self._queues.get(queue.name) is not queue:
                del self._returned[queue]
                if queue.name not in self._queues:
                    self._gone.pop(queue.name, None)
                    self._gone[queue.name] = self._mark
        while len(self._gone) > self._max_gone:
            self._first = self._gone.pop(next(iter(self._gone)))

    def _see(self, queue: BrokerQueue, now: int) -> int:
        """Return the mark of the first call that returned the current metrics of a queue."""
        values_hash = self._hash_of(queue, now)
        earlier_hash, mark = self._returned.get(queue, (None, 0))
        if values_hash is None or values_hash != earlier_hash:
            mark = self._mark
            self._returned[queue] = values_hash or 0, mark
        return mark

    def _hash_of(self, queue: BrokerQueue, now: int) -> int | None:
        """Return a number that differs if the metrics do; None if they change with time."""
        messages = queue.messages
        due = messages.next_visible_at()
        if due is not None and due <= now:
            messages.promote(now)
            due = messages.next_visible_at()
            if due is not None and due <= now:
                return None
        backlog, in_flight = len(messages), len(messages.in_flight)
        depths = backlog, in_flight, messages.delays, len(queue.consumers), due, self._memory.recent_in(queue)
        return hash((_values_of(queue), depths, queue.settled_version()))
