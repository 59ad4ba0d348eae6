"""The history service of an engine: checkpoints, background indexing, retention, and the lists for the broker.

A page of messages or attempts, in either order and direction, searches for one item more than it holds, which shows
that there is another page. Counts by time examine all matches of a filter in batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import aclosing, asynccontextmanager
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from ...errors import CorruptRecord
from ...protocol.messages import AttemptInfo, EventInfo, MessageInfo
from ...protocol.task_reports import STATES
from ..messages.payloads import Payloads
from ..records import history_log, keys
from ..records.failures import NO_FAILURE
from ..records.history_index import IndexHead
from ..records.history_log import DETAILED, MANUAL, OUTCOMES, REJECTED
from ..records.metadata import Metadata
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads
from ..slatedb.store_writer import SlateStore
from ..state.history_log import HistoryLog, LogChunk, Place
from ..state.store_state import StoreState
from . import query
from .candidates import NumberedAttempt, attempt_dimensions, attempts, message_info, messages
from .history_index import Index
from .index_retention import Sweep
from .indexer import Indexer
from .kept_headers import CollectedHeaders
from .query import ListFilters, ListPosition, Paging, TimeBuckets
from .reader import ListReader
from .sources import NumberRange

log = logging.getLogger(__name__)

T = TypeVar("T")

#: retention of attempts
DEFAULT_RETENTION_SECONDS = 14 * 86_400.0
#: interval at which the background task looks for rows to index
_CHECK_SECONDS = 0.1
#: interval while rows wait
_PAUSE_SECONDS = 0.02
#: duration of its work at each interval while no client has messages
_IDLE_SECONDS = 0.02
#: duration of a step, for which clients wait: while they have messages, and else
_BUSY_STEP_SECONDS, _STEP_SECONDS = 0.0005, 0.001
#: the loop is free if this number of turns of its other tasks takes less; uvloop's time has milliseconds
_FREE_TURNS, _FREE_SECONDS = 8, 0.001
#: a page ends before its limit if its headers have more bytes
PAGE_BYTES = 4 << 20


class ListPage(NamedTuple, Generic[T]):
    """Items of a list, and the cursors of the next and the previous page; None if there is none."""

    items: list[T]
    next: str | None
    prev: str | None


async def _is_free(time: Callable[[], float]) -> bool:
    """Return True if the loop has next to no other work now."""
    start = time()
    for _ in range(_FREE_TURNS):
        await asyncio.sleep(0)
    return time() - start < _FREE_SECONDS


async def end_of_log(store: Reads, head: IndexHead) -> Place:
    """Return the end of the stored log; retention may have removed all records that are indexed."""
    end = head.attempt, head.row
    for key, value in await store.scan(*keys.kind_range(keys.RecordKind.HISTORY_LOG), limit=1, descending=True):
        attempt, row = keys.parse(key).numbers or (0, 0)
        end = max(end, LogChunk.of((attempt, row), history_log.decode(key, value)).end)
    return end


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
        self._store = store
        self._state = state
        self._payloads = payloads
        sizes = state.sizes
        self.retention_ms = retention_ms
        self.log = HistoryLog(sizes)
        self.index = Index()
        self.collected = CollectedHeaders(store, payloads, self.log, self.index, sizes)
        self.indexer = Indexer(store, payloads, self.log, self.index, self.collected, checkpoint, sizes)
        self.sweeper = Sweep(store, state, payloads, self.index, checkpoint, retention_ms)
        self._saving: list[LogChunk] = []
        self._watches: list[deque[LogChunk]] = []

    def watch(self) -> deque[LogChunk]:
        """Return a queue to which each checkpoint adds the chunks of the log that it has stored."""
        self._watches.append(deque())
        return self._watches[-1]

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
        self.log.begin_at(await end_of_log(self._store, head))
        self.log.indexed(self.indexer.place)
        return self.log

    def snapshot(self, batch: WriteBatch) -> None:
        """Add all unstored records to a checkpoint's batch."""
        if self.enabled:
            self._saving = self.log.snapshot(batch)
            self.index.snapshot(batch)
            self.collected.snapshot(batch)

    async def before_deletion(self, ids: Set[int], batch: WriteBatch) -> None:
        """Store the headers of those messages that the index still needs."""
        if self.enabled:
            await self.collected.keep(ids, batch)

    def end_flush(self) -> None:
        """Mark the snapshot as stored; its checkpoint is complete."""
        if self.enabled:
            for watch in self._watches:
                watch.extend(self._saving)
            self.log.saved(self._saving)
            self._saving = []
            self.index.end_flush()

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        return self.enabled and (self.log.is_dirty or self.index.is_dirty)

    # ------------------------------------------------------------------ background work
    async def run(self, traffic: Callable[[], int] = lambda: 0) -> None:
        """Index until cancelled, in the time that clients leave.

        While messages flow, the index waits as long as the loop has other work, until more than ``index_lag`` rows
        wait. Then it takes turns with clients until it has indexed the excess. So at most these rows wait, and those
        that are added until the next check and during the turns of a chunk: a query has to index them first.

        Args:
            traffic: returns a number that changes with each message of a client.

        Raises:
            StoreError: the store failed permanently.
        """
        if not self.enabled:
            return
        await self.sweeper.begin()
        indexer, time, position = self.indexer, asyncio.get_running_loop().time, traffic()
        max_lag, pause = self._state.sizes.index_lag, _CHECK_SECONDS
        while True:
            await asyncio.sleep(pause)
            before, position = position, traffic()
            has_more, until = True, time() + _IDLE_SECONDS
            if indexer.lag > max_lag:
                await indexer.catch_up(max_lag, _STEP_SECONDS)
            elif position != before:
                has_more = await _is_free(time) and await indexer.work(_BUSY_STEP_SECONDS, may_read=False)
            else:
                while has_more and time() < until and traffic() == position:
                    has_more = await indexer.work(_STEP_SECONDS)
                    await asyncio.sleep(0)
                has_more = has_more or await self.sweeper.merge_some()
            pause = _PAUSE_SECONDS if has_more else _CHECK_SECONDS

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
        """Return a page of the messages in the store, ordered by time of receipt and id."""
        async with self.reading(indexed=True) as reader:
            records: list[MessageInfo] = []
            size = 0
            way = _way(paging, *await reader.message_range(filters.since_ms, filters.until_ms))
            async with aclosing(messages(reader, filters, way, paging.limit + 1)) as batches:
                async for batch in batches:
                    records += batch
                    size += sum(map(_size_of, batch))
                    if len(records) > paging.limit or size > PAGE_BYTES:
                        break
            if size > PAGE_BYTES:
                paging = paging._replace(limit=min(paging.limit, _fitting(records)))
            return _page(query.MESSAGES, records, filters, paging)

    async def list_attempts(
        self, filters: ListFilters, paging: Paging, *, bodies: bool = False, tracebacks: bool = False
    ) -> ListPage[AttemptInfo]:
        """Return a page of the attempts in the log, by the time of their end and their numbers.

        ``bodies`` adds the envelopes of the messages, ``tracebacks`` those of failed tasks.
        """
        async with self.reading(indexed=bool(attempt_dimensions(filters))) as reader:
            rows: list[NumberedAttempt] = []
            way = _way(paging, *await reader.attempt_range(filters.since_ms, filters.until_ms))
            async with aclosing(attempts(reader, filters, way, paging.limit + 1)) as batches:
                async for batch in batches:
                    rows += batch
                    if len(rows) > paging.limit:
                        break
            infos = await _attempt_infos(reader, rows[: paging.limit + 1], bodies=bodies, tracebacks=tracebacks)
            if sum(map(_size_of_attempt, infos)) > PAGE_BYTES:
                paging = paging._replace(limit=max(len(infos) - 1, 1))
            return _page(query.ATTEMPTS, infos, filters, paging)

    async def count_messages(self, filters: ListFilters, buckets: TimeBuckets) -> list[int]:
        async with self.reading(indexed=True) as reader:
            counts = [0] * buckets.number
            way = NumberRange(*await reader.message_range(filters.since_ms, filters.until_ms), False)
            async with aclosing(messages(reader, filters, way, reader.max_batch)) as batches:
                async for batch in batches:
                    for message in batch:
                        counts[buckets.number_of(message.received_at_ms)] += 1
            return counts

    async def count_attempts(self, filters: ListFilters, buckets: TimeBuckets) -> list[int]:
        async with self.reading(indexed=bool(attempt_dimensions(filters))) as reader:
            counts = [0] * buckets.number
            way = NumberRange(*await reader.attempt_range(filters.since_ms, filters.until_ms), False)
            async with aclosing(attempts(reader, filters, way, reader.max_batch)) as batches:
                async for batch in batches:
                    for _number, row in batch:
                        counts[buckets.number_of(row.ended_at_ms)] += 1
            return counts

    async def message(self, id: int) -> MessageInfo | None:
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
            return next(iter(await _attempt_infos(reader, rows, bodies=bodies, tracebacks=True)), None)


async def _attempt_infos(
    reader: ListReader, rows: list[NumberedAttempt], *, bodies: bool, tracebacks: bool
) -> list[AttemptInfo]:
    """Return the attempts with their messages and failures, up to the first one that does not fit a page."""
    metadata = await reader.metadata({row.message_id for _number, row in rows})
    failures = await reader.failures([number for number, row in rows if row.state & DETAILED])
    infos: list[AttemptInfo] = []
    size = 0
    for number, row in rows:
        message = metadata.get(row.message_id)
        failure = failures.get(number, NO_FAILURE)
        event = await _event(reader, message, with_body=bodies) if message is not None else None
        outcome = row.outcome & ~MANUAL
        info = AttemptInfo(
            id=query.attempt_id(number),
            message_id=row.message_id,
            queue=row.queue,
            consumer=row.consumer,
            claimed_at_ms=row.claimed_at_ms,
            ended_at_ms=row.ended_at_ms,
            number=row.number,
            outcome=OUTCOMES[outcome],
            requeued=outcome > REJECTED,
            manual=bool(row.outcome & MANUAL),
            event=event,
            state=STATES[row.state & ~DETAILED],
            runtime_ms=row.runtime_us / 1000,
            pid=row.pid,
            exception=row.exception,
            error=failure.error,
            traceback=failure.traceback if tracebacks else "",
        )
        infos.append(info)
        size += _size_of_attempt(info)
        if size > PAGE_BYTES and len(infos) > 1:
            break
    return infos


async def _event(reader: ListReader, message: Metadata, *, with_body: bool) -> EventInfo:
    """Return the message of an attempt; a damaged one has an error, so that the other attempts can be shown."""
    envelope, error = None, ""
    if with_body:
        try:
            envelope = await reader.payloads.read(message.message_id)
        except CorruptRecord as exc:
            log.error("the payload of message %d can't be read: %s", message.message_id, exc)
            error = exc.text
    times = message.created_at_ms, message.received_at_ms, message.visible_at_ms
    return EventInfo(*times, message.headers, envelope, error)


def _size_of(event: MessageInfo | EventInfo) -> int:
    """Return the approximate bytes of a message's headers: their characters."""
    return sum(map(len, chain.from_iterable(event.headers.items())))


def _size_of_attempt(info: AttemptInfo) -> int:
    size = len(info.error) + len(info.traceback)
    return size if info.event is None else size + _size_of(info.event) + len(info.event.body or b"")


def _fitting(messages: list[MessageInfo]) -> int:
    """Return the number of these messages that fit a page."""
    size = 0
    for count, message in enumerate(messages):
        size += _size_of(message)
        if size > PAGE_BYTES:
            return max(count, 1)
    return len(messages)


def _way(paging: Paging, low: int, high: int) -> NumberRange:
    """Return the numbers within the time limits from the cursor or the beginning, in the direction of the page."""
    descending = paging.descending != paging.backward
    if paging.start is not None:
        if descending:
            high = min(high, paging.start.number - 1)
        else:
            low = max(low, paging.start.number + 1)
    return NumberRange(low, high, descending)


R = TypeVar("R", MessageInfo, AttemptInfo)


def _page(kind: str, records: list[R], filters: ListFilters, paging: Paging) -> ListPage[R]:
    has_more = len(records) > paging.limit
    items = records[: paging.limit]
    if paging.backward:
        items.reverse()
    if not items:
        return ListPage([], None, None)
    has_next = has_more if not paging.backward else True
    has_prev = paging.start is not None if not paging.backward else has_more

    def cursor(item: R) -> str:
        if isinstance(item, MessageInfo):
            position = ListPosition(item.received_at_ms, item.id)
        else:
            position = ListPosition(item.ended_at_ms, query.attempt_number(item.id))
        return query.make_cursor(kind, filters, descending=paging.descending, at=position)

    return ListPage(items, cursor(items[-1]) if has_next else None, cursor(items[0]) if has_prev else None)
