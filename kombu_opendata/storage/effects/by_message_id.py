"""Effects of calls that select messages by id, regardless of their leases: extend, delay, delete, archive."""

from __future__ import annotations

from ..records.history_log import ACKED
from ..state.staged_job import DONE, REMOVED
from ..state.store_state import StoreState
from .deliveries import MessagesEffect


class ExtendEffect(MessagesEffect, tag=44):
    """in flight: the leases end at a given time unless they are renewed."""

    lease_until_ms: int

    def apply(self, state: StoreState) -> None:
        messages = state.queues[self.queue].messages
        for id in self.pairs[::2]:
            entry = messages.in_flight[id]
            entry.lease_until = self.lease_until_ms
            messages.touch(entry)


class DelayEffect(MessagesEffect, tag=45):
    """available: the messages are visible from a given time on."""

    visible_at_ms: int

    def apply(self, state: StoreState) -> None:
        messages = state.queues[self.queue].messages
        for id in self.pairs[::2]:
            messages.delay(messages.available[id], self.visible_at_ms, self.at_ms)


class DeleteEffect(MessagesEffect, tag=46):
    """available or in flight → deleted, without an entry in a settled list."""

    def apply(self, state: StoreState) -> None:
        queue = state.queues[self.queue]
        messages = queue.messages
        for id in self.pairs[::2]:
            if state.history is not None:
                state.history.left(id, self.queue, self.at_ms, "removed")
            entry = messages.in_flight.get(id)
            if entry is not None:
                state.unlease(entry)
                messages.settle(entry)
                queue.counts.deleted += 1
            else:
                messages.remove(messages.available[id])
                queue.counts.purged += 1
            state.dirty.garbage.append(id)
            if state.staged.active:
                state.staged.count(self.queue, id, REMOVED, self.at_ms)


class ArchiveEffect(MessagesEffect, tag=47):
    """available → done, by an operator without a claim on the messages."""

    operator: str

    def apply(self, state: StoreState) -> None:
        at, queue = self.at_ms, state.queues[self.queue]
        for id in self.pairs[::2]:
            entry = queue.messages.available[id]
            if state.history is not None:
                state.history.by_hand(id, self.queue, at, entry.attempts, ACKED, self.operator)
            queue.messages.remove(entry)
            queue.done.append(id, at, entry.attempts)
            queue.counts.archived += 1
            if state.staged.active:
                state.staged.count(self.queue, id, DONE, at)
