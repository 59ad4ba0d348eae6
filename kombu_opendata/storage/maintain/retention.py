"""Retention: removes settled and expired messages, messages that only the log keeps, and other unneeded records.

A sweep of the queues reads whole buckets from the head of a list. Its changes become part of the next checkpoint; after
a crash before that, the next sweep repeats them.

By default a message is deleted with the last queue that needs it. With a retention of the metadata log, a checkpoint
instead marks the message as kept by the log (:mod:`.records.routes_block`), for queues that are declared later. The
log's sweep, a cursor over the metadata log, deletes it after the retention. The cursor's position is stored in the same
batch as its deletions. Below that position the log keeps no message: a message that its last queue removes there is
deleted immediately. So every message is deleted, even if the broker crashes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from ..clock import TimeSlice
from ..commit.route_counts import RouteCounts
from ..engine_parts import EngineParts, EngineService
from ..operations.message_operations import Operations
from ..operations.queue_loader import QueueLoader
from ..read.settled_buckets import SettledBuckets
from ..records import keys, metadata
from ..records.store_records import FOREVER, LogRetention
from ..state.queue_buckets import stored_deadline
from ..state.settled_list import ListName
from ..state.store_state import Queue

#: messages that one checkpoint deletes
_GARBAGE_PER_CHECKPOINT = 10_000
#: interval of the sweeps of a log with unlimited retention, for messages that are past their own deadlines
_ROUND_MS = 24 * 3_600_000


class LogSweep(EngineService):
    """The deletion of messages from the log after their retention."""

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._step_rows, self._pass_rows = self._sizes.sweep_messages, self._sizes.sweep_pass_messages
        self._next_at_ms: float = 0  # no message is due before

    def configure(self, seconds: float) -> None:
        """Set the retention, before the first checkpoint. After a change the whole log is swept once."""
        retention_ms = FOREVER if seconds == math.inf else int(1000 * seconds)
        log = self._state.log
        if retention_ms != (log.record.retention_ms if log.record is not None else 0):
            self._set(LogRetention(retention_ms, kept=log.kept))
        elif log.record is not None and retention_ms == FOREVER and not log.record.position:
            self._next_at_ms = log.record.swept_at_ms + _ROUND_MS

    def _set(self, record: LogRetention | None) -> None:
        self._state.log.record = record
        self._state.dirty.log = True

    async def sweep(self, now: int) -> int:
        """Make one bounded pass; return the number of messages that the next checkpoint deletes."""
        deleted = examined = 0
        while (record := self._state.log.record) is not None and now >= self._next_at_ms and examined < self._pass_rows:
            start = asyncio.get_running_loop().time()
            async with self._commits.checkpointing:
                outdated = await self._step(record, now)
            deleted += outdated
            examined += self._step_rows
            if len(self._state.dirty.outdated) >= _GARBAGE_PER_CHECKPOINT:
                await self._commits.checkpoint()
            await asyncio.sleep(asyncio.get_running_loop().time() - start)  # leaves half of the time to other tasks
        return deleted

    async def _step(self, record: LogRetention, now: int) -> int:
        """Sweep the next messages. No checkpoint may be running, so that the store's route counts are current."""
        start = keys.metadata_key(record.position)
        end = keys.kind_range(keys.RecordKind.METADATA)[1]
        rows = await self._store.scan(start, end, limit=self._step_rows)
        position = record.position
        due = []
        is_over = len(rows) < self._step_rows
        for key, value in rows:
            id = int.from_bytes(key[-8:], "big")
            ends_at = _ends_at(record.retention_ms, key, value)
            if record.retention_ms > 0 and ends_at > now:
                self._next_at_ms, is_over = ends_at, False
                break
            if ends_at <= now:
                due.append(id)
            position = id + 1
        outdated = await self._kept(due)
        self._state.dirty.outdated.update(outdated)
        self._move(record, position, now, is_over=is_over)
        return len(outdated)

    async def _kept(self, ids: list[int]) -> list[int]:
        """Return those of these messages that only the log keeps, in order."""
        counts = RouteCounts(self._store)
        await counts.load(ids)
        return [id for id in ids if counts.is_kept(id)]

    async def drop_oldest(self, count: int) -> AsyncIterator[int]:
        """Delete the oldest messages that only the log keeps, before the end of their retention.

        Yield the number of each part after its deletion.
        """
        deleted_count = 0
        rows: list[tuple[bytes, bytes]] = []
        position, end = 0, keys.kind_range(keys.RecordKind.METADATA)[1]
        while deleted_count < min(count, self._state.log.kept) and (not position or len(rows) == self._step_rows):
            async with self._commits.checkpointing:
                rows = await self._store.scan(keys.metadata_key(position), end, limit=self._step_rows)
                ids = [int.from_bytes(key[-8:], "big") for key, _value in rows]
                log_only_ids, outdated = await self._kept(ids), self._state.dirty.outdated
                oldest = [id for id in log_only_ids if id not in outdated][: count - deleted_count]
                outdated.update(oldest)
                deleted_count += len(oldest)
            yield len(oldest)
            position = ids[-1] + 1 if ids else 1
            if len(outdated) >= _GARBAGE_PER_CHECKPOINT:
                await self._commits.checkpoint()

    def _move(self, record: LogRetention, position: int, now: int, *, is_over: bool) -> None:
        """Record that the messages below ``position`` were swept; ``is_over``: there are no more."""
        if is_over and not record.retention_ms:
            self._set(None)
        elif is_over and record.retention_ms == FOREVER:
            self._next_at_ms = now + _ROUND_MS
            self._set(record._replace(position=0, swept_at_ms=now))
        else:
            if is_over:
                self._next_at_ms = now + record.retention_ms  # later messages are not due before
            if position != record.position:
                self._set(record._replace(position=position))


def _ends_at(retention_ms: int, key: bytes, value: bytes) -> float:
    """Return the time at which a message that no queue needs is deleted, in ms since the epoch."""
    if not retention_ms:
        return 0
    if retention_ms != FOREVER:
        return metadata.received_at(key, value) + retention_ms
    if not metadata.retention(key, value):
        return math.inf
    message = metadata.decode(key, value)
    return stored_deadline(message.received_at_ms, message.retention_seconds, message.headers)


#: most buckets of one list that one sweep removes, so that a sweep never blocks for long
_BUCKETS_PER_SWEEP = 200
#: time for which a publish counter is stored after its session's last publish
PRODUCER_RETENTION_MS = 24 * 3_600_000


class Sweeper(Protocol):
    """A service that removes its own records after their retention."""

    async def sweep(self, now: int) -> object:
        """Remove a bounded number of records that are past their retention."""


class Collector(EngineService):
    """The retention of messages in one instance's queues; the sweepers remove the other records."""

    def __init__(
        self,
        parts: EngineParts,
        operations: Operations,
        loader: QueueLoader,
        buckets: SettledBuckets,
        sweepers: Sequence[Sweeper],
    ) -> None:
        super().__init__(parts)
        self._operations = operations
        self._loader = loader
        self._buckets = buckets
        self._sweepers = sweepers

    async def sweep(self) -> int:
        """Make one pass over all queues; return the number of settled messages that were removed."""
        now = self._clock.now_ms()
        piece = TimeSlice()
        removed_count = 0
        for queue in list(self._state.queues.values()):
            if self._state.queues.get(queue.name) is not queue:
                continue
            async with self._commits.checkpointing:
                removed_count += await self._sweep_list(queue, "done", queue.options.done_retention_seconds, now)
                removed_count += await self._sweep_list(queue, "failed", queue.options.failed_retention_seconds, now)
            await self.expire(queue, now)
            await piece.pause()
        for sweeper in self._sweepers:
            await sweeper.sweep(now)
        self._forget_producers(now)
        return removed_count

    async def expire(self, queue: Queue, now: int) -> int:
        """Remove messages past their deadline, also from queues without a consumer; return their number."""
        messages = queue.messages
        removed_count = self._operations.remove(queue, messages.expired(now), "expired")
        while (number := messages.cold.due(now)) is not None and self._state.queues.get(queue.name) is queue:
            await self._loader.load_bucket(queue, number)
            removed_count += self._operations.remove(queue, messages.expired(now), "expired")
            await self._limit_garbage()
        return removed_count

    async def drop_oldest(self, queue: Queue, is_too_long: Callable[[], bool]) -> int:
        """Remove the oldest available messages while the queue is too long; return their number."""
        dropped_count = 0
        while is_too_long() and self._state.queues.get(queue.name) is queue:
            entry, cold = queue.messages.oldest()
            if cold is not None:
                await self._loader.load_bucket(queue, cold)
                await self._limit_garbage()
            elif entry is not None:
                dropped_count += self._operations.remove(queue, (entry,), "maxlen")
            else:
                break
        return dropped_count

    async def _limit_garbage(self) -> None:
        """Remove a long backlog in several checkpoints, so that none of them is large."""
        if len(self._state.dirty.garbage) >= _GARBAGE_PER_CHECKPOINT:
            await self._commits.checkpoint()

    async def _sweep_list(self, queue: Queue, which: ListName, retention_seconds: int, now: int) -> int:
        if retention_seconds == 0:
            return 0
        removed_count, log = 0, queue.settled_list(which)
        for _ in range(_BUCKETS_PER_SWEEP):
            limit = now - 1000 * retention_seconds
            if log.oldest_at_ms is not None and log.oldest_at_ms > limit:
                break
            rows = await self._buckets.head(queue, which)
            if rows is None:
                break
            expired_count, number = sum(row.settled_at_ms <= limit for row in rows), log.first
            if expired_count * 10 < len(rows):
                log.oldest_at_ms = (log.oldest_at_ms if expired_count else None) or rows[0].settled_at_ms
                break
            self._buckets.take(queue, which, rows, expired_count)
            removed_count += expired_count
            if log.first == number:
                break
        return removed_count

    def _forget_producers(self, now: int) -> None:
        """Remove the state of sessions that disconnected long ago without closing."""
        state = self._state
        before = now - PRODUCER_RETENTION_MS
        for session in state.producers.keys() | state.removals.keys():
            calls = state.producers.get(session), state.removals.get(session)
            if session not in state.leases and all(last is None or last.at_ms < before for last in calls):
                self._operations.forget_session(session)
