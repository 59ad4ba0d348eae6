"""Expiry of leases: leases of sessions that did not reconnect in time, and *timed leases*.

A read of the queue client takes a timed lease, which ends after its visibility timeout, independently of connections.
Its holder is a session that no connection can have: the id is :data:`MARK` followed by a hash of the client's id. A
timed lease is not renewed automatically, and every client that knows the message's id may settle the message. The id of
the session also identifies the client as a worker.
"""

from __future__ import annotations

import hashlib
from asyncio import TimerHandle, get_running_loop
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from ...protocol.messages import Outcome
from ...protocol.queue_arguments import DEFAULT_LEASE_SECONDS
from ...storage.operations.message_operations import Operations
from ...storage.state.queue_buckets import QueueEntry
from ...storage.state.store_state import StoreState
from ..model.sessions import Session
from .instance_core import Core
from .lease_tokens import LeaseTable
from .session_lifecycle import SessionLifecycle

#: first bytes of the id of a session with timed leases; one random id in 2^48 begins with them
MARK = b"\0timed"
#: maximum number of leases that end in one turn of the event loop
_ENDS_PER_TURN = 1000
_MAX_DELAY_SECONDS = 3600.0
#: maximum time that tasks run without their session: the duration of a lease
_TASKS_GRACE_MS = 1000 * DEFAULT_LEASE_SECONDS


def session_of(client: bytes) -> bytes:
    """Return the id of the session that holds a client's timed leases."""
    return MARK + hashlib.blake2b(client, digest_size=16 - len(MARK)).digest()


def is_timed(session: bytes) -> bool:
    """Return True if this session holds timed leases."""
    return session.startswith(MARK)


class TimedLeases:
    """Timed leases of one instance, in a heap by end time. The heap may still contain leases that have ended."""

    def __init__(self, core: Core, leases: LeaseTable, names: Mapping[bytes, str]) -> None:
        """Create the heap; ``names`` are the names of sessions in the store."""
        self._leases = leases
        self._queues = core.queues
        self._names = names
        self._clock = core.clock
        self._outbox = core.outbox
        self._failure = core.failure
        self._loop = get_running_loop()
        self._ends: list[tuple[int, str, int, int]] = []  # lease until, queue, message id, token
        self._limit = 1024
        self.transient_readers: dict[bytes, str] = {}  # names of readers with leases of transient queues
        self._timer: TimerHandle | None = None
        self._timer_at_ms = 0

    def load(self) -> None:
        """Add the leases in the store. Their end times do not change if the broker was down."""
        self._ends = self._all()
        heapify(self._ends)
        self._limit = 2 * len(self._ends) + 1024
        holders = {entry.session for queue in self._queues.values() for entry in queue.messages.in_flight.values()}
        for id in self.transient_readers.keys() - holders:
            del self.transient_readers[id]
        self._set_timer()

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def note(self, queue: str, entry: QueueEntry) -> None:
        """Record a timed lease that is new or has a new end."""
        heappush(self._ends, (entry.lease_until, queue, entry.id, entry.claimed_at))
        if len(self._ends) > self._limit:
            self.load()
        elif self._timer is None or entry.lease_until < self._timer_at_ms:
            self._set_timer()

    def holder(self, entry: QueueEntry) -> Session:
        """Return the holder of a timed lease as a session."""
        return Session(entry.session, self.name_of(entry.session))

    def name_of(self, session: bytes) -> str:
        """Return the name of a session without a connection; empty if it is unknown."""
        return self._names.get(session) or self.transient_readers.get(session, "")

    def _all(self) -> list[tuple[int, str, int, int]]:
        ends: list[tuple[int, str, int, int]] = []
        for name, queue in self._queues.items():
            for entry in queue.messages.in_flight.values():
                if is_timed(entry.session):
                    ends.append((entry.lease_until, name, entry.id, entry.claimed_at))
        return ends

    # ------------------------------------------------------------------ time
    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ends:
            self._timer_at_ms = self._ends[0][0]
            delay = (self._timer_at_ms - self._clock.now_ms()) / 1000
            self._timer = self._loop.call_later(min(max(delay, 0), _MAX_DELAY_SECONDS), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.expire()
        except Exception as exc:
            self._failure.fail(exc)

    def expire(self) -> int:
        """End expired leases, up to a limit; return their number."""
        now, count = self._clock.now_ms(), 0
        while self._ends and self._ends[0][0] <= now and count < _ENDS_PER_TURN:
            until, name, id, token = heappop(self._ends)
            queue = self._queues.get(name)
            entry = queue.messages.in_flight.get(id) if queue is not None else None
            if queue is None or entry is None or entry.claimed_at != token or entry.lease_until != until:
                continue  # settled, or extended: the heap has another item with the new end
            if not queue.deleting and is_timed(entry.session):
                self._leases.end(self.holder(entry), queue, entry, Outcome.REQUEUE, lease_expired=True)
                count += 1
        if count:
            self._outbox.schedule()
        self._set_timer()
        return count


class LeaseExpiry:
    """Renewal of the leases of connected sessions, and expiry of the leases of lost sessions.

    Args:
        grace_ms: the time after which a session without a connection loses its leases.
        restart_grace_ms: the time after startup for which leases from before the startup stay, even if they have
            ended by the clock.
    """

    def __init__(
        self,
        core: Core,
        lifecycle: SessionLifecycle,
        leases: LeaseTable,
        state: StoreState,
        operations: Operations,
        grace_ms: int,
        restart_grace_ms: int,
    ) -> None:
        self._core = core
        self._lifecycle = lifecycle
        self._leases = leases
        self._state = state
        self._operations = operations
        self._grace_ms = grace_ms
        self._restart_grace_ms = restart_grace_ms
        self._opened_at_ms = core.clock.now_ms()
        #: sessions without a connection that have running tasks, and the time at which the connection was lost
        self._unattended: dict[bytes, int] = {}

    def renew(self) -> None:
        """Extend the stored leases of all connected sessions."""
        for session in self._core.sessions.values():
            if session.connection is not None and session.id in self._state.leases:
                self._operations.renew_by_queue(session.id)
                self._core.outbox.schedule()

    def expire(self) -> int:
        """End the leases of sessions that did not reconnect in time; return their number.

        Leases from before a restart end at the stored time, but not within the grace period after the restart.
        """
        expired = 0
        now = self._core.clock.now_ms()
        lost_sessions = [session for session in self._core.sessions.values() if session.connection is None]
        for session in lost_sessions:
            if session.lost_at_ms + self._grace_ms <= now:
                expired += len(self._leases.held_by(session))
                # a client may complete its tasks during a network partition, and reconnect to report them
                self._lifecycle.close(session, Outcome.REQUEUE, lease_expired=True, tasks_go_on=not session.is_local)
        self._lose_tasks(now)
        if self._opened_at_ms + self._restart_grace_ms <= now:  # clients from before the restart had time to reconnect
            expired += self._expire_before_restart(now)
            self._forget_unused_sessions()
        return expired

    def _forget_unused_sessions(self) -> None:
        """Forget the names and owners of sessions that have no client, no lease and no other record."""
        state, sessions = self._state, self._core.sessions
        tables = state.leases, state.producers, state.running.by_session
        unused_ids = [
            id for id in state.session_names if id not in sessions and not any(id in table for table in tables)
        ]
        for id in unused_ids:
            self._operations.forget_session(id)
            self._core.outbox.schedule()

    def _lose_tasks(self, now: int) -> None:
        """Record as lost the tasks of sessions that are absent for too long, after a restart or a lost connection.

        If reports were disabled at this startup, all tasks are lost immediately, because no worker reports them.
        """
        running = self._state.running.by_session
        if not running and not self._unattended:
            return
        since = self._unattended
        self._unattended = {id: since.get(id, now) for id in running.keys() - self._core.sessions.keys()}
        reported = self._leases.expects_reports
        overdue = [id for id, seen_ms in self._unattended.items() if seen_ms + _TASKS_GRACE_MS <= now]
        for id in overdue if reported else list(running):
            self._leases.lose_tasks(id)
            self._core.outbox.schedule()

    def _expire_before_restart(self, now: int) -> int:
        expired, leases = 0, self._state.leases
        for id in leases.keys() - self._core.sessions.keys():
            if is_timed(id):
                continue  # TimedLeases ends it
            name = self._state.session_names.get(id, "")
            for entry in list(leases[id].values()):
                queue = self._core.queues.get(entry.queue)
                if entry.lease_until <= now and queue is not None:
                    queue.end(entry, Outcome.REQUEUE, name, lease_expired=True)
                    expired += 1
                    self._core.queues.wake(queue)
                    self._core.outbox.schedule()
        return expired
