"""Retention: removes done and failed messages after it, and other records that are no longer needed.

A sweep reads whole buckets from the head of a list. Its changes become part of the next checkpoint; after a crash
before that, the next sweep repeats them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..clock import Clock
from ..commit.commits import Commits
from ..operations.message_operations import Operations
from ..operations.queue_loader import QueueLoader
from ..read.settled_buckets import SettledBuckets
from ..records import settled
from ..state.settled_list import ListName
from ..state.store_state import Queue, StoreState

#: most buckets of one list that one sweep removes, so that a sweep never blocks for long
_BUCKETS_PER_SWEEP = 200
#: time for which a sweep blocks the event loop, as there may be thousands of queues
_PIECE_SECONDS = 0.001
#: messages that one checkpoint collects when a long backlog is removed
_GARBAGE_PER_CHECKPOINT = 10_000
#: time for which a publish counter is stored after its session's last publish
PRODUCER_RETENTION_MS = 24 * 3_600_000


class Sweeper(Protocol):
    """A service that removes its own records after their retention."""

    async def sweep(self, now: int) -> object:
        """Remove a bounded number of records that are past their retention."""


@dataclass(frozen=True, slots=True)
class Collector:
    """The retention of messages in one instance's queues; the sweepers remove the other records."""

    _state: StoreState
    _clock: Clock
    _commits: Commits
    _operations: Operations
    _loader: QueueLoader
    _buckets: SettledBuckets
    _sweepers: Sequence[Sweeper]

    async def sweep(self) -> int:
        """Make one pass over all queues; return the number of settled messages that were removed."""
        now, time = self._clock.now_ms(), asyncio.get_running_loop().time
        removed_count, start = 0, time()
        for queue in list(self._state.queues.values()):
            if self._state.queues.get(queue.name) is not queue:
                continue
            async with self._commits.checkpointing:
                removed_count += await self._sweep_queue(queue, now)
            await self.expire(queue, now)
            if time() - start > _PIECE_SECONDS:
                await asyncio.sleep(0)
                start = time()
        for sweeper in self._sweepers:
            await sweeper.sweep(now)
        self._forget_producers(now)
        return removed_count

    async def _sweep_queue(self, queue: Queue, now: int) -> int:
        options = queue.options
        done = await self._sweep_list(queue, "done", options.done_retention_seconds, now)
        return done + await self._sweep_list(queue, "failed", options.failed_retention_seconds, now)

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
            expired = [row for row in rows if row.settled_at_ms <= limit]
            count, has_next = self._remove(queue, which, rows, expired)
            removed_count += count
            if not has_next:
                break
        return removed_count

    def _remove(
        self, queue: Queue, which: ListName, rows: list[settled.SettledEntry], expired: list[settled.SettledEntry]
    ) -> tuple[int, bool]:
        """Remove the expired rows from the first bucket; return their number, and True if the next bucket follows."""
        log = queue.settled_list(which)
        remaining = rows[len(expired) :]
        if remaining and len(expired) * 10 < len(rows):
            log.oldest_at_ms = (log.oldest_at_ms if expired else None) or rows[0].settled_at_ms
            return 0, False
        number = log.first
        self._buckets.take(queue, which, rows, len(expired))
        return len(expired), log.first != number

    def _forget_producers(self, now: int) -> None:
        """Remove the state of sessions that disconnected long ago without closing."""
        state = self._state
        before = now - PRODUCER_RETENTION_MS
        for session in state.producers.keys() | state.removals.keys():
            calls = state.producers.get(session), state.removals.get(session)
            if session not in state.leases and all(last is None or last.at_ms < before for last in calls):
                self._operations.forget_session(session)
