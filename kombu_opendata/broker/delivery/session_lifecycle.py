"""Life cycle of sessions: begin, loss of the connection, resumption within a grace period, end."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import AccessRefused
from ...protocol.declared import Declared
from ...protocol.messages import Cancelled, Hello, Outcome, Resume
from ...protocol.permissions import RESULTS
from ...storage.operations.message_operations import Operations
from ...storage.state.store_state import StoreState
from ..access.quotas import UNLIMITED, SessionQuotas
from ..access.rights import User
from ..model.sessions import Session, SessionConnection
from .instance_core import Core
from .lease_tokens import LeaseTable

_OUTCOMES = frozenset(map(int, Outcome))


class SessionLifecycle:
    """Begin and end of the sessions of one instance.

    Args:
        detached: called when a session has lost its connection or its permission to read results.
    """

    def __init__(
        self,
        core: Core,
        leases: LeaseTable,
        state: StoreState,
        operations: Operations,
        detached: Callable[[Session], None],
    ) -> None:
        self._sessions = core.sessions
        self._leases = leases
        self._queues = core.queues
        self._state = state
        self._operations = operations
        self._clock = core.clock
        self._outbox = core.outbox
        self._detached = detached

    # ------------------------------------------------------------------ beginning
    def begin(
        self,
        hello: Hello,
        greeting: Hello | Resume,
        connection: SessionConnection,
        user: User,
        quotas: SessionQuotas = UNLIMITED,
    ) -> tuple[Session, int]:
        """Attach a connection to its session; return the session and the number of leases that it still has.

        Raises:
            AccessRefused: the user may not use the instance, or the session belongs to another user.
            ConnectionLimitExceeded: the user, or the instance, has too many connections.
        """
        rights = user.rights(hello.instance)
        previous = self._sessions.get(hello.session)
        if not self._is_owner(hello.session, previous, user.name):
            raise AccessRefused("this session belongs to another user: begin a new one", user=user.name)
        for quota in quotas:
            quota.check_connection(previous)
        session = self._register(hello)
        session.user, session.rights = user, rights
        if hello.undeclared and session.declared is None:
            session.declared = Declared()
        old = session.connection
        if old is not None:
            self.detach(session)
            old.abort()
        session.connection, session.is_local = connection, connection.is_local
        session.settled = session.reported_settled = 0
        session.quotas = UNLIMITED  # existing objects stay
        adopted = self._resume(session, greeting)
        session.quotas = quotas
        for quota in quotas:
            quota.sessions.add(session)
        self._operations.name_session(session.id, hello.name, user.name)
        return session, adopted

    def _is_owner(self, id: bytes, session: Session | None, user: str) -> bool:
        """Return True if a user may have the session of this id: it is new, or the user's own.

        After a restart, the store has the owner. If the broker has no users now, or had none when the session began,
        each client may resume it.
        """
        if session is not None:
            return session.user.name == user
        owner = self._state.session_owners.get(id, "")
        return not owner or not user or owner == user

    def _register(self, hello: Hello) -> Session:
        """Return the session of this id, or create it."""
        session = self._sessions.get(hello.session)
        if session is None:
            sessions = list(self._sessions.values())
            session = self._sessions[hello.session] = Session(hello.session, hello.name)
            session.since_ms = self._clock.now_ms()
            session.newest_publish = self.last_publish(session)
            if hello.client:  # another connection of a client that may be suspended
                session.suspended = any(other.suspended for other in sessions if other.client == hello.client)
        session.name = hello.name
        session.client = hello.client or hello.session
        return session

    def _resume(self, session: Session, greeting: Hello | Resume) -> int:
        """Resume a session, also after a restart; return the number of leases that it still has.

        The client reports the messages that it has settled and those that it holds. It did not receive the other
        messages of the session, which are released without counting an attempt.
        """
        leases = self._leases
        task_reports = greeting.reports if isinstance(greeting, Resume) else ()
        reports = {place: report for place, report in task_reports if not report.fault}
        for place, (outcome, name, id, token) in enumerate(greeting.settles):
            if outcome not in _OUTCOMES:  # from a newer client; the message is released
                continue
            leases.settle_one(session, outcome, name, id, token, reports.get(place))
        session.lease_channels.clear()
        session.channels.clear()
        adopted: set[tuple[str, int]] = set()
        for number, name, id, token in greeting.held:
            if leases.find(session, name, id, token) is not None:
                channel = session.channel(number)
                channel.held += 1
                session.lease_channels[(name, id)] = channel
                adopted.add((name, id))
        for queue, entry in leases.held_by(session):
            if (queue.name, entry.id) not in adopted:
                leases.end(session, queue, entry, Outcome.RELEASE)
        return len(adopted)

    def change_user(self, session: Session, user: User) -> None:
        """Apply the new rights of a session's user, and cancel consumers of queues that it may no longer read.

        Raises:
            AccessRefused: the user may no longer use the instance.
        """
        session.user, session.rights = user, user.rights(session.rights.instance)
        read = session.rights.read
        for channel in session.channels.values():
            for consumer in list(channel.consumers.values()):
                if not read[consumer.queue.name]:
                    self._queues.remove_consumer(consumer)
                    self._outbox.reply(session, Cancelled(channel.number, consumer.tag, "may not be read any more"))
        if not read[RESULTS]:
            self._detached(session)
        for queue in list(self._queues.values()):
            if not read[queue.name]:
                for getter in [getter for getter in queue.getters if getter.session is session]:
                    queue.getters.remove(getter)
                    getter.end()

    def knows(self, id: bytes) -> bool:
        """Return True if the session exists, with or without a connection."""
        return id in self._sessions

    def last_publish(self, session: Session) -> int:
        """Return the number of a session's last stored publish; 0 if there is none."""
        last = self._state.producers.get(session.id)
        return last.last_sequence if last is not None else 0

    # ------------------------------------------------------------------ end
    def detach(self, session: Session) -> None:
        """Detach a lost connection: stop deliveries; the leases stay for the grace period."""
        session.connection = None
        for quota in session.quotas:
            quota.sessions.discard(session)
        session.lost_at_ms = self._clock.now_ms()
        session.replies.clear()
        session.deliveries.clear()
        session.turn_bytes = 0
        self._detached(session)
        for channel in session.channels.values():
            for consumer in channel.consumers.values():
                if consumer in consumer.queue.consumers:
                    consumer.queue.consumers.remove(consumer)
        for queue in list(self._queues.with_getters):
            for getter in [getter for getter in queue.getters if getter.session is session]:
                queue.getters.remove(getter)
                getter.drop()
            if not queue.getters:
                self._queues.with_getters.pop(queue, None)

    def close(
        self, session: Session, outcome: Outcome, *, lease_expired: bool = False, tasks_go_on: bool = False
    ) -> None:
        """End a session and its leases, and delete its exclusive and auto-delete queues.

        The tasks that it started become lost. With ``tasks_go_on``, another session may report them.
        """
        consumed = {consumer.queue for channel in session.channels.values() for consumer in channel.consumers.values()}
        for queue, entry in self._leases.held_by(session):
            self._leases.end(session, queue, entry, outcome, lease_expired=lease_expired)
        self.detach(session)
        for served in consumed:
            if served.active is not None and served.active[0] == session.id:
                served.active = None
                self._queues.wake(served)
        unused_queues = {candidate for candidate in consumed if candidate.auto_delete and not candidate.consumers}
        for queue_to_drop in unused_queues | session.owned:
            if self._queues.get(queue_to_drop.name) is queue_to_drop:
                queue_to_drop.drop()
        self._sessions.pop(session.id, None)
        self._state.running.set_late(session.id, {})
        if not tasks_go_on:
            self._leases.lose_tasks(session.id)
        if outcome == Outcome.RELEASE and session.id not in self._state.running.by_session:
            self._operations.forget_session(session.id)
        self._outbox.schedule()
