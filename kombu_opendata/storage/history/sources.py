"""Sources of candidates for a query: for each segment of positions, a mask of the positions that may match.

A source returns the next segment from a bound on, in one direction, and the bounds of successive calls only move in
that direction. Values of one dimension are combined by OR; dimensions by AND, skipping the segments that one of them
lacks. The messages that are available or in flight now are in memory or, those of cold buckets, in the store.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeVar

from ..clock import TimeSlice
from ..records import active, history_index, keys
from ..records.history_index import OFFSET_MASK, SEGMENT_BITS
from ..slatedb.store_writer import SlateStore
from ..state.store_state import Queue

T = TypeVar("T")

_BATCH = 8
#: rows that are skipped before the scan restarts at the bound
_MAX_SKIPPED = 64


class NumberRange(NamedTuple):
    """The numbers from ``low`` to ``high``, both included, in one order."""

    low: int
    high: int
    descending: bool

    def of(self, rows: list[tuple[int, T]]) -> list[tuple[int, T]]:
        """Return the ascending rows whose numbers are in the range, in its order."""
        selection = [row for row in rows if self.low <= row[0] <= self.high]
        return selection[::-1] if self.descending else selection


class CandidateSource(Protocol):
    """Candidates by segment."""

    async def at(self, bound: int) -> tuple[int, int] | None:
        """Return the next segment from ``bound`` on with candidates, and their mask; None if there is none."""
        ...


class Fixed:
    """Positions in memory, as a mask for each segment."""

    def __init__(self, positions: Iterable[int] = (), *, descending: bool) -> None:
        self._descending = descending
        self._masks: dict[int, int] = {}
        self._segments: list[int] = []  # in order
        self._add(positions)

    def _add(self, positions: Iterable[int]) -> None:
        masks = self._masks
        for position in positions:
            segment = position >> SEGMENT_BITS
            if segment not in masks:
                masks[segment] = 0
                insort(self._segments, segment)
            masks[segment] |= 1 << (position & OFFSET_MASK)

    def _next(self, bound: int) -> int | None:
        """Return the next segment from ``bound`` on that has positions."""
        segments = self._segments
        at = bisect_right(segments, bound) - 1 if self._descending else bisect_left(segments, bound)
        return segments[at] if 0 <= at < len(segments) else None

    async def at(self, bound: int) -> tuple[int, int] | None:
        segment = self._next(bound)
        return None if segment is None else (segment, self._masks[segment])


class Stored:
    """The postings of one value in the store."""

    def __init__(self, store: SlateStore, space: int, hash: int, *, descending: bool) -> None:
        self._store = store
        self._prefix = keys.history_postings_key(space, hash)
        self._descending = descending
        self._rows: AsyncGenerator[tuple[int, bytes, bytes], None] | None = None
        self._row: tuple[int, bytes, bytes] | None = None
        self._now: tuple[int, int] | None = None

    async def at(self, bound: int) -> tuple[int, int] | None:
        now = self._now
        if now is not None and not self._is_before(now[0], bound):
            return now
        row = await self._seek(bound)
        if row is None:
            self._now = None
            return None
        segment, mask = row[0], 0
        while row is not None and row[0] == segment:
            mask |= history_index.decode_postings(row[1], row[2])
            row = self._row = await self._read()
        self._now = segment, mask
        return self._now

    def _is_before(self, segment: int, bound: int) -> bool:
        return segment > bound if self._descending else segment < bound

    async def _seek(self, bound: int) -> tuple[int, bytes, bytes] | None:
        if self._rows is None:
            self._begin(bound)
            self._row = await self._read()
        skipped = 0
        while self._row is not None and self._is_before(self._row[0], bound):
            skipped += 1
            if skipped > _MAX_SKIPPED:
                self._begin(bound)
            self._row = await self._read()
        return self._row

    def _begin(self, bound: int) -> None:
        low, high = keys.prefix_range(self._prefix)
        if self._descending:
            high = min(high, self._prefix + (bound + 1).to_bytes(8, "big"))
        else:
            low = self._prefix + bound.to_bytes(8, "big")
        self._rows = self._scan(low, high)

    async def _scan(self, low: bytes, high: bytes) -> AsyncGenerator[tuple[int, bytes, bytes], None]:
        start, order = len(self._prefix), self._descending
        batches = self._store.scan_batches(low, high, batch=_BATCH, descending=order, read_ahead_bytes=1 << 16)
        async with aclosing(batches) as reading:
            async for rows in reading:
                for key, value in rows:
                    yield int.from_bytes(key[start : start + 8], "big"), key, value

    async def _read(self) -> tuple[int, bytes, bytes] | None:
        assert self._rows is not None
        return await anext(self._rows, None)


class AnyOf:
    def __init__(self, sources: Sequence[CandidateSource], *, descending: bool) -> None:
        self._sources = list(sources)
        self._descending = descending

    async def at(self, bound: int) -> tuple[int, int] | None:
        segments = [candidate for source in self._sources if (candidate := await source.at(bound)) is not None]
        if not segments:
            return None
        best = max if self._descending else min
        segment = best(candidate[0] for candidate in segments)
        mask = 0
        for at, bits in segments:
            if at == segment:
                mask |= bits
        return segment, mask


class AllOf:
    def __init__(self, sources: Sequence[CandidateSource], *, descending: bool) -> None:
        self._sources = list(sources)
        self._descending = descending

    async def at(self, bound: int) -> tuple[int, int] | None:
        while bound >= 0:
            mask = -1
            for source in self._sources:
                candidate = await source.at(bound)
                if candidate is None:
                    return None
                if candidate[0] != bound:
                    bound = candidate[0]
                    break
                mask &= candidate[1]
            else:
                if mask:
                    return bound, mask
                bound += -1 if self._descending else 1
        return None


async def walk(source: CandidateSource, way: NumberRange) -> AsyncGenerator[list[int], None]:
    """Yield the positions in a range, in order, segment by segment."""
    low, high, descending = way
    bound, last = low >> SEGMENT_BITS, high >> SEGMENT_BITS
    if descending:
        bound, last = last, bound
    while bound >= 0 and (bound >= last if descending else bound <= last):
        candidate = await source.at(bound)
        if candidate is None or (candidate[0] < last if descending else candidate[0] > last):
            return
        segment, mask = candidate
        base = segment << SEGMENT_BITS
        if high < base + OFFSET_MASK:
            mask &= (1 << (high - base + 1)) - 1
        if low > base:
            mask = mask >> (low - base) << (low - base)
        if mask:
            yield bits_of(mask, base, descending=descending)
        bound = segment - 1 if descending else segment + 1


def bits_of(mask: int, base: int, *, descending: bool) -> list[int]:
    text = bin(mask)[:1:-1]
    positions = []
    at = text.find("1")
    while at >= 0:
        positions.append(base + at)
        at = text.find("1", at + 1)
    if descending:
        positions.reverse()
    return positions


AVAILABLE, IN_FLIGHT, RUNNING = "available", "in_flight", "running"

#: buckets of one read
_BUCKETS_AT_ONCE = 32

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
        for start in range(0, len(buckets), _BUCKETS_AT_ONCE):
            await self._load(buckets[start : start + _BUCKETS_AT_ONCE])

    async def find(self, queue: Queue, id: int) -> active.AvailableMessage | None:
        for number in await self._covering(queue, id):
            row = (await self.rows(queue, number)).get(id)
            if row is not None:
                return row
        return None

    async def _covering(self, queue: Queue, id: int) -> list[int]:
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


class _Ranges:
    """A queue's cold buckets, sorted by lowest id, and the running maximum of their highest ids."""

    def __init__(self, buckets: list[tuple[int, int, int]]) -> None:
        self.buckets = buckets
        self.highest = list(accumulate((bucket[1] for bucket in buckets), max))

    @classmethod
    async def of(cls, queue: Queue) -> _Ranges:
        buckets = []
        async for number, summary in TimeSlice().over(list(queue.messages.cold.items())):
            buckets.append((summary.lowest_id, summary.highest_id, number))
        return cls(sorted(buckets))

    def covering(self, id: int) -> list[int]:
        """Return the buckets that may have a message."""
        numbers = []
        at = bisect_left(self.buckets, (id + 1,)) - 1
        while at >= 0 and self.highest[at] >= id:
            if self.buckets[at][1] >= id:
                numbers.append(self.buckets[at][2])
            at -= 1
        return numbers


class Live(Fixed):
    """The messages that are available or in flight in some queues, segment by segment.

    Cold buckets are read when a segment that they may reach is requested.
    """

    def __init__(self, cold: ColdBuckets, *, descending: bool) -> None:
        super().__init__(descending=descending)
        self._buckets = cold
        self._unread: list[tuple[int, int, int, Queue]] = []  # a heap: (order, serial, bucket, queue)

    @classmethod
    async def of(cls, queues: Iterable[Queue], statuses: Sequence[str], cold: ColdBuckets, *, descending: bool) -> Live:
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
