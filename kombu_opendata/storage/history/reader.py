"""Reads of metadata, statuses and attempts for one query, from memory or from the store."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

from ...protocol.messages import QueueStatus
from ..messages.payloads import Payloads
from ..read.stored_messages import first_received_from, read_metadata
from ..records import failures, history_log, history_trail, keys, metadata
from ..records.failures import TaskFailure
from ..records.history_log import MANUAL, REASONS, SETTLED_BY, Attempt
from ..records.history_trail import BLOCK_BITS, LEFT, TrailEvent
from ..records.kinds import MAX_MESSAGE_ID
from ..records.metadata import Metadata
from ..slatedb.rows import Pair
from ..slatedb.store_writer import SlateStore
from ..state.history_log import HistoryLog
from ..state.store_state import StoreState
from .history_index import Index, View
from .index_retention import look_up
from .query import FOREVER
from .sources import AVAILABLE, IN_FLIGHT, RUNNING, AnyOf, CandidateSource, ColdBuckets, Fixed, NumberRange, Stored

_READS = 32
#: trails of a block in one read; blocks whose messages were settled over a long time have more
_TRAILS = 16
_LAST = (1 << 64) - 1


class ListReader:
    """The reads of one query from the store, the log and a view of the index."""

    def __init__(
        self, store: SlateStore, state: StoreState, payloads: Payloads, log: HistoryLog, index: Index, view: View
    ) -> None:
        self.store, self.payloads = store, payloads
        self.queues, self.running = state.queues, state.running
        self.log, self.view = log, view
        self._state = state
        self.max_batch = state.sizes.history_batch
        self._index = index
        self.cold = ColdBuckets(store)
        self._record: tuple[int, bytes, bytes] | None = None  # the last record that was read

    @property
    def first_kept_attempt(self) -> int:
        """The number of the first attempt that is still in the log."""
        return self._index.planned.kept

    # ------------------------------------------------------------------ metadata
    async def metadata(self, ids: Iterable[int]) -> dict[int, Metadata]:
        """Return the metadata by message id, without messages that were collected."""
        return await read_metadata(self.store, self.payloads, ids)

    async def having(self, space: int, hashes: Sequence[int], *, descending: bool) -> CandidateSource:
        """Return the messages or attempts that have any of these values."""
        positions = [place for part in self.view.parts for hash in hashes for place in part.find(space, hash)]
        rare = await look_up(self.store, self.view, space, hashes)
        positions += [place for places in rare.values() for place in places]
        sources = [Stored(self.store, space, hash, descending=descending) for hash in hashes]
        return AnyOf([Fixed(positions, descending=descending), *sources], descending=descending)

    async def message_range(self, since_ms: int, until_ms: int) -> tuple[int, int]:
        """Return the first and the last id of messages that were received between two times, both included."""
        low = await self.first_message_since(since_ms) if since_ms else 0
        return low, (await self.first_message_since(until_ms + 1) if until_ms < FOREVER else MAX_MESSAGE_ID) - 1

    async def attempt_range(self, since_ms: int, until_ms: int) -> tuple[int, int]:
        """Return the first and the last number of attempts in the log that ended between two times."""
        end = self.log.end[0]
        low = await self.first_attempt_since(since_ms) if since_ms else 0
        high = await self.first_attempt_since(until_ms + 1) if until_ms < FOREVER else end
        return max(low, self.first_kept_attempt), min(high, end) - 1

    async def stored_messages(self, way: NumberRange, batch: int) -> AsyncGenerator[list[Metadata], None]:
        """Yield all messages in a range, in order."""
        payloads, (low, high, descending) = self.payloads, way
        unstored = {**payloads.flushing_metadata, **payloads.pending_metadata}
        unsaved = sorted(id for id in unstored if low <= id <= high)
        newest = [metadata.decode(keys.metadata_key(id), unstored[id]) for id in unsaved]
        if descending and newest:
            yield newest[::-1]
        first_unsaved = unsaved[0] if unsaved else high + 1
        first = keys.metadata_key(low)
        end = keys.metadata_key(min(first_unsaved, MAX_MESSAGE_ID - 1))
        rows = self.store.scan_batches(first, end, batch=batch, descending=descending, read_ahead_bytes=1 << 18)
        async with aclosing(rows) as reading:
            async for pairs in reading:
                yield [metadata.decode(key, value) for key, value in pairs]
        if not descending and newest:
            yield newest

    async def first_message_since(self, at_ms: int) -> int:
        """Return the id of the first message that was received at this time or later."""
        payloads = self.payloads
        unstored = {**payloads.flushing_metadata, **payloads.pending_metadata}
        unsaved = sorted(unstored)

        def received_at(id: int) -> int:
            return metadata.decode(keys.metadata_key(id), unstored[id]).received_at_ms

        later = bisect_left(unsaved, at_ms, key=received_at)
        if later:
            return unsaved[later] if later < len(unsaved) else unsaved[-1] + 1
        low, high = 0, unsaved[0] if unsaved else self._state.next_id
        return await first_received_from(self.store, at_ms, low, high)

    # ------------------------------------------------------------------ statuses of messages
    async def events(self, ids: Iterable[int]) -> dict[int, list[TrailEvent]]:
        """Return all events of these messages, in order; the last ones may occur twice."""
        events_by_id: dict[int, list[TrailEvent]] = {id: [] for id in ids}
        by_block: dict[int, list[int]] = {}
        for id in events_by_id:
            by_block.setdefault(id >> BLOCK_BITS, []).append(id)
        blocks = sorted(by_block)
        in_memory = {block: [part.events.get(block, ()) for part in self.view.parts] for block in blocks}
        for start in range(0, len(blocks), _READS):
            batch = blocks[start : start + _READS]
            read = await self._trails(batch)
            for block, rows in zip(batch, read, strict=True):
                stored_events = [history_trail.decode_some(key, value, by_block[block]) for key, value in rows]
                for events in (*stored_events, *in_memory[block]):
                    for event in events:
                        if event.message_id in events_by_id:
                            events_by_id[event.message_id].append(event)
        return events_by_id

    async def _trails(self, blocks: list[int]) -> list[list[Pair]]:
        """Return the stored trails of these blocks, in their order."""
        ranges = [(keys.history_trail_key(block, 0), keys.history_trail_key(block + 1, 0)) for block in blocks]
        read = await self.store.scan_many(ranges, _TRAILS)
        for at, rows in enumerate(read):
            if len(rows) >= _TRAILS:
                read[at] = await self.store.scan(*ranges[at], read_ahead_bytes=1 << 16)
        return read

    async def statuses(self, ids: Iterable[int]) -> dict[int, tuple[QueueStatus, ...]]:
        """Return the status of each of these messages in each queue to which it was routed."""
        last = {id: {event.queue: event for event in events} for id, events in (await self.events(ids)).items()}
        queues = self.queues
        await self.cold.read(
            (queues[name], id)
            for id, by_queue in last.items()
            for name, event in by_queue.items()
            if name in queues and _settled(event) is None and queues[name].messages.find(id) is None
        )
        statuses = {}
        for id, by_queue in last.items():
            statuses[id] = tuple([await self._status(id, *status) for status in by_queue.items()])
        return statuses

    async def _status(self, id: int, name: str, last: TrailEvent) -> QueueStatus:
        queue = self.queues.get(name)
        if queue is not None:
            entry = queue.messages.in_flight.get(id)
            if entry is not None:
                consumer = self._state.session_names.get(entry.session, "")
                if since := self.running.late_since_ms(entry.session, (name, id, entry.claimed_at)):
                    return QueueStatus(name, RUNNING, entry.attempts, since, consumer, 0)
                return QueueStatus(name, IN_FLIGHT, entry.attempts, entry.claimed_at, consumer, 0)
            entry = queue.messages.available.get(id)
            if entry is not None:
                return QueueStatus(name, AVAILABLE, entry.attempts, 0, "", entry.visible_at)
        status = _settled(last)
        if status is None and (running := self.running.find(name, id)) is not None:
            session, task = running
            consumer = self._state.session_names.get(session, "")
            return QueueStatus(name, RUNNING, task.number, task.started_at_ms, consumer, 0)
        if status is None and queue is not None:
            row = await self.cold.find(queue, id)
            if row is not None:
                return QueueStatus(name, AVAILABLE, row.attempts, 0, "", row.visible_at_ms)
        if status is None:
            status = REASONS[last.what - LEFT] if LEFT <= last.what < LEFT + len(REASONS) else REASONS[0]
        return QueueStatus(name, status, last.number, last.at_ms, "", 0)

    # ------------------------------------------------------------------ attempts
    async def attempts(self, numbers: Iterable[int]) -> dict[int, Attempt]:
        """Return those of the attempts with these numbers that are still in the log."""
        rows = {}
        chunks = [*self.log.chunks, self.log.open]  # the open one may have attempts since the reader was opened
        in_memory = chunks[0].first_attempt
        for number in sorted(numbers, reverse=True):
            while chunks and number < chunks[-1].first_attempt:
                chunks.pop()
            if number >= in_memory:
                rows[number] = chunks[-1].attempts[number - chunks[-1].first_attempt]
                continue
            row = await self._stored_attempt(number)
            if row is not None:
                rows[number] = row
        return rows

    async def failures(self, numbers: Iterable[int]) -> dict[int, TaskFailure]:
        results: dict[int, TaskFailure] = {}
        for chunk in (*self.log.chunks, self.log.open):
            results |= {number: chunk.failures[number] for number in chunk.failures.keys() & set(numbers)}
        missing = sorted(set(numbers) - results.keys())
        for start in range(0, len(missing), _READS):
            batch = missing[start : start + _READS]
            records = [keys.task_failure_key(number) for number in batch]
            for number, key, value in zip(batch, records, await self.store.get_many(records), strict=True):
                if value is not None:
                    results[number] = failures.decode_task_failure(key, value)
        return results

    async def _stored_attempt(self, number: int) -> Attempt | None:
        record = self._record
        if record is None or not 0 <= number - record[0] < history_log.attempts_of(*record[1:]):
            record = self._record = await self._record_of(number)
        return None if record is None else history_log.attempt_at(record[1], record[2], number - record[0])

    async def _record_of(self, number: int) -> tuple[int, bytes, bytes] | None:
        """Return the stored record that has an attempt, if any: the number of its first attempt, key and value."""
        start, _end = keys.kind_range(keys.RecordKind.HISTORY_LOG)
        end = keys.history_log_key(number, _LAST)
        for key, value in await self.store.scan(start, end, limit=1, descending=True, read_ahead_bytes=1 << 14):
            first = (keys.parse(key).numbers or (0,))[0]
            if number - first < history_log.attempts_of(key, value):
                return first, key, value
        return None

    async def all_attempts(self, way: NumberRange) -> AsyncGenerator[list[tuple[int, Attempt]], None]:
        """Yield all attempts in a range, in order."""
        log, (low, high, descending) = self.log, way
        chunks = list(log.chunks)
        place = chunks[0].place if chunks else log.open.place
        memory_rows = [list(enumerate(chunk.attempts, chunk.first_attempt)) for chunk in chunks]
        if descending:
            for rows in reversed(memory_rows):
                yield way.of(rows)
        record = await self._record_of(low)
        first, _end = keys.kind_range(keys.RecordKind.HISTORY_LOG)
        first = record[1] if record is not None else max(first, keys.history_log_key(low, 0))
        last = min(keys.history_log_key(*place), keys.history_log_key(high, _LAST))
        batches = self.store.scan_batches(first, last, batch=2, descending=descending, read_ahead_bytes=1 << 16)
        async with aclosing(batches) as reading:
            async for batch in reading:
                for key, value in batch:
                    number = (keys.parse(key).numbers or (0,))[0]
                    rows = list(enumerate(history_log.decode(key, value).attempts, number))
                    yield way.of(rows)
        if not descending:
            for rows in memory_rows:
                yield way.of(rows)

    async def first_attempt_since(self, at_ms: int) -> int:
        """Return the number of the first attempt that ended at this time or later."""
        high = self.log.end[0]
        low = min(self.first_kept_attempt, high)
        while low < high:
            middle = (low + high) // 2
            row = (await self.attempts([middle])).get(middle)
            if row is None or row.ended_at_ms < at_ms:
                low = middle + 1
            else:
                high = middle
        return low


def _settled(event: TrailEvent) -> str | None:
    """Return the final status of the message after an event, if the event settled it."""
    return SETTLED_BY.get(event.what & ~MANUAL)
