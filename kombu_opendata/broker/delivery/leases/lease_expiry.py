"""The expiry of leases: those of sessions that did not come back within their grace period, or after a restart."""

from __future__ import annotations

from ....protocol.messages import Outcome
from ....storage.operations.message_operations import Operations
from ....storage.state.store_state import StoreState
from ..core import Core
from .lease_tokens import Leases
from .session_lifecycle import SessionLifecycle
from .visibility_timeouts import is_timed


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
        leases: Leases,
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
        for session in list(self._core.sessions.values()):
            if session.connection is None and session.lost_at_ms + self._grace_ms <= now:
                expired += len(self._leases.held_by(session))
                self._lifecycle.close(session, Outcome.REQUEUE, lease_expired=True)
        if self._opened_at_ms + self._restart_grace_ms <= now:  # clients from before the restart had time to come back
            expired += self._expire_before_restart(now)
        state = self._state
        for id in (
            state.session_names.keys() - self._core.sessions.keys() - state.leases.keys() - state.producers.keys()
        ):
            self._operations.forget_session(id)
            self._core.outbox.schedule()
        return expired

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
