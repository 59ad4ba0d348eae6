"""Purges and deletes queues. A client that repeats such a call gets the count of all its attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..clock import Clock
from ..commit.commits import Commits
from ..effects.sessions import NoteRemoval
from ..records.removal import Removal
from ..state.store_state import Queue, StoreState
from .definitions import Definitions
from .idempotency_keys import Idempotency
from .message_operations import Operations
from .queue_loader import QueueLoader

#: the record of a call that has removed nothing yet
NO_REMOVAL = Removal(0, 0, 0, False)


class Call(NamedTuple):
    """A client's call, which it repeats with the same number if it loses the broker."""

    session: bytes
    number: int


@dataclass(frozen=True, slots=True)
class Removals:
    """Purges and deletes the queues of one instance."""

    _state: StoreState
    _clock: Clock
    _commits: Commits
    _operations: Operations
    _definitions: Definitions
    _loader: QueueLoader
    _idempotency: Idempotency

    def before(self, call: Call | None) -> Removal:
        """What this purge or deletion of a queue removed before its client repeated the call."""
        last = self._state.removals.get(call.session) if call is not None else None
        return last if last is not None and call is not None and last.call == call.number else NO_REMOVAL

    def note(self, call: Call | None, messages: int, *, is_over: bool = False) -> None:
        """Remember, in the commit of the removal, how many messages a call has removed so far."""
        if call is not None:
            self._commits.apply(NoteRemoval(call.session, call.number, messages, self._clock.now_ms(), is_over))

    async def purge(self, queue: Queue, call: Call | None = None) -> int:
        """Remove every available message; returns how many.

        Args:
            call: the client's call. If the broker ended during the same call before, this continues it and returns how
                many were removed in all.
        """
        before = self.before(call)
        if before.is_over:
            return before.messages
        removed = await self._remove_available(queue, call)
        self.note(call, removed, is_over=True)
        await self._commits.commit()
        return removed

    async def _remove_available(self, queue: Queue, call: Call | None = None) -> int:
        """Remove the available messages, loading one cold bucket after the other: none is left then."""
        messages, remove = queue.messages, self._operations.remove
        removed = self.before(call).messages
        removed += remove(queue, list(messages.available.values()))
        self.note(call, removed)
        while messages.cold:
            await self._loader.load_bucket(queue, next(iter(messages.cold)))
            removed += remove(queue, list(messages.available.values()))
            self.note(call, removed)
        return removed

    async def delete_queue(self, queue: Queue, call: Call | None = None) -> int:
        """Remove a queue with everything in it; returns how many messages were waiting. ``call`` as for a purge."""
        await self._idempotency.look()
        removed = await self._remove_available(queue, call)
        self.note(call, removed, is_over=True)
        self._idempotency.drop_queue(queue.name)
        self._definitions.drop_queue(queue.name)  # no await in between, so the queue is still empty
        await self._commits.checkpoint()
        return removed
