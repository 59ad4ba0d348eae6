"""Retention of the history: removes old attempts, and index records of deleted messages; searches and merges runs.

A *run* has the positions of rare values. Each part of the index adds two, so their number is limited by merging runs of
the same size, which also leaves out removed positions. Each call removes or merges a bounded part and continues where
the last one ended.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterable, Set
from contextlib import aclosing

from ..clock import TimeSlice
from ..messages.payloads import Payloads
from ..records import history_index, history_log, keys
from ..records.history_index import ATTEMPTS, MESSAGES, SEGMENT_BITS, SEGMENT_SIZE, PostingRun
from ..records.history_trail import BLOCK_BITS
from ..slatedb.store_writer import SlateStore
from ..state.store_state import StoreState
from .history_index import Index, Row, View

#: from this level on a merged run has more page bits, which keeps the size of pages constant
_SPLIT_LEVEL = 2
_SPLIT_BITS = 4
_MAX_PAGE_BITS = 16
#: a merge passes its records to checkpoints in pieces of this size
_PIECE_BYTES = 1 << 20
_READS = 16


async def look_up(store: SlateStore, view: View, space: int, hashes: Iterable[int]) -> dict[int, list[int]]:
    """Return the positions of rare values in all runs, by hash, unordered."""
    positions_by_hash: dict[int, list[int]] = {hash: [] for hash in hashes}
    hashes_by_page: dict[tuple[int, int], list[int]] = {}
    for run in view.runs:
        if run.space == space:
            for hash in positions_by_hash:
                hashes_by_page.setdefault((run.number, hash >> (64 - run.page_bits)), []).append(hash)
    places = list(hashes_by_page)
    for start in range(0, len(places), _READS):
        batch = places[start : start + _READS]
        pages = await _pages(store, space, batch)
        for place, (page_hashes, positions) in zip(batch, pages, strict=True):
            for hash in hashes_by_page[place]:
                positions_by_hash[hash] += _find(page_hashes, positions, hash)
    return positions_by_hash


def _find(hashes: array[int], positions: array[int], hash: int) -> list[int]:
    """Return the positions of a hash. Searching for its bytes is many times as fast as ``array.index``."""
    needle = array("Q", (hash,)).tobytes()
    raw = hashes.tobytes()
    matches = []
    at = raw.find(needle)
    while at >= 0:
        place, off = divmod(at, len(needle))
        if not off:
            matches.append(positions[place])
        at = raw.find(needle, at + 1)
    return matches


async def _pages(
    store: SlateStore, space: int, places: Iterable[tuple[int, int]]
) -> list[tuple[array[int], array[int]]]:
    """Return hashes and positions of these (run, page) pairs; empty for a page that does not exist."""
    page_keys = [keys.history_page_key(space, *place) for place in places]
    return [
        history_index.decode_page(key, value) if value is not None else (array("Q"), array("Q"))
        for key, value in zip(page_keys, await store.get_many(page_keys), strict=True)
    ]


class _Output:
    """A merged run under construction."""

    def __init__(self, space: int, number: int, level: int, bits: int) -> None:
        self._space = space
        self._number = number
        self._level = level
        self._bits = bits
        self._rows: list[tuple[bytes, bytes | None]] = []
        self._pages: dict[int, tuple[array[int], array[int]]] = {}
        self._low = 1 << 64
        self._high = 0
        self._entries = 0
        self.size = 0

    def add(self, hashes: array[int], positions: array[int], living: Set[int]) -> None:
        """Add a page of an input run."""
        shift = 64 - self._bits
        into = self._pages
        for hash, position in zip(hashes, positions, strict=True):
            if position >> SEGMENT_BITS in living:
                columns = into.get(hash >> shift)
                if columns is None:
                    columns = into[hash >> shift] = (array("Q"), array("Q"))
                columns[0].append(hash)
                columns[1].append(position)

    def end_page(self) -> None:
        """Build records, after the page of all runs was added."""
        for number, (hashes, positions) in self._pages.items():
            value = history_index.encode_page(hashes, positions)
            self._rows.append((keys.history_page_key(self._space, self._number, number), value))
            self.size += len(value)
            self._entries += len(hashes)
            self._low, self._high = min(self._low, min(positions)), max(self._high, max(positions))
        self._pages = {}

    def take(self) -> list[tuple[bytes, bytes | None]]:
        """Take the records that were built since the last call."""
        rows = self._rows
        self._rows = []
        self.size = 0
        return rows

    def runs(self) -> list[PostingRun]:
        """Return the run, unless it is empty."""
        if not self._entries:
            return []
        return [PostingRun(self._space, self._number, self._level, self._bits, self._low, self._high, self._entries)]


#: chunks of the log that one sweep removes
_CHUNKS = 500
#: failures of tasks that one sweep removes
_FAILURES = 20_000
#: failures of tasks that one read returns
_FAILURES_AT_ONCE = 500
#: segments that are examined in one round, before the next checkpoint
_SEGMENTS = 8
#: the most rounds of one sweep
_ROUNDS = 32
_SEGMENT_READS = 32


class Sweep:
    """The removal of one engine's old history, and the merge of its runs."""

    def __init__(
        self,
        store: SlateStore,
        state: StoreState,
        payloads: Payloads,
        index: Index,
        checkpoint: Callable[[], Awaitable[None]],
        retention_ms: int,
    ) -> None:
        self._store = store
        self._state = state
        self._payloads = payloads
        self._index = index
        self._checkpoint = checkpoint
        self._retention_ms = retention_ms
        self._lock = asyncio.Lock()
        self._next_segment = self._next_run = 0

    async def begin(self) -> None:
        """Remove incomplete records that remained after a crash."""
        async with self._lock:
            await self._remove_orphans()

    async def _remove_orphans(self) -> None:
        """Remove the pages of runs whose merge was interrupted by a crash. Call it before any merge."""
        run_numbers = {(run.space, run.number) for run in self._index.planned.runs}
        for space in (MESSAGES, ATTEMPTS):
            number = 0
            while True:
                first = keys.history_page_key(space, number, 0)
                end = keys.history_page_key(space, self._index.head.run, 0)
                rows = await self._store.scan(first, end, limit=1)
                if not rows:
                    break
                _space, number, _page_number = keys.parse(rows[0][0]).numbers or (0, 0, 0)
                if (space, number) not in run_numbers:
                    pages = await self._store.scan(rows[0][0], keys.history_page_key(space, number + 1, 0))
                    self._index.queue((key, None) for key, _value in pages)
                number += 1

    async def sweep(self, now: int) -> None:
        """Remove a part of the old attempts and of the index of deleted messages."""
        async with self._lock:
            await self._sweep_log(now - self._retention_ms)
            await self._sweep_attempts()
            await self._sweep_messages()
            await self._prune_one()

    async def _sweep_log(self, limit_ms: int) -> None:
        """Remove indexed chunks whose last attempt ended before ``limit_ms``.

        A chunk without attempts is removed with those before it: its rows are in the index.
        """
        index = self._index
        start, end = keys.kind_range(keys.RecordKind.HISTORY_LOG)
        end = min(end, keys.history_log_key(index.head.attempt, index.head.row))
        removals: list[Row] = []
        first_attempt = index.planned.kept
        batches = self._store.scan_batches(start, end, batch=16, read_ahead_bytes=1 << 16)
        async with aclosing(batches) as reading:
            async for rows in reading:
                for key, value in rows:
                    count = history_log.attempts_of(key, value)
                    if count and history_log.ended_at(key, value, count - 1) >= limit_ms:
                        break
                    removals.append((key, None))
                    first_attempt = max(first_attempt, (keys.parse(key).numbers or (0,))[0] + count)
                else:
                    if len(removals) < _CHUNKS:
                        continue
                break
        index.queue(removals)
        index.keep_from(first_attempt)
        await self._sweep_failures(first_attempt)

    async def _sweep_failures(self, first_attempt: int) -> None:
        """Remove the failures of attempts that are no longer in the log."""
        start, _end = keys.kind_range(keys.RecordKind.TASK_FAILURE)
        batches = self._store.scan_batches(start, keys.task_failure_key(first_attempt), batch=_FAILURES_AT_ONCE)
        async with aclosing(batches) as reading:
            budget = _FAILURES
            async for rows in reading:
                self._index.queue((key, None) for key, _value in rows)
                budget -= len(rows)
                if budget <= 0:
                    return

    async def _sweep_attempts(self) -> None:
        """Remove the index of attempts that are no longer in the log."""
        last = self._index.head.kept >> SEGMENT_BITS
        prefix = keys.history_segment_key(ATTEMPTS)
        end = keys.history_segment_key(ATTEMPTS, last, 0)
        for _ in range(_ROUNDS):
            rows = await self._store.scan(prefix, end, limit=_SEGMENTS)
            if not rows:
                return
            self._index.queue(_records_of(rows))
            await self._checkpoint()

    async def _sweep_messages(self) -> None:
        """Remove the index of segments without messages."""
        complete = keys.history_segment_key(MESSAGES, self._state.next_id >> SEGMENT_BITS, 0)
        for _ in range(_ROUNDS):
            start = keys.history_segment_key(MESSAGES, self._next_segment, 0)
            rows = await self._store.scan(start, complete, limit=_SEGMENTS)
            by_segment: dict[int, list[tuple[bytes, bytes]]] = {}
            for row in rows:
                by_segment.setdefault((keys.parse(row[0]).numbers or (0, 0))[1], []).append(row)
            if not by_segment:
                self._next_segment = 0
                return
            living = await self.living_segments(min(by_segment), max(by_segment))
            # The last segment may have more parts: it is examined again, unless it is the only one.
            self._next_segment = max(by_segment) + (len(by_segment) == 1)
            for segment, records in by_segment.items():
                if segment not in living:
                    self._index.queue(_records_of(records))
                    await self._remove_trail(segment)
            if self._index.is_dirty:
                await self._checkpoint()
            if len(rows) < _SEGMENTS:
                self._next_segment = 0
                return

    async def _remove_trail(self, segment: int) -> None:
        bits = SEGMENT_BITS - BLOCK_BITS
        first, last = (keys.history_trail_key(number << bits, 0) for number in (segment, segment + 1))
        rows = await self._store.scan(first, last, read_ahead_bytes=1 << 16)
        self._index.queue((key, None) for key, _value in rows)

    async def living_segments(self, low: int, high: int) -> Set[int]:
        """Return the segments from ``low`` to ``high`` that have a message or may still receive one."""
        newest = self._state.next_id >> SEGMENT_BITS
        unstored_ids = {*self._payloads.pending_metadata, *self._payloads.flushing_metadata}
        living = {id >> SEGMENT_BITS for id in unstored_ids}
        living |= set(range(max(low, newest), high + 1))
        unknown = [segment for segment in range(low, min(high + 1, newest)) if segment not in living]
        for start in range(0, len(unknown), _SEGMENT_READS):
            batch = unknown[start : start + _SEGMENT_READS]
            first = await asyncio.gather(*(self._has_message(segment) for segment in batch))
            living.update(segment for segment, has in zip(batch, first, strict=True) if has)
        return living

    async def _has_message(self, segment: int) -> bool:
        first = segment * SEGMENT_SIZE
        start, end = keys.metadata_key(first), keys.metadata_key(first + SEGMENT_SIZE)
        return bool(await self._store.scan(start, end, limit=1, read_ahead_bytes=1 << 12))

    # ------------------------------------------------------------------ merges
    async def merge_some(self) -> bool:
        """Merge the runs of one level if there are enough; return True if runs were merged."""
        async with self._lock:
            by_level: dict[tuple[int, int], list[PostingRun]] = {}
            for run in self._index.head.runs:
                same = by_level.setdefault((run.space, run.level), [])
                same.append(run)
                if len(same) == self._state.sizes.index_merge_runs:
                    await self._merge(same, run.level + 1)
                    return True
            return False

    async def _prune_one(self) -> None:
        """Check one run: remove it if none of its segments is alive, rewrite it if at most half of them are."""
        runs = self._index.head.runs
        if not runs:
            return
        self._next_run = (self._next_run + 1) % len(runs)
        run = runs[self._next_run]
        segments = await self._living([run])
        span = (run.high >> SEGMENT_BITS) - (run.low >> SEGMENT_BITS) + 1
        if not segments or (2 * len(segments) <= span and run.level):
            await self._merge([run], run.level)

    async def _living(self, runs: list[PostingRun]) -> Set[int]:
        """Return the segments of these runs that have messages or attempts."""
        low = min(run.low for run in runs) >> SEGMENT_BITS
        high = max(run.high for run in runs) >> SEGMENT_BITS
        if runs[0].space == MESSAGES:
            return await self.living_segments(low, high)
        return set(range(max(low, self._index.planned.kept >> SEGMENT_BITS), high + 1))

    async def _merge(self, runs: list[PostingRun], level: int) -> None:
        """Merge these runs into one, without removed positions; into none if no position remains."""
        space = runs[0].space
        bits = runs[0].page_bits
        extra_bits = _SPLIT_BITS if level > runs[0].level and level >= _SPLIT_LEVEL else 0
        out = _Output(space, self._index.take_runs(1), level, min(bits + extra_bits, _MAX_PAGE_BITS))
        living = await self._living(runs)
        piece = TimeSlice()
        for page in range(1 << bits) if living else ():
            pages = await _pages(self._store, space, [(run.number, page) for run in runs])
            for columns in pages:
                out.add(*columns, living)
                await piece.pause()
            out.end_page()
            if out.size > _PIECE_BYTES:
                self._index.queue(out.take())
                await self._checkpoint()
        old_keys = [
            keys.history_page_key(space, run.number, page) for run in runs for page in range(1 << run.page_bits)
        ]
        self._index.queue(out.take())
        self._index.replace_runs(runs, out.runs(), old_keys)
        await self._checkpoint()  # the next merge uses the stored head


def _records_of(segments: Iterable[tuple[bytes, bytes]]) -> Iterable[Row]:
    """Yield the removals of these segment records and their postings."""
    for key, value in segments:
        space, segment, part = keys.parse(key).numbers or (0, 0, 0)
        for hash in history_index.decode_segment(key, value):
            yield keys.history_postings_key(space, hash, segment, part), None
        yield key, None
