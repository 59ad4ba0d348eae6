"""The history service of an engine: checkpoints, background indexing, retention, and the lists for the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import asynccontextmanager

from ...protocol.messages import AttemptInfo, MessageInfo
from ..messages.payloads import Payloads
from ..records import history_log, keys
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_writer import SlateStore
from ..state.history_log import HistoryLog, LogChunk
from ..state.store_state import StoreState
from .candidates import attempt_dimensions, message_info
from .history_index import Index
from .index_retention import Sweep
from .indexer import Indexer
from .kept_headers import CollectedHeaders
from .pages import ListPage, attempt_infos, count_attempts, count_messages, list_attempts, list_messages
from .query import ListFilters, Paging, TimeBuckets
from .reader import ListReader

#: retention of attempts
DEFAULT_RETENTION_SECONDS = 14 * 86_400.0
#: interval at which the background task checks for rows to index, and duration of its work: while messages flow, while
#: they flow and many rows wait, and when the engine is idle; an idle engine makes only short pauses while rows wait
_CHECK_SECONDS = 0.1
_BUSY_SECONDS = 0.001
_BEHIND_SECONDS = 0.0025
_IDLE_SECONDS = 0.02
_PAUSE_SECONDS = 0.02
#: number of rows that wait for indexing above which the indexer is behind
_MUCH = 200_000


class History:
    """The history of one instance. ``checkpoint`` writes the records that are queued."""

    def __init__(
        self,
        store: SlateStore,
        state: StoreState,
        payloads: Payloads,
        checkpoint: Callable[[], Awaitable[None]],
        retention_ms: int,
    ) -> None:
        self._store, self._state, self._payloads = store, state, payloads
        self.retention_ms = retention_ms
        self.log = HistoryLog()
        self.index = Index()
        self.collected = CollectedHeaders(store, payloads, self.log, self.index)
        self.indexer = Indexer(store, payloads, self.log, self.index, self.collected, checkpoint)
        self.sweeper = Sweep(store, state, payloads, self.index, checkpoint, retention_ms)
        self._saving: list[LogChunk] = []

    @property
    def enabled(self) -> bool:
        return self._state.history is not None

    # ------------------------------------------------------------------ checkpoints
    async def load(self) -> HistoryLog:
        """Load the log, which continues where the stored one ends. Call it before the journal is replayed."""
        await self.index.load(self._store)
        await self.collected.load()
        head = self.index.head
        self.indexer.place = head.attempt, head.row
        self.log.begin_at(self.indexer.place)
        rows = await self._store.scan(*keys.kind_range(keys.RecordKind.HISTORY_LOG), limit=1, descending=True)
        for key, value in rows:
            attempt, row = keys.parse(key).numbers or (0, 0)
            last = LogChunk.of((attempt, row), history_log.decode(key, value))
            if last.end > self.indexer.place:
                self.log.begin_at(last.end)
        self.log.indexed(self.indexer.place)
        return self.log

    def snapshot(self, batch: WriteBatch) -> None:
        """Add all unstored records to a checkpoint's batch."""
        if self.enabled:
            self._saving = self.log.snapshot(batch)
            self.index.snapshot(batch)
            self.collected.snapshot(batch)

    async def before_deletion(self, ids: Set[int], batch: WriteBatch) -> None:
        """Store the headers of these messages that the index may still need; the checkpoint deletes the messages."""
        if self.enabled:
            await self.collected.keep(ids, batch)

    def end_flush(self) -> None:
        """Mark the snapshot as stored; its checkpoint is complete."""
        if self.enabled:
            self.log.saved(self._saving)
            self._saving = []
            self.index.end_flush()

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        return self.enabled and (self.log.is_dirty or self.index.is_dirty)

    # ------------------------------------------------------------------ background work
    async def run(self) -> None:
        """Index until cancelled, with at most a fortieth of the time while messages flow and half of it otherwise.

        Raises:
            StoreError: the store failed permanently.
        """
        if not self.enabled:
            return
        await self.sweeper.begin()
        position, pause = self.log.end, _CHECK_SECONDS
        while True:
            await asyncio.sleep(pause)
            before, position = position, self.log.end
            pause = _CHECK_SECONDS
            if position != before:
                is_behind = self.indexer.lag > _MUCH
                await self.indexer.work(_BEHIND_SECONDS if is_behind else _BUSY_SECONDS, may_read=is_behind)
            elif await self.indexer.work(_IDLE_SECONDS) or await self.sweeper.merge_some():
                pause = _PAUSE_SECONDS

    async def sweep(self, now: int) -> None:
        """Remove a bounded part of the history that is past its retention."""
        if self.enabled:
            await self.sweeper.sweep(now)
            self._state.handled.drop_before(self.index.planned.kept)

    # ------------------------------------------------------------------ reading
    @asynccontextmanager
    async def reading(self, *, indexed: bool) -> AsyncIterator[ListReader]:
        """Open a reader of the history up to now; ``indexed``: first complete the index, too."""
        if indexed:
            await self.indexer.catch_up()
        self.log.close_chunk()
        with self.index.reading() as view:
            yield ListReader(self._store, self._state, self._payloads, self.log, self.index, view)

    async def list_messages(self, filters: ListFilters, paging: Paging) -> ListPage[MessageInfo]:
        """Return a page of messages, see :func:`.pages.list_messages`."""
        async with self.reading(indexed=True) as reader:
            return await list_messages(reader, filters, paging)

    async def list_attempts(
        self, filters: ListFilters, paging: Paging, *, bodies: bool = False, tracebacks: bool = False
    ) -> ListPage[AttemptInfo]:
        """Return a page of attempts, see :func:`.pages.list_attempts`."""
        async with self.reading(indexed=bool(attempt_dimensions(filters))) as reader:
            return await list_attempts(reader, filters, paging, bodies=bodies, tracebacks=tracebacks)

    async def count_messages(self, filters: ListFilters, buckets: TimeBuckets) -> list[int]:
        """Count messages, see :mod:`.pages`; the times of the filters must be within the buckets."""
        async with self.reading(indexed=True) as reader:
            return await count_messages(reader, filters, buckets)

    async def count_attempts(self, filters: ListFilters, buckets: TimeBuckets) -> list[int]:
        """Count attempts, see :mod:`.pages`; the times of the filters must be within the buckets."""
        async with self.reading(indexed=bool(attempt_dimensions(filters))) as reader:
            return await count_attempts(reader, filters, buckets)

    async def message(self, id: int) -> MessageInfo | None:
        """Return a message, if it is in the store."""
        async with self.reading(indexed=True) as reader:
            metadata = (await reader.metadata([id])).get(id)
            return None if metadata is None else message_info(metadata, (await reader.statuses([id]))[id])

    async def attempt(self, number: int, *, bodies: bool = False) -> AttemptInfo | None:
        """Return an attempt, if it ended and is in the log."""
        async with self.reading(indexed=False) as reader:
            if not reader.first_kept_attempt <= number < self.log.end[0]:
                return None
            row = (await reader.attempts([number])).get(number)
            rows = [] if row is None else [(number, row)]
            return next(iter(await attempt_infos(reader, rows, bodies=bodies, tracebacks=True)), None)
