"""Lease expiry: for sessions that did not reconnect within their grace period, or after a restart."""

from __future__ import annotations

from ....protocol.messages import Outcome
from ....storage.operations.message_operations import Operations
from ....storage.state.store_state import DEFAULT_LEASE_SECONDS, StoreState
from ..core import Core
from .lease_tokens import LeaseTable
from .session_lifecycle import SessionLifecycle
from .visibility_timeouts import is_timed

#: how long tasks may run without their session: as long as the lease of a message
_TASKS_GRACE_MS = 1000 * DEFAULT_LEASE_SECONDS


class LeaseExpiry:
    """Renewal of the leases of connected sessions, and expiry of those of lost ones.

    Args:
        grace_ms: how long a session without a connection keeps its leases.
        restart_grace_ms: how long leases from before the startup stay at least, regardless of the clock.
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
        #: sessions without a connection that have running tasks, and the time of its loss
        self._unattended: dict[bytes, int] = {}

    def renew(self) -> None:
        """Extend the stored leases of all connected sessions."""
        for session in self._core.sessions.values():
            if session.connection is not None and session.id in self._state.leases:
                self._operations.renew_by_queue(session.id)
                self._core.outbox.schedule()

    def expire(self) -> int:
        """End the leases of sessions that did not reconnect in time; returns their number.

        Leases from before a restart last as the store records, and at least for the grace period after the restart.
        """
        expired, now = 0, self._core.clock.now_ms()
        lost_sessions = [session for session in self._core.sessions.values() if session.connection is None]
        for session in lost_sessions:
            if session.lost_at_ms + self._grace_ms <= now:
                expired += len(self._leases.held_by(session))
                # a client may complete its tasks during a network partition, and reconnect to report them
                self._lifecycle.close(session, Outcome.REQUEUE, lease_expired=True, tasks_go_on=not session.is_local)
        self._lose_tasks(now)
        if self._opened_at_ms + self._restart_grace_ms <= now:  # clients from before the restart had time to reconnect
            expired += self._expire_before_restart(now)
        state, sessions = self._state, self._core.sessions
        tables = state.leases, state.producers, state.running.by_session
        unused_ids = [
            id for id in state.session_names if id not in sessions and not any(id in table for table in tables)
        ]
        for id in unused_ids:
            self._operations.forget_session(id)
            self._core.outbox.schedule()
        return expired

    def _lose_tasks(self, now: int) -> None:
        """End the tasks of sessions that have been absent for long: those from before a restart, or with a lost client.

        If reports were disabled at this startup, all tasks end immediately: connected workers don't report them either.
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
