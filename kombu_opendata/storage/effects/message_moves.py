"""Effects that move stored messages: routing in the background, redrive, moves between queues, archiving, deletion.

Each message that is added to a queue gets an entry in its routes block, even if its count is 1: the entry means that
the message was in a queue before, which may have written its attempts.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..records.routing_cursor import Cursor
from ..records.settled import SettledEntry
from ..state.queue_buckets import QueueRow
from ..state.settled_list import ListName, Taken
from ..state.staged_state import DONE, FAILED
from ..state.store_state import Queue, StoreState
from . import Effect
from .deliveries import MessagesEffect

#: the count of staged jobs for the messages of each list
_KINDS: dict[ListName, int] = {"done": DONE, "failed": FAILED, "archived_failed": FAILED}


class RouteEffect(Effect, tag=41):
    """A queue's cursor advanced and added ``rows`` to the queue. ``taken`` has those that were in its settled lists."""

    queue: str
    cursor: Cursor
    at_ms: int
    rows: list[QueueRow]
    taken: list[Taken]

    def apply(self, state: StoreState) -> None:
        name, at = self.queue, self.at_ms
        queue = state.queues[name]
        taken_ids: set[int] = set()
        staged = state.staged
        for part in self.taken:
            queue.settled_list(part.which).take(part.bucket, part.ids)
            taken_ids.update(part.ids)
            for id in part.ids:
                staged.back(name, id, _KINDS[part.which])
        for row in self.rows:
            is_new = row.id not in taken_ids
            _add(state, queue, row, at, int(is_new))
            if state.history is not None:
                if is_new:
                    state.history.routed(row.id, name)
                else:
                    state.history.redriven(row.id, name, at)
            if is_new:
                staged.joined(name, row.id)
        state.cursors[name] = self.cursor
        state.dirty.cursors.add(name)

    def settled_buckets(self) -> Iterable[tuple[str, ListName, int]]:
        return [(self.queue, part.which, part.bucket) for part in self.taken]


class MoveSettledEffect(Effect, tag=42):
    """Settled messages become available in ``target``, or are deleted if ``target`` is empty."""

    queue: str
    at_ms: int
    which: ListName
    bucket: int
    ids: list[int]
    target: str
    rows: list[QueueRow]

    def apply(self, state: StoreState) -> None:
        name = self.queue
        at = self.at_ms
        target = self.target
        staged = state.staged
        state.queues[name].settled_list(self.which).take(self.bucket, self.ids)
        if not target:
            for id in self.ids:
                state.collect(name, id)
                if state.history is not None:
                    state.history.left(id, name, at)
            return
        queue = state.queues[target]
        for row in self.rows:
            _add(state, queue, row, at, 0)
            if state.history is not None:
                state.history.redriven(row.id, name, at)
                if target != name:
                    state.history.left(row.id, name, at, "moved")
                    state.history.routed(row.id, target)
            staged.back(name, row.id, _KINDS[self.which], moved=target != name)
            if target != name:
                staged.joined(target, row.id, more=False)
        _check_for_doubles(state, target)

    def settled_buckets(self) -> Iterable[tuple[str, ListName, int]]:
        return ((self.queue, self.which, self.bucket),)


class RelocateEffect(MessagesEffect, tag=82):
    """Available messages moved to buckets of other partitions of their queue; ``targets`` has one for each message."""

    targets: list[int]

    def active_buckets(self) -> Iterable[tuple[str, int]]:
        return {(self.queue, bucket) for bucket in (*self.pairs[1::2], *self.targets)}

    def apply(self, state: StoreState) -> None:
        messages = state.queues[self.queue].messages
        for id, target in zip(self.pairs[::2], self.targets, strict=True):
            messages.relocate(messages.available[id], target, self.at_ms)


class MoveWaitingEffect(MessagesEffect, tag=75):
    """Available messages of a queue were moved to ``target``, or copied, in which case ``pairs`` is empty."""

    target: str
    rows: list[QueueRow]

    def apply(self, state: StoreState) -> None:
        name = self.queue
        at = self.at_ms
        target = self.target
        history = state.history
        staged = state.staged
        source, into = state.queues[name], state.queues[target]
        for id in self.pairs[::2]:
            source.messages.remove(source.messages.available[id])
            source.counts.moved += 1
            if history is not None:
                history.left(id, name, at, "moved")
        for row in self.rows:
            _add(state, into, row, at, int(not self.pairs))
            if history is not None:
                history.routed(row.id, target)
            staged.joined(target, row.id, more=not self.pairs)
            if self.pairs:
                staged.moved(name, row.id)
        _check_for_doubles(state, target)


class ArchiveFailedEffect(Effect, tag=54):
    """Failed messages of one bucket are archived. ``rows`` is a flat list id, failed at, attempts, id, … of them."""

    queue: str
    bucket: int
    rows: list[int]

    @classmethod
    def of(cls, queue: str, bucket: int, rows: Iterable[SettledEntry]) -> ArchiveFailedEffect:
        """Build the effect for these entries of the bucket."""
        return cls(queue, bucket, [field for row in rows for field in row])

    def apply(self, state: StoreState) -> None:
        queue = state.queues[self.queue]
        ids = self.rows[::3]
        queue.failed.take(self.bucket, ids)
        for id, failed_at, attempts in zip(ids, self.rows[1::3], self.rows[2::3], strict=True):
            queue.archived_failed.append(id, failed_at, attempts)

    def settled_buckets(self) -> Iterable[tuple[str, ListName, int]]:
        return ((self.queue, "failed", self.bucket),)


def _check_for_doubles(state: StoreState, name: str) -> None:
    """Make the queue's cursor skip messages in the queue, as some were just added that it has not examined yet."""
    cursor = state.cursors.get(name)
    if cursor is not None and not cursor.is_done and not cursor.checks:
        state.cursors[name] = cursor._replace(checks=True)
        state.dirty.cursors.add(name)


def _add(state: StoreState, queue: Queue, row: QueueRow, at: int, more: int) -> None:
    queue.counts.published += 1
    visible_at = row.visible_at_ms
    known_at = max(at, min(visible_at, at + 1))
    entry = queue.messages.add(row.bucket, row.id, row.priority, visible_at, row.deadline_ms, known_at, row.size)
    entry.claimed_at = at  # so a message that is visible from the next millisecond on can be claimed immediately
    joined = state.dirty.joined
    joined[row.id] = joined.get(row.id, 0) + more
