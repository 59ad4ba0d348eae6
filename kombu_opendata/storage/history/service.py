"""History of one engine: log and index as checkpoints, the broker's calls and the collector use them."""

from __future__ import annotations

import asyncio
from collections.abc import Set
from typing import TYPE_CHECKING

from ..records import history_log, keys
from .candidates import AttemptRecord, MessageRecord
from .collected import CollectedHeaders
from .counts import count_attempts, count_messages
from .index import Index
from .indexer import Indexer
from .lists import Page, list_attempts, list_messages, with_events
from .log import Chunk, HistoryLog
from .query import Buckets, Filters, Paging
from .reader import Reader
from .sweep import Sweep

if TYPE_CHECKING:
    from ..engine import Engine
    from ..ffi import Batch
    from ..payloads import Payloads
    from ..slate import SlateStore
    from ..state import Queue

#: how long the rows of attempts stay
DEFAULT_RETENTION_SECONDS = 14 * 86_400.0
#: how often the background looks for something to index, and how long it works then: while messages come and go, while
#: they do and much waits, and when nothing happens, after which it pauses only so long as there is more
_LOOK_SECONDS = 0.1
_BUSY_SECONDS = 0.001
_BEHIND_SECONDS = 0.0025
_IDLE_SECONDS = 0.02
_PAUSE_SECONDS = 0.02
#: attempts and other rows that are much
_MUCH = 200_000


class History:
    """What happened to the messages of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.index = Index()
        self.indexer = Indexer(self)
        self.sweeper = Sweep(self)
        self.collected = CollectedHeaders(self)
        self._saving: list[Chunk] = []

    # ------------------------------------------------------------------ what its parts need
    @property
    def enabled(self) -> bool:
        return self._engine.state.history is not None

    @property
    def log(self) -> HistoryLog:
        found = self._engine.state.history
        assert found is not None
        return found

    @property
    def store(self) -> SlateStore:
        return self._engine.store

    @property
    def payloads(self) -> Payloads:
        return self._engine.payloads

    @property
    def queues(self) -> dict[str, Queue]:
        return self._engine.state.queues

    @property
    def session_names(self) -> dict[bytes, str]:
        return self._engine.state.session_names

    @property
    def next_message_id(self) -> int:
        return self._engine.state.next_id

    @property
    def retention_ms(self) -> int:
        return int(1000 * self._engine.settings.history_retention_seconds)

    async def checkpoint(self) -> None:
        """Have the engine write what is queued.

        Raises:
            StoreError: it failed for good.
        """
        await self._engine.commits.checkpoint()

    # ------------------------------------------------------------------ the engine's calls
    async def load(self) -> HistoryLog:
        """The log, to go on where the stored one ends; before the journal is replayed."""
        await self.index.load(self.store)
        await self.collected.load()
        head = self.index.head
        self.indexer.place = head.attempt, head.row
        log = HistoryLog(head.attempt, head.row)
        rows = await self.store.scan(*keys.kind_range(keys.RecordKind.HISTORY_LOG), limit=1, descending=True)
        for key, value in rows:
            attempt, row = keys.parse(key).numbers or (0, 0)
            last = Chunk.of((attempt, row), history_log.decode(key, value))
            if last.end > self.indexer.place:
                log = HistoryLog(*last.end)
        log.indexed(self.indexer.place)
        return log

    def snapshot(self, batch: Batch) -> None:
        """Put everything that is not stored into a checkpoint's batch."""
        if self.enabled:
            self._saving = self.log.snapshot(batch)
            self.index.snapshot(batch)
            self.collected.snapshot(batch)

    async def before_deletion(self, ids: Set[int], batch: Batch) -> None:
        """The checkpoint keeps of these messages what the index may still need."""
        if self.enabled:
            await self.collected.keep(ids, batch)

    def end_flush(self) -> None:
        """The checkpoint is in the store."""
        if self.enabled:
            self.log.saved(self._saving)
            self._saving = []
            self.index.end_flush()

    @property
    def is_dirty(self) -> bool:
        """Whether a checkpoint has anything to do."""
        return self.enabled and (self.log.is_dirty or self.index.is_dirty)

    # ------------------------------------------------------------------ in the background
    async def run(self) -> None:
        """Index until cancelled: a fortieth of the time at most while messages come and go, half of it when they don't.

        Raises:
            StoreError: the store failed for good.
        """
        if not self.enabled:
            return
        await self.sweeper.begin()
        seen, pause = self.log.end, _LOOK_SECONDS
        while True:
            await asyncio.sleep(pause)
            before, seen = seen, self.log.end
            pause = _LOOK_SECONDS
            if seen != before:
                is_behind = self.indexer.lag > _MUCH
                await self.indexer.work(_BEHIND_SECONDS if is_behind else _BUSY_SECONDS, may_read=is_behind)
            elif await self.indexer.work(_IDLE_SECONDS) or await self.sweeper.merge_some():
                pause = _PAUSE_SECONDS

    async def sweep(self, now: int) -> None:
        """Remove what is past its retention, a bounded part of it."""
        if self.enabled:
            await self.sweeper.sweep(now)

    # ------------------------------------------------------------------ reading
    async def list_messages(self, filters: Filters, paging: Paging) -> Page[MessageRecord]:
        """See :mod:`.lists`."""
        return await list_messages(self, filters, paging)

    async def list_attempts(self, filters: Filters, paging: Paging, *, bodies: bool = False) -> Page[AttemptRecord]:
        """See :mod:`.lists`."""
        return await list_attempts(self, filters, paging, bodies=bodies)

    async def count_messages(self, filters: Filters, buckets: Buckets) -> list[int]:
        """See :mod:`.lists`; the times of the filters are within the buckets."""
        return await count_messages(self, filters, buckets)

    async def count_attempts(self, filters: Filters, buckets: Buckets) -> list[int]:
        """See :mod:`.lists`; the times of the filters are within the buckets."""
        return await count_attempts(self, filters, buckets)

    async def message(self, id: int) -> MessageRecord | None:
        """A message that is in the store."""
        await self.indexer.catch_up()
        with self.index.reading() as view:
            reader = Reader(self, view)
            found = (await reader.metadata([id])).get(id)
            return None if found is None else MessageRecord(found, (await reader.statuses([id]))[id])

    async def attempt(self, number: int, *, bodies: bool = False) -> AttemptRecord | None:
        """An attempt that ended and is in the log."""
        self.log.close_chunk()
        if not self.index.planned.kept <= number < self.log.end[0]:
            return None
        with self.index.reading() as view:
            reader = Reader(self, view)
            row = (await reader.attempts([number])).get(number)
            found = [] if row is None else [AttemptRecord.of(number, row)]
            return next(iter(await with_events(self, reader, found, bodies=bodies)), None)
