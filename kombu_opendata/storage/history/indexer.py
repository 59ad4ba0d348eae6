"""The indexer: adds the log to the index, a few milliseconds at a time, in the background or before a query.

The indexer takes closed chunks from memory, or else from the store, and adds them to a part in memory, where queries
find them. A part that is large enough is converted to records. The next checkpoint writes these together with the place
up to which the log is indexed; after a crash, indexing resumes there.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping

from ...protocol.task_reports import STATES
from ..clock import TimeSlice
from ..engine_sizes import EngineSizes
from ..messages.payloads import Payloads
from ..read.stored_messages import read_metadata_records
from ..records import history_log, keys, metadata
from ..records.history_index import ATTEMPTS, MESSAGES, PostingRun
from ..records.history_log import DETAILED, MANUAL, OUTCOMES, SETTLED_BY
from ..records.history_trail import LEFT, TrailEvent
from ..slatedb.store_writer import SlateStore
from ..state.history_log import HeaderColumns, HistoryLog, LogChunk, Place
from . import value_hashes
from .history_index import Group, Index, Part, Row
from .kept_headers import CollectedHeaders
from .value_hashes import Hashes, Values

#: most parts whose records wait for a checkpoint
_MAX_FROZEN = 2
#: time for which the event loop is blocked
PIECE_SECONDS = 0.004
#: least time for which the loop is blocked after headers were read
_READ_SLICE_SECONDS = 0.0005
#: steps between two readings of the clock
_STEPS = 16
#: messages that were routed to one queue and are indexed in one step
_RUN = 256
#: the widest gap between the ids of metadata records that are read together
_MAX_GAP = 16
_NOTHING = Values((), ())


class Indexer:
    """The indexer of one instance's log, which is indexed up to ``place``, in memory or in the store."""

    def __init__(
        self,
        store: SlateStore,
        payloads: Payloads,
        log: HistoryLog,
        index: Index,
        collected: CollectedHeaders,
        checkpoint: Callable[[], Awaitable[None]],
        sizes: EngineSizes,
    ) -> None:
        self._store, self._payloads = store, payloads
        self._reads = sizes.index_reads
        self._part_rows = sizes.index_part_rows
        self._rare = sizes.index_rare
        self._max_known = sizes.index_messages
        self._log = log
        self._index = index
        self._collected = collected
        self._checkpoint = checkpoint
        self.hashes = Hashes(sizes.index_values)
        self.place: Place = (0, 0)
        self._lock = asyncio.Lock()
        self._chunk_headers: _ChunkHeaders | None = None
        self._work: Iterator[bool] | None = None
        self._header_cache: OrderedDict[int, Values] = OrderedDict()

    @property
    def lag(self) -> int:
        """The approximate number of rows that are not indexed yet."""
        attempt, row = self._log.end
        return attempt - self.place[0] + row - self.place[1]

    # ------------------------------------------------------------------ steps
    async def catch_up(self, max_lag: int = 0, step_seconds: float = PIECE_SECONDS) -> None:
        """Index the log up to now, or until at most ``max_lag`` rows wait, yielding to other tasks after each step.

        A step has twice the time that the other tasks took, as they may add rows and the index waits for reads.
        """
        log, piece = self._log, TimeSlice(step_seconds, most_seconds=PIECE_SECONDS)
        target = log.end
        while self.place < target and self.lag > max_lag:
            if log.open.place == self.place:
                log.close_chunk()
            if len(self._index.frozen) >= _MAX_FROZEN:
                await self._checkpoint()
            await self.work(piece.seconds)
            await piece.rest()

    async def work(self, seconds: float, *, may_read: bool = True) -> bool:
        """Index for about this time; return True if there is more to index.

        Without ``may_read``, a chunk that needs a read from the store waits.
        """
        async with self._lock:
            piece = TimeSlice(seconds)
            if self._work is None:
                if len(self._index.frozen) >= _MAX_FROZEN:
                    return False
                if self._chunk_headers is None:
                    chunk = await self._next_chunk()
                    if chunk is not None:
                        self._chunk_headers = _ChunkHeaders(chunk, self._header_cache)
                while self._chunk_headers is not None and self._chunk_headers.wanted:
                    if not may_read:
                        return True
                    await self._read_some(self._chunk_headers, seconds)
                    if piece.is_over:
                        return True
                self._work = self._next_work()
                if self._work is None:
                    return False
            for number, takes_long in enumerate(self._work):
                if (takes_long or number % _STEPS == 0) and piece.is_over:
                    return True
            self._work = None
            return True

    def _next_work(self) -> Iterator[bool] | None:
        """Return the steps that index the chunk whose headers are in memory.

        Without such a chunk, the steps freeze the open part if there are many kept headers: these are deleted when the
        part is stored. None if there is nothing to do.
        """
        chunk_headers, self._chunk_headers = self._chunk_headers, None
        if chunk_headers is not None:
            return self._index_chunk(chunk_headers.chunk, chunk_headers.values)
        part = self._index.open
        return self._freeze(part) if part.attempted and self._collected.are_many else None

    async def _next_chunk(self) -> LogChunk | None:
        """Return the closed chunk at the indexer's place."""
        log = self._log
        if log.open.place == self.place:
            return None
        first = log.chunks[0] if log.chunks else log.open
        if first.place > self.place:
            return await self._stored_chunk()
        return next((chunk for chunk in log.chunks if chunk.place == self.place), None)

    async def _stored_chunk(self) -> LogChunk | None:
        start = keys.history_log_key(*self.place)
        _start, end = keys.kind_range(keys.RecordKind.HISTORY_LOG)
        rows = await self._store.scan(start, end, limit=1, read_ahead_bytes=1 << 16)
        log = self._log
        in_memory = log.chunks[0].place if log.chunks else log.open.place
        for key, value in rows:
            attempt, row = keys.parse(key).numbers or (0, 0)
            if (attempt, row) < in_memory:
                self.place = (attempt, row)  # the rows in between are past their retention
                return LogChunk.of(self.place, history_log.decode(key, value))
        self.place = max(in_memory, self.place)
        log.indexed(self.place)
        return None

    # ------------------------------------------------------------------ headers
    async def _read_some(self, chunk_headers: _ChunkHeaders, seconds: float) -> None:
        """Read the headers of the next messages; those of collected messages have their own records."""
        ids = chunk_headers.take(self._reads)
        try:
            await self._read(chunk_headers, ids, seconds)
        except BaseException:
            chunk_headers.wanted += reversed(ids)  # read them in the next call
            raise

    async def _read(self, chunk_headers: _ChunkHeaders, ids: list[int], seconds: float) -> None:
        records = await read_metadata_records(self._store, self._payloads, ids, in_thread=False)
        async for id, record in TimeSlice(_READ_SLICE_SECONDS, most_seconds=seconds).over(records.items()):
            headers = metadata.decode(keys.metadata_key(id), record).headers
            chunk_headers.values[id] = self.hashes.headers(headers)
        chunk_headers.missing.update(id for id in ids if id not in chunk_headers.values)
        if not chunk_headers.wanted and chunk_headers.missing:
            for id, pairs in (await self._collected.find(chunk_headers.missing)).items():
                chunk_headers.values[id] = self.hashes.headers(dict(pairs))

    # ------------------------------------------------------------------ indexing
    def _index_chunk(self, chunk: LogChunk, read: dict[int, Values]) -> Iterator[bool]:
        """Index one chunk, a row or some hundred similar ones at each step; yield True if the step was a long one."""
        part, cache, values_of = self._index.open, self._header_cache, self.hashes.headers
        columns: HeaderColumns | None = None
        ids: list[int] = []  # messages with headers in these columns
        for id, headers in chunk.headers.items():
            if columns is not None and headers is not columns:
                self._index_columns(part, columns, ids, read)
                columns, ids = None, []
                yield True
            if isinstance(headers, HeaderColumns):
                columns = headers
                ids.append(id)
                continue
            values = values_of(headers) if headers is not None else read.get(id, _NOTHING)
            cache[id] = read[id] = values
            if len(cache) > self._max_known:
                cache.popitem(last=False)
            part.add(MESSAGES, id, *values)
            yield False
        if columns is not None:
            self._index_columns(part, columns, ids, read)
            yield True
        for queue, ids in chunk.routed.items():
            group = (self.hashes(value_hashes.QUEUE, queue),)
            for start in range(0, len(ids), _RUN):
                part.add_routed(ids[start : start + _RUN], queue, group)
                yield True
        for row in chunk.left:
            part.event(TrailEvent(row.message_id, row.queue, LEFT + row.reason, 0, row.at_ms))
            yield False
        yield from self._index_attempts(part, chunk, read)
        part.rows += len(chunk)
        self.place = chunk.end
        self._log.indexed(self.place)
        if part.rows >= self._part_rows:
            yield from self._freeze(part)

    def _index_columns(self, part: Part, columns: HeaderColumns, ids: list[int], read: dict[int, Values]) -> None:
        rows = self.hashes.columns(columns)
        values = [rows[id - columns.first_id] for id in ids]
        by_id = dict(zip(ids, values, strict=True))
        read.update(by_id)
        cache = self._header_cache
        cache.update(by_id)
        while len(cache) > self._max_known:
            cache.popitem(last=False)
        part.add_all(MESSAGES, ids, values)

    def _index_attempts(self, part: Part, chunk: LogChunk, read: dict[int, Values]) -> Iterator[bool]:
        groups: dict[tuple[str, str, int, int, str], tuple[Group, Group]] = {}
        for number, row in enumerate(chunk.attempts, chunk.first_attempt):
            id = row.message_id
            values = read.get(id, _NOTHING)
            which = (row.queue, row.consumer, row.outcome, row.state, row.exception)
            groups_of_row = groups.get(which)
            if groups_of_row is None:
                groups_of_row = groups[which] = self._groups(*which)
            attempt_group, message_group = groups_of_row
            part.add(ATTEMPTS, number, *values)
            part.add(ATTEMPTS, number, attempt_group, (value_hashes.message_hash(id),))
            if message_group:
                part.add(MESSAGES, id, message_group)
            part.event(TrailEvent(id, row.queue, row.outcome, row.number, row.ended_at_ms, number))
            part.attempted.add(id)
            yield False

    def _groups(self, queue: str, consumer: str, outcome: int, state: int, exception: str) -> tuple[Group, Group]:
        """Return the hashes for an attempt with these values, and the hashes that it adds for its message."""
        hash_of = self.hashes
        code = outcome & ~MANUAL
        hashes = [
            hash_of(value_hashes.QUEUE, queue),
            hash_of(value_hashes.OUTCOME, OUTCOMES[code]),
            hash_of(value_hashes.CONSUMER, consumer),
        ]
        if outcome & MANUAL:
            hashes.append(hash_of(value_hashes.OUTCOME, "manual"))
        if state:
            hashes.append(hash_of(value_hashes.STATE, STATES[state & ~DETAILED]))
        if exception:
            hashes.append(hash_of(value_hashes.EXCEPTION, exception))
        status = SETTLED_BY.get(code)
        if status is None:
            return tuple(hashes), ()
        return tuple(hashes), (hash_of(value_hashes.SETTLED, status), hash_of(value_hashes.SETTLED, status, queue))

    def _freeze(self, part: Part) -> Iterator[bool]:
        index = self._index
        index.frozen.append(part)
        index.open = Part()
        place = self.place
        rows: list[Row] = []
        first = index.take_runs(2)
        new_runs: list[PostingRun] = []
        for runs in part.write(index.planned.part, (first, first + 1), rows, self._rare):
            new_runs = runs
            yield True
        index.wrote(part, rows, new_runs, place)


class _ChunkHeaders:
    """The header values of a chunk's messages, except those whose headers are in the chunk.

    Reading them takes longest, so it is done in pieces, too. Cached values are copied, as the cache may evict them.
    """

    def __init__(self, chunk: LogChunk, cache: Mapping[int, Values]) -> None:
        self.chunk = chunk
        new = chunk.headers
        ids = {id for id, headers in new.items() if headers is None}
        ids |= {row.message_id for row in chunk.attempts if row.message_id not in new}
        self.values = {id: cache[id] for id in ids if id in cache}
        self.wanted = sorted(ids - self.values.keys(), reverse=True)
        self.missing: set[int] = set()  # messages without metadata

    def take(self, limit: int) -> list[int]:
        """Take the next ids, which are close enough to each other for one read."""
        pending = self.wanted
        ids = [pending.pop()]
        while pending and len(ids) < limit and pending[-1] - ids[-1] <= _MAX_GAP:
            ids.append(pending.pop())
        return ids
