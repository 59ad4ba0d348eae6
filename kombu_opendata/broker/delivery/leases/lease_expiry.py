"""The expiry of leases: those of sessions that did not come back within their grace period, or after a restart."""

from __future__ import annotations

from ....protocol.messages import Outcome
from ....storage.operations.message_operations import Operations
from ....storage.state.store_state import DEFAULT_LEASE_SECONDS, StoreState
from ..core import Core
from .lease_tokens import LeaseTable
from .session_lifecycle import SessionLifecycle
from .visibility_timeouts import is_timed

#: how long tasks may go on without their session, as long as the lease of a message
_TASKS_GRACE_MS = 1000 * DEFAULT_LEASE_SECONDS


class LeaseExpiry:
    """Renews the leases of connected sessions, and ends those of lost ones.

    Args:
        grace_ms: how long a session without a connection keeps its leases.
        restart_grace_ms: how long those from before the start keep them at least, whatever the clock says.
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
        self._unattended: dict[bytes, int] = {}  # sessions with running tasks, and since when they are gone

    def renew(self) -> None:
        """Extend the stored leases of all connected sessions."""
        for session in self._core.sessions.values():
            if session.connection is not None and session.id in self._state.leases:
                self._operations.renew_by_queue(session.id)
                self._core.outbox.schedule()

    def expire(self) -> int:
        """End the leases of sessions that did not come back in time; returns how many.

        Leases from before a restart last as the store says, and at least for the grace period after the restart.
        """
        expired, now = 0, self._core.clock.now_ms()
        lost = [session for session in self._core.sessions.values() if session.connection is None]
        for session in lost:
            if session.lost_at_ms + self._grace_ms <= now:
                expired += len(self._leases.held_by(session))
                # a client may run its tasks to their ends behind a network that is cut, and come back to report them
                self._lifecycle.close(session, Outcome.REQUEUE, lease_expired=True, tasks_go_on=not session.is_local)
        self._lose_tasks(now)
        if self._opened_at_ms + self._restart_grace_ms <= now:  # clients from before the restart had time to come back
            expired += self._expire_before_restart(now)
        state, sessions = self._state, self._core.sessions
        known = state.leases, state.producers, state.running.by_session
        gone = [id for id in state.session_names if id not in sessions and not any(id in each for each in known)]
        for id in gone:
            self._operations.forget_session(id)
            self._core.outbox.schedule()
        return expired

    def _lose_tasks(self, now: int) -> None:
        """End the tasks of sessions that were not seen for long: from before a restart, or whose client went on.

        If reports are off since the last start, that is all tasks at once: connected workers don't report them either.
        """
        running = self._state.running.by_session
        if not running and not self._unattended:
            return
        since = self._unattended
        self._unattended = {id: since.get(id, now) for id in running.keys() - self._core.sessions.keys()}
        reported = self._leases.expects_reports
        over = [id for id, seen_ms in self._unattended.items() if seen_ms + _TASKS_GRACE_MS <= now]
        for id in over if reported else list(running):
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
