"""Sources of candidates: for each segment, a mask of the positions that may match.

A source returns the next segment from a bound on, in one direction, and the bounds of successive calls only move in
that direction. Values of one dimension are combined by OR; dimensions by AND, skipping the segments that one of them
lacks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol

from ...records import history_index, keys
from ...records.history_index import OFFSET_MASK, SEGMENT_BITS, mask_of
from ...slatedb.store_writer import SlateStore
from ..index.history_index import View
from ..index.value_runs import look_up

_BATCH = 8
#: rows that are skipped before the scan restarts at the bound
_MAX_SKIPPED = 64


class CandidateSource(Protocol):
    """Candidates by segment."""

    async def at(self, bound: int) -> tuple[int, int] | None:
        """Return the next segment from ``bound`` on with candidates, and their mask; None if there is none."""
        ...


class Fixed:
    """Positions in memory."""

    def __init__(self, positions: Iterable[int], *, descending: bool) -> None:
        self._positions = sorted(set(positions))
        self._descending = descending

    async def at(self, bound: int) -> tuple[int, int] | None:
        positions = self._positions
        if self._descending:
            end = bisect_left(positions, (bound + 1) << SEGMENT_BITS)
            if not end:
                return None
            segment = positions[end - 1] >> SEGMENT_BITS
            start = bisect_left(positions, segment << SEGMENT_BITS)
        else:
            start = bisect_left(positions, bound << SEGMENT_BITS)
            if start == len(positions):
                return None
            segment = positions[start] >> SEGMENT_BITS
            end = bisect_right(positions, segment << SEGMENT_BITS | OFFSET_MASK)
        return segment, mask_of([position & OFFSET_MASK for position in positions[start:end]])


class Stored:
    """The postings of one value in the store."""

    def __init__(self, store: SlateStore, space: int, hash: int, *, descending: bool) -> None:
        self._store = store
        self._prefix = keys.history_postings_prefix(space, hash)
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
        batches = self._store.scan_batches(
            low, high, batch=_BATCH, descending=self._descending, read_ahead_bytes=1 << 16
        )
        start = len(self._prefix)
        async with aclosing(batches) as reading:
            async for rows in reading:
                for key, value in rows:
                    yield int.from_bytes(key[start : start + 8], "big"), key, value

    async def _read(self) -> tuple[int, bytes, bytes] | None:
        assert self._rows is not None
        return await anext(self._rows, None)


class AnyOf:
    """The union of these sources."""

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
    """The intersection of these sources."""

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


async def values_source(
    store: SlateStore, view: View, space: int, hashes: Sequence[int], *, descending: bool
) -> CandidateSource:
    """Return the positions that have any of these values."""
    positions = [place for part in view.parts for hash in hashes for place in part.find(space, hash)]
    rare = await look_up(store, view, space, hashes)
    positions += [place for places in rare.values() for place in places]
    sources = [Stored(store, space, hash, descending=descending) for hash in hashes]
    return AnyOf([Fixed(positions, descending=descending), *sources], descending=descending)


async def walk(source: CandidateSource, start: int, stop: int, *, descending: bool) -> AsyncGenerator[list[int], None]:
    """Yield the positions from ``start`` to ``stop``, both included, in order, segment by segment."""
    bound, last = start >> SEGMENT_BITS, stop >> SEGMENT_BITS
    while bound >= 0 and (bound >= last if descending else bound <= last):
        candidate = await source.at(bound)
        if candidate is None or (candidate[0] < last if descending else candidate[0] > last):
            return
        segment, mask = candidate
        base = segment << SEGMENT_BITS
        low, high = (stop, start) if descending else (start, stop)
        if high < base + OFFSET_MASK:
            mask &= (1 << (high - base + 1)) - 1
        if low > base:
            mask = mask >> (low - base) << (low - base)
        if mask:
            yield bits_of(mask, base, descending=descending)
        bound = segment - 1 if descending else segment + 1


def bits_of(mask: int, base: int, *, descending: bool) -> list[int]:
    """Return the positions of the bits that are set in a mask."""
    text = bin(mask)[:1:-1]
    positions = []
    at = text.find("1")
    while at >= 0:
        positions.append(base + at)
        at = text.find("1", at + 1)
    if descending:
        positions.reverse()
    return positions
