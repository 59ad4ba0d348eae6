"""Effects on messages of a queue: deliveries and their ends, removals, and changes by message id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ...protocol.task_reports import TaskState
from ..records import staged_jobs
from ..records.dead_letter import REVOKED
from ..records.history_log import ACKED, EXPIRED, REJECTED, RELEASED, REQUEUED
from ..records.history_log import FAILED as GIVEN_UP
from ..state.queue_buckets import QueueEntry
from ..state.staged_state import DONE, FAILED, REMOVED
from ..state.store_state import Queue, StoreState
from . import Effect


class MessagesEffect(Effect):
    """The base of effects on some messages of a queue."""

    queue: str
    at_ms: int
    pairs: list[int]

    def active_buckets(self) -> Iterable[tuple[str, int]]:
        return _buckets_of(self.queue, self.pairs)


def _buckets_of(queue: str, pairs: list[int]) -> Iterable[tuple[str, int]]:
    return {(queue, bucket) for bucket in pairs[1::2]}


class ClaimEffect(Effect, tag=3):
    """available → in flight. None of these messages was delivered before."""

    queue: str
    session: bytes
    at_ms: int
    lease_until_ms: int
    pairs: list[int]

    def apply(self, state: StoreState) -> None:
        name = self.queue
        session = self.session
        at = self.at_ms
        until, ids = self.lease_until_ms, self.pairs[::2]
        queue = state.queues[name]
        messages = queue.messages
        leases = state.leases.get(session)
        if leases is None:
            leases = state.leases[session] = {}
        for id in ids:
            leases[name, id] = entry = messages.available[id]
            messages.claim(entry, session, at, until)
        state.dirty.sessions.add(session)
        queue.counts.delivered += len(ids)
        if queue.flow is not None:
            state.use_tokens(queue, len(ids), at)
        if at > state.newest_ms:
            state.newest_ms = at

    def active_buckets(self) -> Iterable[tuple[str, int]]:
        return _buckets_of(self.queue, self.pairs)


class ClaimAgainEffect(ClaimEffect, tag=3):
    """A claim of messages of which some were delivered before.

    It contains the number of these, because the summary of a cold bucket no longer shows it.
    """

    redelivered: int = 0

    def apply(self, state: StoreState) -> None:
        ClaimEffect.apply(self, state)
        state.queues[self.queue].counts.redelivered += self.redelivered


class AckEffect(MessagesEffect, tag=4):
    """in flight → done.

    ``runs`` contains the outcomes of the tasks of all these messages, or is empty: a flat list state, runtime in µs,
    process id, state, …
    """

    runs: list[int] = []  # noqa: RUF012 - a field's default; never changed

    def apply(self, state: StoreState) -> None:
        at = self.at_ms
        queue = state.queues[self.queue]
        history = state.history
        messages = queue.messages
        in_flight, names, runs = messages.in_flight, state.session_names, self.runs
        for place, id in enumerate(self.pairs[::2]):
            entry = in_flight[id]
            if history is not None:
                run = runs[3 * place : 3 * place + 3] if runs else ()
                history.ended(entry, names.get(entry.session, ""), at, ACKED, *run)
            acknowledge(state, queue, entry, at)
        if state.staged.active and self.pairs:
            state.staged.acknowledged(self.queue, self.pairs[::2], runs, at)
        if state.idempotency.unique:
            for id in self.pairs[::2]:
                state.idempotency.ended(id)


def acknowledge(state: StoreState, queue: Queue, entry: QueueEntry, at: int) -> None:
    """Move a message from in flight to done."""
    state.unlease(entry)
    queue.messages.settle(entry)
    queue.done.append(entry.id, at, entry.attempts)
    queue.counts.acked += 1


class ReturnEffect(MessagesEffect, tag=5):
    """in flight → available, immediately."""

    costs_attempt: bool
    consumer: str
    visible_at_ms: ClassVar[int] = 0
    lease_expired: ClassVar[bool] = False

    @staticmethod
    def of(
        queue: str,
        at_ms: int,
        pairs: list[int],
        costs_attempt: bool,
        consumer: str,
        visible_at_ms: int = 0,
        lease_expired: bool = False,
    ) -> ReturnEffect:
        """Build the shortest form of this effect."""
        if lease_expired:
            return ReturnExpiredEffect(queue, at_ms, pairs, costs_attempt, consumer, visible_at_ms, True)
        if visible_at_ms:
            return ReturnLaterEffect(queue, at_ms, pairs, costs_attempt, consumer, visible_at_ms)
        return ReturnEffect(queue, at_ms, pairs, costs_attempt, consumer)

    def apply(self, state: StoreState) -> None:
        at = self.at_ms
        costs_attempt = self.costs_attempt
        consumer = self.consumer
        visible_at, lease_expired = self.visible_at_ms, self.lease_expired
        outcome = RELEASED
        if lease_expired:
            outcome = EXPIRED
        elif costs_attempt:
            outcome = REQUEUED
        queue = state.queues[self.queue]
        messages = queue.messages
        for id in self.pairs[::2]:
            entry = messages.in_flight[id]
            if state.history is not None:
                state.history.ended(entry, consumer, at, outcome)
            state.unlease(entry)
            queue.counts.came_back(costs_attempt=costs_attempt, lease_expired=lease_expired)
            if state.staged.reported:
                state.staged.reported.pop((self.queue, id), None)
            if costs_attempt:
                state.record_attempt(entry, consumer)
            messages.put_back(entry, at, costs_attempt=costs_attempt, visible_at=visible_at)


class ReturnLaterEffect(ReturnEffect, tag=5):
    """in flight → available, from a given time on."""

    visible_at_ms: int = 0  # type: ignore[misc]  # a field of the longer form


class ReturnExpiredEffect(ReturnLaterEffect, tag=5):
    """As :class:`ReturnLaterEffect`, with a flag for a lease that expired."""

    lease_expired: bool = False  # type: ignore[misc]  # a field of the longer form


class FailEffect(MessagesEffect, tag=6):
    """in flight → failed, rejected by the consumer; with a reason also dead letters."""

    consumer: str
    reason: str = ""
    no_attempts_left: ClassVar[bool] = False
    lease_expired: ClassVar[bool] = False

    def apply(self, state: StoreState) -> None:
        at = self.at_ms
        consumer = self.consumer
        given_up = self.no_attempts_left
        queue, outcome = state.queues[self.queue], GIVEN_UP if given_up else REJECTED
        end: int = TaskState.LOST if self.lease_expired else TaskState.REJECTED
        if self.reason:
            end = staged_jobs.DEAD_LETTERED
        for id in self.pairs[::2]:
            if given_up:
                queue.counts.came_back(costs_attempt=True, lease_expired=self.lease_expired)
                queue.counts.exhausted += 1
            else:
                queue.counts.rejected += 1
            entry = queue.messages.in_flight[id]
            if state.history is not None:
                state.history.ended(entry, consumer, at, outcome)
            state.unlease(entry)
            queue.messages.settle(entry)
            queue.failed.append(id, at, entry.attempts)
            if state.staged.active:
                state.staged.ended(self.queue, id, FAILED, end, at)
            state.record_attempt(entry, consumer)
            if self.reason:
                state.add_dead_letter(queue, entry, at, self.reason, last_use=False)


class GiveUpEffect(FailEffect, tag=6):
    """in flight → failed, because no attempt was left when the message was requeued or its lease expired."""

    no_attempts_left: bool = False  # type: ignore[misc]  # a field of the longer form
    lease_expired: bool = False  # type: ignore[misc]  # a field of the longer form


class RemoveEffect(Effect, tag=7):
    """available → deleted: expired, dropped or purged; with a reason the messages become dead letters."""

    queue: str
    pairs: list[int]
    reason: str
    at_ms: int = 0
    why: ClassVar[str] = ""

    @staticmethod
    def of(queue: str, pairs: list[int], reason: str, at_ms: int, why: str) -> RemoveEffect:
        """Build the shortest form of this effect."""
        if why == reason:
            return RemoveEffect(queue, pairs, reason, at_ms)
        return RemoveForEffect(queue, pairs, reason, at_ms, why)

    def apply(self, state: StoreState) -> None:
        at = self.at_ms
        reason = self.reason
        why = self.why or self.reason
        queue = state.queues[self.queue]
        end = staged_jobs.EXPIRED if why == "expired" else staged_jobs.REMOVED
        if reason and reason != REVOKED:
            end = staged_jobs.DEAD_LETTERED
        for id in self.pairs[::2]:
            entry = queue.messages.available[id]
            if state.history is not None:
                state.history.left(id, self.queue, at, why)
            queue.messages.remove(entry)
            queue.counts.removed(1, why)
            if state.staged.active:
                state.staged.ended(self.queue, id, REMOVED, end, at)
            if reason:
                state.add_dead_letter(queue, entry, at, reason, last_use=True)
            else:
                state.dirty.garbage.append(id)

    def active_buckets(self) -> Iterable[tuple[str, int]]:
        return _buckets_of(self.queue, self.pairs)


class RemoveForEffect(RemoveEffect, tag=7):
    """As :class:`RemoveEffect`, with a reason for the messages' history that differs from that of the dead letters."""

    why: str = ""  # type: ignore[misc]  # a field of the longer form


class RenewEffect(Effect, tag=8):
    """All leases of a session are renewed, each for the lease duration of its queue from ``at_ms``.

    The journal of an older version may have no ``at_ms``: then all leases end at ``lease_until_ms``.
    """

    session: bytes
    lease_until_ms: int
    at_ms: int = 0

    def apply(self, state: StoreState) -> None:
        for entry in state.leases.get(self.session, {}).values():
            queue = state.queues[entry.queue]
            lease_ms = 1000 * queue.options.lease_seconds
            entry.lease_until = self.at_ms + lease_ms if self.at_ms else self.lease_until_ms
            queue.messages.touch(entry)


class ExtendEffect(MessagesEffect, tag=44):
    """in flight: the leases end at a given time unless they are renewed."""

    lease_until_ms: int

    def apply(self, state: StoreState) -> None:
        messages = state.queues[self.queue].messages
        for id in self.pairs[::2]:
            entry = messages.in_flight[id]
            entry.lease_until = self.lease_until_ms
            messages.touch(entry)


class DelayFlowEffect(Effect, tag=90):
    """Nothing of a partition is delivered before a given time; 0 means that an earlier delay was removed.

    The partition -1 is the whole queue.
    """

    queue: str
    partition: int
    until_ms: int

    def apply(self, state: StoreState) -> None:
        state.delay_flow(state.queues[self.queue], self.partition, self.until_ms)


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
                state.staged.ended(self.queue, id, REMOVED, staged_jobs.REMOVED, self.at_ms)


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
                state.staged.ended(self.queue, id, DONE, 0, at)
