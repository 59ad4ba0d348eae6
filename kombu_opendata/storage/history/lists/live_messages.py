"""Messages that are available or in flight now: in memory, or in cold buckets, which are in the store."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from ...records import active, keys
from ...records.history_index import OFFSET_MASK, SEGMENT_BITS
from ...slatedb.store_writer import SlateStore
from ...state.store_state import Queue
from ...time_slice import TimeSlice

AVAILABLE, IN_FLIGHT, RUNNING = "available", "in_flight", "running"

#: buckets of one read
_READS = 32

Rows = dict[int, active.AvailableMessage]


class ColdBuckets:
    """The cold buckets that one query needs; each is read once."""

    def __init__(self, store: SlateStore) -> None:
        self._store = store
        self._read: dict[tuple[str, int], Rows] = {}
        self._ranges: dict[str, _Ranges] = {}

    async def rows(self, queue: Queue, number: int) -> Rows:
        """Return the available messages of a bucket by id."""
        place = (queue.name, number)
        await self._load((place,))
        return self._read[place]

    async def read(self, messages: Iterable[tuple[Queue, int]]) -> None:
        """Read the buckets that may have these messages, several in one read."""
        buckets = [(queue.name, number) for queue, id in messages for number in await self._covering(queue, id)]
        for start in range(0, len(buckets), _READS):
            await self._load(buckets[start : start + _READS])

    async def find(self, queue: Queue, id: int) -> active.AvailableMessage | None:
        """Return a message, if it is in one of the queue's cold buckets."""
        for number in await self._covering(queue, id):
            row = (await self.rows(queue, number)).get(id)
            if row is not None:
                return row
        return None

    async def _covering(self, queue: Queue, id: int) -> list[int]:
        """Return the cold buckets that may have a message."""
        if not queue.messages.cold:
            return []
        ranges = self._ranges.get(queue.name)
        if ranges is None:
            ranges = self._ranges[queue.name] = await _Ranges.of(queue)
        return ranges.covering(id)

    async def _load(self, places: Iterable[tuple[str, int]]) -> None:
        """Read the buckets that were not read yet."""
        missing = list(dict.fromkeys(place for place in places if place not in self._read))
        bucket_keys = [keys.active_key(*place) for place in missing]
        for place, key, value in zip(missing, bucket_keys, await self._store.get_many(bucket_keys), strict=True):
            rows = active.decode(key, value)[0] if value is not None else []
            self._read[place] = {row[0]: active.AvailableMessage(*row) for row in rows}


class _Ranges(NamedTuple):
    """A queue's cold buckets, sorted by lowest id, and the running maximum of their highest ids."""

    buckets: list[tuple[int, int, int]]
    highest: list[int]

    @classmethod
    async def of(cls, queue: Queue) -> _Ranges:
        buckets = []
        async for number, summary in TimeSlice().over(list(queue.messages.cold.items())):
            buckets.append((summary.lowest_id, summary.highest_id, number))
        buckets.sort()
        return cls(buckets, list(accumulate((bucket[1] for bucket in buckets), max)))

    def covering(self, id: int) -> list[int]:
        """Return the buckets that may have a message."""
        numbers = []
        at = bisect_left(self.buckets, (id + 1,)) - 1
        while at >= 0 and self.highest[at] >= id:
            if self.buckets[at][1] >= id:
                numbers.append(self.buckets[at][2])
            at -= 1
        return numbers


class Live:
    """The messages that are available or in flight in some queues, segment by segment.

    Cold buckets are read when a segment that they may reach is requested.
    """

    def __init__(self, cold: ColdBuckets, *, descending: bool) -> None:
        self._descending = descending
        self._buckets = cold
        self._masks: dict[int, int] = {}
        self._unread: list[tuple[int, int, int, Queue]] = []  # a heap: (order, serial, bucket, queue)

    @classmethod
    async def of(cls, queues: Iterable[Queue], statuses: Sequence[str], cold: ColdBuckets, *, descending: bool) -> Live:
        """Return the messages of these queues with these statuses."""
        live = cls(cold, descending=descending)
        for queue in queues:
            await live._add_queue(queue, statuses)
        return live

    async def _add_queue(self, queue: Queue, statuses: Sequence[str]) -> None:
        messages = queue.messages
        if IN_FLIGHT in statuses:
            self._add(list(messages.in_flight))
        if AVAILABLE not in statuses:
            return
        unread = self._unread
        # Cold buckets first: a message that is loaded during the loop is seen twice rather than never.
        async for number, summary in TimeSlice().over(list(messages.cold.items())):
            order = -(summary.highest_id >> SEGMENT_BITS) if self._descending else summary.lowest_id >> SEGMENT_BITS
            heapq.heappush(unread, (order, len(unread), number, queue))
        self._add(list(messages.available))

    def _add(self, ids: Iterable[int]) -> None:
        masks = self._masks
        for id in ids:
            segment = id >> SEGMENT_BITS
            masks[segment] = masks.get(segment, 0) | 1 << (id & OFFSET_MASK)

    async def at(self, bound: int) -> tuple[int, int] | None:
        """Return the next segment from ``bound`` on that has messages, and a mask of their offsets."""
        while True:
            segment = self._next(bound)
            if not self._unread:
                break
            cold_segment = -self._unread[0][0] if self._descending else self._unread[0][0]
            if segment is not None and (cold_segment < segment if self._descending else cold_segment > segment):
                break
            _order, _serial, number, queue = heapq.heappop(self._unread)
            self._add(await self._buckets.rows(queue, number))
        return None if segment is None else (segment, self._masks[segment])

    def _next(self, bound: int) -> int | None:
        if self._descending:
            return max((segment for segment in self._masks if segment <= bound), default=None)
        return min((segment for segment in self._masks if segment >= bound), default=None)
