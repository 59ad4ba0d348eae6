"""The durable state of an instance in memory, and what each effect does to it.

The live engine and recovery call the same methods, so that replaying the journal gives the state that was answered
for. What changed since the last checkpoint is remembered here for :mod:`kombu_opendata.storage.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from . import effects as fx
from . import moves, staged_rows
from .counts import QueueCounts
from .history.log import HistoryLog
from .idempotency import IdempotencyState
from .limits import Limits
from .log_state import LogState
from .moves import Which
from .queue_buckets import Entry
from .queue_state import QueueState
from .records.cursor import Cursor
from .records.dead_letter import REVOKED, DeadLetter
from .records.history_log import ACKED, EXPIRED, REJECTED, RELEASED, REQUEUED
from .records.history_log import FAILED as GIVEN_UP
from .records.payload import MAX_INLINE_BYTES
from .records.producer import NONE, Producer
from .records.removal import Removal
from .results import ResultState
from .settled_log import SettledLog
from .staged_state import DONE, REMOVED, StagedState
from .staged_state import FAILED as STAGED_FAILED
from .topology import Topology

DEFAULT_MAX_ATTEMPTS = 20
DEFAULT_DONE_RETENTION_SECONDS = 86_400
DEFAULT_FAILED_RETENTION_SECONDS = 14 * 86_400
DEFAULT_LEASE_SECONDS = 60
#: as many attempts are no limit
UNLIMITED_ATTEMPTS = 0xFFFF
DEAD_LETTER_ARGUMENTS = ("x-dead-letter-exchange", "x-dead-letter-routing-key")


class QueueOptions(NamedTuple):
    """The settings of a durable queue; retentions of 0 are for ever."""

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    done_retention_seconds: int = DEFAULT_DONE_RETENTION_SECONDS
    failed_retention_seconds: int = DEFAULT_FAILED_RETENTION_SECONDS
    lease_seconds: int = DEFAULT_LEASE_SECONDS
    arguments: dict[str, Any] = {}  # noqa: RUF012 - a field's default; nobody changes it


class Queue:
    """A durable queue: its messages, its settled lists, its options; and what was counted in it."""

    __slots__ = (
        "archived_failed", "at_hand", "counts", "dead_letters_to", "done", "failed", "limits", "messages", "name",
        "options",
    )  # fmt: skip

    def __init__(self, name: str, options: QueueOptions, created_at_ms: int = 0) -> None:
        self.name = name
        self.options = options
        self.limits = Limits.of(options.arguments)
        self.messages = QueueState(name, counts_bytes=self.limits.counts_bytes)
        self.at_hand = 0  # a guess: messages whose payloads were loaded ahead and are not delivered yet
        self.done = SettledLog()
        self.failed = SettledLog()
        self.archived_failed = SettledLog(optional=True)
        self.dead_letters_to = dead_letters_to(options.arguments)
        self.counts = QueueCounts(created_at_ms)


def dead_letters_to(arguments: dict[str, Any]) -> tuple[str, str | None] | None:
    """A queue's dead-letter exchange and routing key (None: the message's own); None when it has no such exchange."""
    exchange, routing_key = (arguments.get(name) for name in DEAD_LETTER_ARGUMENTS)
    return (exchange, routing_key if isinstance(routing_key, str) else None) if isinstance(exchange, str) else None


class DeletedQueue(NamedTuple):
    """What memory knew of a queue that is gone; the rest is in the store's records of its settled lists."""

    ids: set[int]
    buckets: dict[Which, set[int]]  # not as the store has them: their messages are in `ids` or collected
    dead_letters: set[int]  # ids that a dead letter still needs


class Dirty:
    """What the next checkpoint must write besides the queues' own dirty sets."""

    def __init__(self) -> None:
        self.block: tuple[int, int] | None = None
        self.queues: set[str] = set()  # config and options
        self.deleted_queues: dict[str, list[DeletedQueue]] = {}  # by name: it may come again and go again
        self.redeclared: dict[str, frozenset[bytes]] = {}  # deleted and declared again: the new one's keys
        self.exchanges: set[str] = set()
        self.bindings: set[tuple[str, str, str, str]] = set()  # queue, exchange, key, identity
        self.producers: set[bytes] = set()
        self.removals: set[bytes] = set()  # sessions
        self.sessions: set[bytes] = set()
        self.attempts: dict[int, list[str]] = {}
        self.whole_attempts: set[int] = set()  # ids whose list starts here: no older record
        self.routes: dict[int, int] = {}  # of new messages in several queues or in chunks
        self.garbage: list[int] = []  # settled or removed for good in one queue
        self.dead_letters: set[tuple[str, int]] = set()  # queue, id
        self.joined: dict[int, int] = {}  # stored messages that moved, and in how many more queues they are now
        self.cursors: set[str] = set()
        self.outdated: set[int] = set()  # messages that the log kept until now
        self.log = False  # its retention, or how far it was swept

    def __bool__(self) -> bool:
        return any(bool(value) for value in vars(self).values())


class StoreState:
    """Everything of one instance that must survive."""

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.topology = Topology()
        self.producers: dict[bytes, Producer] = {}
        self.removals: dict[bytes, Removal] = {}  # by session: its last purge or deletion of a queue
        self.session_names: dict[bytes, str] = {}
        self.leases: dict[bytes, dict[tuple[str, int], Entry]] = {}
        self.dead_letters: dict[tuple[str, int], DeadLetter] = {}  # by queue and id, the oldest first
        self.cursors: dict[str, Cursor] = {}  # by queue: what is routed in the background, or was
        self.newest_ms = 0  # ms since the epoch: no time in what was committed is after it
        self.next_id = 0
        self.block_end = 0
        self.dirty = Dirty()
        self.results = ResultState()
        self.idempotency = IdempotencyState()
        self.staged = StagedState()
        self.log = LogState()
        self.history: HistoryLog | None = None  # None: nothing of it is kept

    # ------------------------------------------------------------------ messages
    def publish(
        self,
        id: int,
        places: list[tuple[str, int]],
        priority: int,
        visible: int,
        deadline: int,
        now: int,
        *,
        large: bool,
        size: int = 0,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Add one message to its queues. It expires at its ``deadline`` or the queue's, if that is sooner."""
        if self.history is not None:
            self.history.published(id, places, headers)
        for name, bucket in places:
            queue = self.queues[name]
            ends = deadline
            if queue.limits.message_ttl_ms >= 0:
                ends = queue.limits.deadline(deadline, visible, now)
            queue.messages.add(bucket, id, priority, visible, ends, now, size).received_at = now
            queue.counts.published += 1
        if large or len(places) > 1:
            self.dirty.routes[id] = len(places)

    def remember_publish(self, session: bytes, seq: int, id: int, queues: int, now: int) -> None:
        """The session's publish number ``seq`` was applied."""
        self.producers[session] = self.producers.get(session, NONE).after(seq, id, queues, now)
        self.dirty.producers.add(session)

    def claim(
        self, queue: Queue, entries: Sequence[Entry], session: bytes, at: int, lease_until: int, redelivered: int
    ) -> None:
        """available → in flight. ``redelivered`` says how many were delivered before: not every entry still knows."""
        leases = self.leases.get(session)
        if leases is None:
            leases = self.leases[session] = {}
        for entry in entries:
            queue.messages.claim(entry, session, at, lease_until)
            leases[(entry.queue, entry.id)] = entry
        self.dirty.sessions.add(session)
        queue.counts.delivered += len(entries)
        queue.counts.redelivered += redelivered

    def _unlease(self, entry: Entry) -> None:
        leases = self.leases.get(entry.session)
        if leases is not None:
            leases.pop((entry.queue, entry.id), None)
            self.dirty.sessions.add(entry.session)
            if not leases:
                del self.leases[entry.session]

    def ack(self, queue: Queue, entry: Entry, at: int) -> None:
        """in flight → done."""
        if self.history is not None:
            self.history.ended(entry, self.session_names.get(entry.session, ""), at, ACKED)
        self._unlease(entry)
        queue.messages.settle(entry)
        queue.done.append(entry.id, at, entry.attempts)
        queue.counts.acked += 1
        if self.staged.active:
            self.staged.count(queue.name, entry.id, DONE, at)

    def fail(
        self,
        queue: Queue,
        entry: Entry,
        at: int,
        consumer: str,
        reason: str = "",
        given_up: bool = False,
        lease_expired: bool = False,
    ) -> None:
        """in flight → failed; with a reason a dead letter as well.

        Args:
            given_up: it had no attempts left, when it was given back or its lease expired.
        """
        if given_up:
            queue.counts.came_back(costs_attempt=True, lease_expired=lease_expired)
            queue.counts.exhausted += 1
        else:
            queue.counts.rejected += 1
        if self.history is not None:
            self.history.ended(entry, consumer, at, GIVEN_UP if given_up else REJECTED)
        self._unlease(entry)
        queue.messages.settle(entry)
        queue.failed.append(entry.id, at, entry.attempts)
        if self.staged.active:
            self.staged.count(queue.name, entry.id, STAGED_FAILED, at)
        self._record_attempt(entry, consumer)
        if reason:
            self._dead_letter(queue, entry, at, reason, last_use=False)

    def put_back(
        self,
        queue: Queue,
        entry: Entry,
        at: int,
        costs_attempt: bool,
        consumer: str,
        visible_at: int = 0,
        expired: bool = False,
    ) -> None:
        """in flight → available, at once or from ``visible_at``. ``expired``: the lease ended by itself."""
        if self.history is not None:
            outcome = EXPIRED if expired else REQUEUED if costs_attempt else RELEASED
            self.history.ended(entry, consumer, at, outcome)
        self._unlease(entry)
        queue.counts.came_back(costs_attempt=costs_attempt, lease_expired=expired)
        if costs_attempt:
            self._record_attempt(entry, consumer)
        queue.messages.put_back(entry, at, costs_attempt=costs_attempt, visible_at=visible_at)

    # ------------------------------------------------------------------ by id, whoever holds it
    def extend(self, queue: Queue, entry: Entry, lease_until: int) -> None:
        """Its lease, which nobody renews, ends then."""
        entry.lease_until = lease_until
        queue.messages.dirty.add(entry.bucket)

    def delete(self, queue: Queue, entry: Entry, at: int) -> None:
        """available or in flight → gone, without a trace in the done or failed messages."""
        if self.history is not None:
            self.history.left(entry.id, queue.name, at, "removed")
        if entry.id in queue.messages.in_flight:
            self._unlease(entry)
            queue.messages.settle(entry)
            queue.counts.deleted += 1
        else:
            queue.messages.remove(entry)
            queue.counts.purged += 1
        self.dirty.garbage.append(entry.id)
        if self.staged.active:
            self.staged.count(queue.name, entry.id, REMOVED, at)

    def archive(self, queue: Queue, entry: Entry, at: int, operator: str) -> None:
        """available → done, by somebody who never claimed it."""
        if self.history is not None:
            self.history.by_hand(entry.id, queue.name, at, entry.attempts, ACKED, operator)
        queue.messages.remove(entry)
        queue.done.append(entry.id, at, entry.attempts)
        queue.counts.archived += 1
        if self.staged.active:
            self.staged.count(queue.name, entry.id, DONE, at)

    def _record_attempt(self, entry: Entry, consumer: str) -> None:
        """The RFC's attempts record: who claimed it, in order. The first in an only queue needs no old record."""
        first = entry.attempts == 1 and entry.id not in self.dirty.joined
        if first and entry.id not in self.dirty.attempts:
            self.dirty.whole_attempts.add(entry.id)
        self.dirty.attempts.setdefault(entry.id, []).append(consumer)

    def remove(self, queue: Queue, entry: Entry, reason: str = "", at: int = 0, why: str = "") -> None:
        """available → gone: expired or purged; with a reason it becomes a dead letter. ``why`` is for its history."""
        if self.history is not None:
            self.history.left(entry.id, queue.name, at, why or reason)
        queue.messages.remove(entry)
        queue.counts.removed(1, why or reason)
        if self.staged.active:
            self.staged.count(queue.name, entry.id, REMOVED, at)
        if reason:
            self._dead_letter(queue, entry, at, reason, last_use=True)
        else:
            self.dirty.garbage.append(entry.id)

    # ------------------------------------------------------------------ dead letters
    def _dead_letter(self, queue: Queue, entry: Entry, at: int, reason: str, *, last_use: bool) -> None:
        exchange, routing_key = queue.dead_letters_to or ("", None)
        place = (queue.name, entry.id)
        self.dead_letters[place] = DeadLetter(reason, at, entry.priority, exchange, routing_key, last_use)
        self.dirty.dead_letters.add(place)
        queue.counts.dead_lettered += reason != REVOKED

    def dead_letter_sent(self, name: str, id: int) -> None:
        """The dead letter was published, or nobody takes it."""
        letter = self.dead_letters.pop((name, id))
        self.dirty.dead_letters.add((name, id))
        if letter.last_use:
            self.dirty.garbage.append(id)

    def collect(self, name: str, id: int) -> None:
        """A queue needs its settled message no more; a dead letter may."""
        if not self._keep_for_dead_letter(name, id):
            self.dirty.garbage.append(id)

    def _keep_for_dead_letter(self, name: str, id: int) -> bool:
        letter = self.dead_letters.get((name, id))
        if letter is None:
            return False
        self.dead_letters[(name, id)] = letter._replace(last_use=True)
        self.dirty.dead_letters.add((name, id))
        return True

    def renew(self, session: bytes, lease_until: int, at: int = 0) -> None:
        """Prolong every lease of a session; if there is an ``at``, by its queue's lease from then."""
        for entry in self.leases.get(session, {}).values():
            queue = self.queues[entry.queue]
            entry.lease_until = at + 1000 * queue.options.lease_seconds if at else lease_until
            queue.messages.dirty.add(entry.bucket)

    # ------------------------------------------------------------------ staged jobs
    def commit_staged(self, job_id: str, at: int, first_id: int, batches: list[tuple[str, int, int, int]]) -> None:
        """The messages of a job's batches exist, with the ids from ``first_id`` on; none is routed yet."""
        job = self.staged.commit(job_id, at, first_id, batches)
        self.next_id = max(self.next_id, first_id + job.rows)

    # ------------------------------------------------------------------ queues, exchanges, bindings
    def declare_queue(self, name: str, options: QueueOptions, at: int = 0) -> Queue:
        """``at``: ms since the epoch; 0 if that is not known."""
        queue = self.queues[name] = Queue(name, options, at)
        self.topology.add_queue(name, options.arguments)
        self.dirty.queues.add(name)
        return queue

    def delete_queue(self, name: str) -> None:
        """Forget a queue that was purged. Its settled lists are collected by the caller before."""
        queue = self.queues.pop(name)
        logs = {which: moves.settled_log(queue, which) for which in moves.LISTS}
        known = {id for log in logs.values() for id in log.unsaved_ids()}
        letters = {id for of, id in self.dead_letters if of == name}
        kept = {id for id in letters if not self.dead_letters[(name, id)].last_use}
        for id in kept:
            self._keep_for_dead_letter(name, id)
        deleted = DeletedQueue(known, {which: set(log.dirty) for which, log in logs.items()}, kept)
        for entry in list(queue.messages.in_flight.values()):
            self._unlease(entry)
            known.add(entry.id)
            if self.staged.active:
                self.staged.count(name, entry.id, REMOVED)
        for binding in self.topology.remove_queue(name):
            self.dirty.bindings.add((name, *binding))
        self.dirty.queues.discard(name)
        if self.cursors.pop(name, None) is not None:
            self.dirty.cursors.add(name)
        self.dirty.deleted_queues.setdefault(name, []).append(deleted)

    def declare_exchange(
        self, name: str, type: str, durable: bool, auto_delete: bool, arguments: dict[str, Any]
    ) -> None:
        self.topology.add_exchange(name, type, durable, auto_delete, arguments)
        if durable:
            self.dirty.exchanges.add(name)

    def delete_exchange(self, name: str) -> None:
        for queue, exchange, key, arguments in list(self.topology.bindings()):
            if exchange == name:
                self.unbind(queue, exchange, key, arguments)
        if self.topology.exchanges[name].durable:
            self.dirty.exchanges.add(name)
        self.topology.remove_exchange(name)

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        self.topology.bind(queue, exchange, routing_key, arguments)
        self._binding_changed(queue, exchange, routing_key, arguments)

    def unbind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any] | None = None) -> None:
        """``arguments`` None: from a journal of before there were headers exchanges."""
        self.topology.unbind(queue, exchange, routing_key, arguments or {})
        self._binding_changed(queue, exchange, routing_key, arguments or {})

    def _binding_changed(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        if queue in self.queues:
            identity = self.topology.get(exchange).identity(arguments)
            self.dirty.queues.add(queue)
            self.dirty.bindings.add((queue, exchange, routing_key, identity))

    # ------------------------------------------------------------------ sessions
    def name_session(self, session: bytes, name: str) -> None:
        self.session_names[session] = name
        self.dirty.sessions.add(session)

    def note_removal(self, session: bytes, call: int, messages: int, at: int, is_over: bool) -> None:
        """A session's call has removed so many messages."""
        self.removals[session] = Removal(call, messages, at, is_over)
        self.dirty.removals.add(session)

    def forget_session(self, session: bytes) -> None:
        """The session is over and holds nothing: no retry of its publishes or calls can come."""
        self.session_names.pop(session, None)
        if self.producers.pop(session, None) is not None:
            self.dirty.producers.add(session)
        if self.removals.pop(session, None) is not None:
            self.dirty.removals.add(session)
        self.dirty.sessions.add(session)

    # ------------------------------------------------------------------ replay
    def replay(self, effect: fx.Effect) -> tuple[int, Any] | None:
        """Apply one effect from the journal. What adds messages returns (id, effect): their records must be written."""
        kind = effect[0]
        if kind == fx.PUBLISH:
            _, id, _created, now, visible, deadline, _retention, headers, envelope, *rest = effect
            priority, places, session, seq, total = rest
            size = len(envelope)
            large = size > MAX_INLINE_BYTES
            self.publish(id, places, priority, visible, deadline, now, large=large, size=size, headers=headers)
            self.next_id = max(self.next_id, id + 1)
            if session:
                self.remember_publish(session, seq, id, total, now)
            return id, effect
        if kind == fx.STAGED_ROUTE:
            staged_rows.replay(self, effect)
            return effect[2], effect
        if kind == fx.CLAIM:
            _, name, session, at, until, pairs, *redelivered = effect
            queue = self.queues[name]
            entries = [queue.messages.available[id] for id in pairs[::2]]
            self.claim(queue, entries, session, at, until, sum(redelivered))
        elif kind in _SETTLE:
            self._replay_settle(effect)
        elif kind in _BY_ID:
            self._replay_by_id(effect)
        elif kind in _RESULTS:
            self.results.replay(effect)
        elif kind in moves.APPLY:
            moves.APPLY[kind](self, *effect[1:])
        elif kind == fx.SENT_WITH_KEY:
            self.idempotency.remember(*effect[1:])
        else:
            getattr(self, _PLAIN[kind])(*effect[1:])
        return None

    def _replay_by_id(self, effect: fx.Effect) -> None:
        kind, name, at, pairs, *more = effect
        queue = self.queues[name]
        messages = queue.messages
        for id in pairs[::2]:
            if kind == fx.EXTEND:
                self.extend(queue, messages.in_flight[id], *more)
            elif kind == fx.DELAY:
                messages.delay(messages.available[id], more[0], at)
            elif kind == fx.DELETE:
                self.delete(queue, messages.in_flight.get(id) or messages.available[id], at)
            else:
                self.archive(queue, messages.available[id], at, *more)

    def _replay_settle(self, effect: fx.Effect) -> None:
        kind, name, *rest = effect
        queue = self.queues[name]
        if kind == fx.REMOVE:
            pairs, *more = rest
            for id in pairs[::2]:
                self.remove(queue, queue.messages.available[id], *more)
            return
        at, pairs, *more = rest
        for id in pairs[::2]:
            entry = queue.messages.in_flight[id]
            if kind == fx.ACK:
                self.ack(queue, entry, at)
            elif kind == fx.FAIL:
                self.fail(queue, entry, at, *more)
            else:
                self.put_back(queue, entry, at, bool(more[0]), *more[1:])

    def time(self, at: int) -> None:
        """It is ``at`` now, or was."""
        self.newest_ms = max(self.newest_ms, at)

    def block(self, base: int, size: int) -> None:
        """Message ids up to ``base + size`` may be given out."""
        self.next_id = max(self.next_id, base)
        self.block_end = base + size
        self.dirty.block = (base, size)

    def redeclare_queue(
        self, name: str, max_attempts: int, done: int, failed: int, lease: int, arguments: dict[str, Any], at: int = 0
    ) -> None:
        self.declare_queue(name, QueueOptions(max_attempts, done, failed, lease, arguments), at)


_SETTLE = {fx.ACK, fx.RETURN, fx.FAIL, fx.REMOVE}
_BY_ID = {fx.EXTEND, fx.DELAY, fx.DELETE, fx.ARCHIVE}
_RESULTS = {fx.RESULT, fx.FORGET_RESULTS, fx.OPEN_CHORD, fx.CLOSE_CHORD}
_PLAIN = {
    fx.BLOCK: "block", fx.RENEW: "renew", fx.DECLARE_QUEUE: "redeclare_queue", fx.DELETE_QUEUE: "delete_queue",
    fx.DECLARE_EXCHANGE: "declare_exchange", fx.DELETE_EXCHANGE: "delete_exchange", fx.BIND: "bind",
    fx.UNBIND: "unbind", fx.SESSION: "name_session", fx.FORGET: "forget_session",
    fx.DEAD_LETTER_SENT: "dead_letter_sent", fx.STAGED_COMMIT: "commit_staged", fx.TIME: "time",
    fx.REMOVAL: "note_removal",
}  # fmt: skip


def buckets_of(effect: fx.Effect) -> Iterator[tuple[str, int]]:
    """The (queue, bucket) pairs that must be loaded before the effect can be replayed."""
    kind = effect[0]
    if kind in (fx.CLAIM, fx.ACK, fx.RETURN, fx.FAIL, fx.REMOVE) or kind in _BY_ID:
        pairs = next(part for part in effect[2:] if isinstance(part, (list, tuple)))
        for bucket in set(pairs[1::2]):
            yield effect[1], bucket
