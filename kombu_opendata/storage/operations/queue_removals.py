"""Purges and deletions of queues. A client that repeats such a call gets the count of all its attempts."""

from __future__ import annotations

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

#: of a call that has removed nothing yet
NO_REMOVAL = Removal(0, 0, 0, False)


class Call(NamedTuple):
    """A client's call, which it makes again with the same number if it lost the broker in between."""

    session: bytes
    number: int


class Removals:
    """Purges and deletes the queues of one instance."""

    def __init__(
        self,
        state: StoreState,
        clock: Clock,
        commits: Commits,
        operations: Operations,
        definitions: Definitions,
        loader: QueueLoader,
        idempotency: Idempotency,
    ) -> None:
        self._state = state
        self._clock = clock
        self._commits = commits
        self._operations = operations
        self._definitions = definitions
        self._loader = loader
        self._idempotency = idempotency

    def before(self, call: Call | None) -> Removal:
        """What a purge or a deletion of a queue has removed so far, when its client called before."""
        last = self._state.removals.get(call.session) if call is not None else None
        return last if last is not None and call is not None and last.call == call.number else NO_REMOVAL

    def note(self, call: Call | None, messages: int, *, is_over: bool = False) -> None:
        """Remember, in one commit with the removal, how many messages a call has removed so far."""
        if call is not None:
            self._commits.apply(NoteRemoval(call.session, call.number, messages, self._clock.now_ms(), is_over))

    async def purge(self, queue: Queue, call: Call | None = None) -> int:
        """Remove every available message; returns how many.

        Args:
            call: whose purge it is. If the broker ended during the same call before, it goes on with that, and returns
                how many were removed in all.
        """
        before = self.before(call)
        if before.is_over:
            return before.messages
        removed = await self._remove_available(queue, call)
        self.note(call, removed, is_over=True)
        await self._commits.commit()
        return removed

    async def _remove_available(self, queue: Queue, call: Call | None = None) -> int:
        """When this returns there is no cold bucket; they are loaded one after the other."""
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
        self._definitions.drop_queue(queue.name)  # with no await in between: nothing is left in it
        await self._commits.checkpoint()
        return removed
