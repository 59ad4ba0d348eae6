"""Pages of a queue's messages, without claims or changes: by state, in pages, by id.

Cold buckets are read but not kept in memory. A result was true at some moment of the call; a message that moves during
the call may be missing or shown in its old place. The reads of a call are limited, so a page may be short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..engine_parts import EngineParts, EngineService
from ..records import active, keys, settled
from ..records.metadata import Metadata
from ..records.session_records import RunningTask
from ..state.queue_buckets import QueueEntry
from ..state.queue_state import QueueState
from ..state.settled_list import LISTS, ListName, bucket_key
from ..state.store_state import Queue
from .settled_buckets import SettledBuckets
from .stored_messages import read_metadata

AVAILABLE, IN_FLIGHT, DELAYED = "available", "in_flight", "delayed"
STATES = (AVAILABLE, IN_FLIGHT, DELAYED, *LISTS)
#: state of a message whose task runs: the message is in flight, or acknowledged and in the done list
RUNNING = "running"
#: most buckets that one call reads from the store
MAX_READS = 256
#: the newest buckets of a settled list, whose entries are counted
_COUNTED = 4096
#: a position in a settled list is bucket × this + place
_PLACES = 1 << 16


class Row(NamedTuple):
    """A message in a queue and its state there. Times are ms since the epoch; 0 means none.

    ``settled_at_ms`` of a message whose task runs is the start of the task.
    """

    id: int
    state: str
    priority: int = 0  # the stored one: lower first
    visible_at_ms: int = 0
    attempts: int = 0
    token: int = 0
    lease_until_ms: int = 0
    session: bytes = b""
    settled_at_ms: int = 0


def row_of(entry: QueueEntry, now: int) -> Row:
    """Return the row of a loaded message that is available or delayed."""
    state = AVAILABLE if entry.is_visible(now) else DELAYED
    return Row(entry.id, state, entry.priority, entry.visible_at, entry.attempts)


def row_in_flight(entry: QueueEntry, running_since_ms: int = 0) -> Row:
    """Return the row of a message that is leased to a consumer, and whose task may run."""
    return Row(
        id=entry.id,
        state=RUNNING if running_since_ms else IN_FLIGHT,
        priority=entry.priority,
        attempts=entry.attempts,
        token=entry.claimed_at,
        lease_until_ms=entry.lease_until,
        session=entry.session,
        settled_at_ms=running_since_ms,
    )


def row_running(session: bytes, task: RunningTask) -> Row:
    token, since = task.claimed_at_ms, task.started_at_ms
    return Row(task.message_id, RUNNING, attempts=task.number, token=token, session=session, settled_at_ms=since)


def _settled_row(entry: settled.SettledEntry, which: ListName) -> Row:
    return Row(entry.message_id, which, attempts=entry.attempts, settled_at_ms=entry.settled_at_ms)


def _cut(rows: dict[int, Row], limit: int) -> tuple[list[Row], int]:
    ids = sorted(rows)
    return [rows[id] for id in ids[:limit]], ids[limit - 1] if len(ids) > limit else -1


def _buckets(queue: Queue, after: int, states: tuple[str, ...], now: int) -> Iterator[tuple[int, int, bool]]:
    """Yield the lowest id, the number, and True if it is cold, of each bucket that may have such messages."""
    messages = queue.messages
    for number, bucket in messages.buckets.items():
        if bucket.available and max(bucket.available) > after:
            yield min(bucket.available), number, False
    for number, summary in messages.cold.items():
        may_have_visible = summary.delayed < summary.messages or (summary.next_visible_at or 0) <= now
        matches_state = (DELAYED in states and summary.delayed) or (AVAILABLE in states and may_have_visible)
        if summary.highest_id > after and matches_state:
            yield summary.lowest_id, number, True


def in_flight(queue: Queue, after: int, limit: int) -> tuple[list[Row], int]:
    """Return the claimed messages with ids above ``after``, and the id to continue after; -1 at the end."""
    return _cut({id: row_in_flight(entry) for id, entry in queue.messages.in_flight.items() if id > after}, limit)


def loaded_row(messages: QueueState, id: int, now: int) -> Row | None:
    entry = messages.in_flight.get(id)
    if entry is not None:
        return row_in_flight(entry)
    entry = messages.available.get(id)
    return None if entry is None else row_of(entry, now)


class QueuePages(EngineService):
    """The messages of durable queues, read from memory and from the store."""

    def __init__(self, parts: EngineParts, buckets: SettledBuckets) -> None:
        super().__init__(parts)
        self._buckets = buckets

    async def waiting(self, queue: Queue, after: int, limit: int, states: tuple[str, ...]) -> tuple[list[Row], int]:
        """Return available or delayed messages with ids above ``after``, and the id of the next page; -1 at the end."""
        now = self._clock.now_ms()
        rows_by_id: dict[int, Row] = {}
        reads = 0
        for lowest, number, is_cold in sorted(_buckets(queue, after, states, now)):
            enough = sorted(id for id in rows_by_id if id < lowest)[:limit]
            if len(enough) == limit:
                return [rows_by_id[id] for id in enough], enough[-1]
            if is_cold:
                if reads >= MAX_READS:
                    complete_ids = sorted(id for id in rows_by_id if id < lowest)
                    rows = [rows_by_id[id] for id in complete_ids[:limit]]
                    return rows, (rows[-1].id if len(complete_ids) > limit else lowest - 1)
                reads += 1
            for row in await self.rows_in(queue, number, now):
                if row.id > after and row.state in states:
                    rows_by_id.setdefault(row.id, row)
        return _cut(rows_by_id, limit)

    async def rows_in(self, queue: Queue, number: int, now: int) -> list[Row]:
        """Return the available and delayed messages of one bucket."""
        bucket = queue.messages.buckets.get(number)
        if bucket is None and number in queue.messages.cold:
            key = keys.active_key(queue.name, number)
            value = await self._store.get(key)
            bucket = queue.messages.buckets.get(number)
            if bucket is None and value is not None:
                return [
                    Row(id, AVAILABLE if visible_at <= now else DELAYED, priority, visible_at, attempts)
                    for id, priority, visible_at, _deadline, attempts in active.decode(key, value)[0]
                ]
        return [row_of(entry, now) for entry in bucket.available.values()] if bucket is not None else []

    # ------------------------------------------------------------------ settled lists
    async def settled_rows(self, queue: Queue, which: ListName, position: int, limit: int) -> tuple[list[Row], int]:
        """Return a page of a list, oldest first, and the position to continue from; -1 at the end."""
        log = queue.settled_list(which)
        number, place = divmod(max(position, 0), _PLACES)
        if number < log.first:
            number, place = log.first, 0
        page: list[Row] = []
        for _ in range(MAX_READS):
            if number > log.tail:
                return page, -1
            rows = await self._buckets.read(queue, which, number)
            entries = rows[place : place + limit - len(page)]
            page += [_settled_row(entry, which) for entry in entries]
            place += len(entries)
            if place < len(rows):
                return page, number * _PLACES + place
            number, place = number + 1, 0
            if len(page) >= limit:
                break
        return page, number * _PLACES if number <= log.tail else -1

    async def count_settled(self, queue: Queue, which: ListName) -> int:
        """Return the length of a list.

        After startup its newest 4,096 buckets are read once; older ones count as full.
        """
        log = queue.settled_list(which)
        while log.unread > (oldest := max(log.first, log.tail - _COUNTED)):
            async with self._commits.checkpointing:
                numbers = range(max(oldest, log.unread - self._sizes.count_buckets), log.unread)
                values = await self._store.get_many([bucket_key(queue.name, which, number) for number in numbers])
                log.learn(numbers.start, [0 if value is None else settled.count_of(value) for value in values])
        return log.length

    # ------------------------------------------------------------------ one message
    async def metadata_of(self, id: int) -> Metadata | None:
        """Return a message's metadata; None if it was collected."""
        return (await self.metadata([id])).get(id)

    async def metadata(self, ids: Iterable[int]) -> dict[int, Metadata]:
        """Return the metadata by message id, without messages that were collected."""
        return await read_metadata(self._store, self._payloads, ids)

    async def state_of(self, queue: Queue, id: int, received_at_ms: int, reads: int) -> tuple[Row | None, int]:
        """Return a message's row in a queue, or None if it is unknown, and the number of the remaining reads.

        The done and failed lists are ordered by time, and a message is settled after it was received: so the search
        goes back from the newest bucket until that time. The archive is ordered by the time of archiving. With no reads
        left, the row is unknown.
        """
        now = self._clock.now_ms()
        row = loaded_row(queue.messages, id, now)
        if row is not None:
            return row, reads
        for number in queue.messages.cold_buckets_of([id]):
            reads -= 1
            for row in await self.rows_in(queue, number, now):
                if row.id == id:
                    return row, reads
        for which in LISTS:
            log = queue.settled_list(which)
            for number in range(log.tail, log.first - 1, -1):
                if reads <= 0:
                    return None, 0
                reads -= number != log.tail
                rows = await self._buckets.read(queue, which, number)
                for entry in rows:
                    if entry.message_id == id:
                        return _settled_row(entry, which), reads
                if rows and rows[0].settled_at_ms < received_at_ms and which != "archived_failed":
                    break
        return None, reads
