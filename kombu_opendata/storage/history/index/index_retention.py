"""Retention of the history: removes old attempts, and index records of deleted messages.

Each call removes a bounded part and continues where the last one ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Set
from contextlib import aclosing

from ...messages.payloads import Payloads
from ...records import history_index, history_log, keys
from ...records.history_index import ATTEMPTS, MESSAGES, SEGMENT_BITS, SEGMENT_SIZE
from ...records.history_trail import BLOCK_BITS
from ...slatedb.store_writer import SlateStore
from ...state.store_state import StoreState
from .history_index import Index, Row
from .value_runs import Merger

#: chunks of the log that one sweep removes
_CHUNKS = 500
#: failures of tasks that one sweep removes, and that one read returns
_FAILURES = 20_000
_FAILURES_AT_ONCE = 500
#: segments that are examined before the next checkpoint, and the most rounds of this per sweep
_SEGMENTS = 8
_ROUNDS = 32
_READS = 32


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
        self._store, self._state, self._payloads = store, state, payloads
        self._index = index
        self._checkpoint = checkpoint
        self._retention_ms = retention_ms
        self._merger = Merger(store, index, checkpoint, self.living_segments)
        self._lock = asyncio.Lock()
        self._next_segment = 0

    async def begin(self) -> None:
        """Remove incomplete records that remained after a crash."""
        async with self._lock:
            await self._merger.remove_orphans()

    async def merge_some(self) -> bool:
        """Merge some runs if there are many; return True if runs were merged."""
        async with self._lock:
            return await self._merger.merge_some()

    async def sweep(self, now: int) -> None:
        """Remove a part of the old attempts and of the index of deleted messages."""
        async with self._lock:
            await self._sweep_log(now - self._retention_ms)
            await self._sweep_attempts()
            await self._sweep_messages()
            await self._merger.prune_one()

    async def _sweep_log(self, limit_ms: int) -> None:
        """Remove indexed chunks whose last attempt ended before ``limit_ms``.

        A chunk without attempts is removed with those before it: its rows are in the index.
        """
        index = self._index
        start, end = keys.kind_range(keys.RecordKind.HISTORY_LOG)
        end = min(end, keys.history_log_key(index.head.attempt, index.head.row))
        removals: list[Row] = []
        first_kept = index.planned.kept
        batches = self._store.scan_batches(start, end, batch=16, read_ahead_bytes=1 << 16)
        async with aclosing(batches) as reading:
            async for rows in reading:
                for key, value in rows:
                    count = history_log.attempts_of(key, value)
                    if count and history_log.ended_at(key, value, count - 1) >= limit_ms:
                        break
                    removals.append((key, None))
                    first_kept = max(first_kept, (keys.parse(key).numbers or (0,))[0] + count)
                else:
                    if len(removals) < _CHUNKS:
                        continue
                break
        index.queue(removals)
        index.keep_from(first_kept)
        await self._sweep_failures(first_kept)

    async def _sweep_failures(self, kept: int) -> None:
        """Remove the failures of attempts that are no longer in the log."""
        start, _end = keys.kind_range(keys.RecordKind.TASK_FAILURE)
        batches = self._store.scan_batches(start, keys.task_failure_key(kept), batch=_FAILURES_AT_ONCE)
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
        prefix, end = keys.history_segment_prefix(ATTEMPTS), keys.history_segment_key(ATTEMPTS, last, 0)
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
        for start in range(0, len(unknown), _READS):
            batch = unknown[start : start + _READS]
            first = await asyncio.gather(*(self._has_message(segment) for segment in batch))
            living.update(segment for segment, has in zip(batch, first, strict=True) if has)
        return living

    async def _has_message(self, segment: int) -> bool:
        first = segment * SEGMENT_SIZE
        start, end = keys.metadata_key(first), keys.metadata_key(first + SEGMENT_SIZE)
        return bool(await self._store.scan(start, end, limit=1, read_ahead_bytes=1 << 12))


def _records_of(segments: Iterable[tuple[bytes, bytes]]) -> Iterable[Row]:
    """Yield the removals of these segment records and their postings."""
    for key, value in segments:
        space, segment, part = keys.parse(key).numbers or (0, 0, 0)
        for hash in history_index.decode_segment(key, value):
            yield keys.history_postings_key(space, hash, segment, part), None
        yield key, None
