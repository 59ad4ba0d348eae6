"""Purge and deletion of queues. A client that repeats such a call receives the count of all its attempts."""

from __future__ import annotations

from dataclasses import dataclass

from ..commit.commits import Commits
from ..state.store_state import Queue
from .definitions import Definitions
from .idempotency_keys import Idempotency
from .message_operations import Operations
from .queue_loader import QueueLoader
from .repeated_calls import Call, RepeatedCalls


@dataclass(frozen=True, slots=True)
class Removals:
    """Purge and deletion of one instance's queues."""

    _commits: Commits
    _operations: Operations
    _definitions: Definitions
    _loader: QueueLoader
    _idempotency: Idempotency
    _repeats: RepeatedCalls

    async def purge(self, queue: Queue, call: Call | None = None) -> int:
        """Remove every available message; return their number.

        Args:
            call: the client's call. If the broker ended during the same call before, this continues it and returns the
                total number of removed messages.
        """
        before = self._repeats.before(call)
        if before.is_over:
            return before.messages
        removed_count = await self._remove_available(queue, call)
        self._repeats.note(call, removed_count, is_over=True)
        await self._commits.commit()
        return removed_count

    async def _remove_available(self, queue: Queue, call: Call | None = None) -> int:
        """Remove all available messages, loading the cold buckets one after the other."""
        messages, remove = queue.messages, self._operations.remove
        removed_count = self._repeats.before(call).messages
        removed_count += remove(queue, list(messages.available.values()))
        self._repeats.note(call, removed_count)
        while messages.cold:
            await self._loader.load_bucket(queue, next(iter(messages.cold)))
            removed_count += remove(queue, list(messages.available.values()))
            self._repeats.note(call, removed_count)
        return removed_count

    async def delete_queue(self, queue: Queue, call: Call | None = None) -> int:
        """Delete a queue with all its messages; return the number of available ones. ``call`` is as for a purge."""
        await self._idempotency.look()
        removed_count = await self._remove_available(queue, call)
        self._repeats.note(call, removed_count, is_over=True)
        self._idempotency.drop_queue(queue.name)
        self._definitions.drop_queue(queue.name)  # no await in between, so the queue is still empty
        await self._commits.checkpoint()
        return removed_count
