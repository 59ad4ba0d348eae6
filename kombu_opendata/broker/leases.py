"""Sessions and their leases: settling, resuming after a reconnect, ending, renewing and expiring."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..protocol.messages import Hello, Outcome, Resume
from ..storage.queue_buckets import Entry
from .model.queue import BrokerQueue
from .model.sessions import Channel, Session
from .timed import is_timed

if TYPE_CHECKING:
    from .connection import Connection
    from .instance import Instance

log = logging.getLogger(__name__)


def find(instance: Instance, session: Session, queue: str, id: int, token: int) -> tuple[BrokerQueue, Entry] | None:
    """The lease of this token if the session holds it; a stale or foreign token gives None."""
    found = instance.queues.get(queue)
    entry = found.messages.in_flight.get(id) if found is not None else None
    if found is None or entry is None or entry.claimed_at != token or entry.session != session.id or found.deleting:
        return None
    return found, entry


def settle(instance: Instance, session: Session, outcome: int, leases: Iterable[tuple[str, int, int]]) -> None:
    """End leases. Those that are not the session's any more are ignored: another consumer may have the message."""
    for name, id, token in leases:
        session.settled += 1
        found = find(instance, session, name, id, token)
        if found is not None:
            end(instance, session, *found, outcome)
    instance.outbox.talk(session)


def end(
    instance: Instance,
    session: Session,
    queue: BrokerQueue,
    entry: Entry,
    outcome: int,
    *,
    delay_ms: int = -1,
    lease_expired: bool = False,
) -> None:
    """End one lease; the arguments are those of :meth:`BrokerQueue.end`."""
    key = (queue.name, entry.id)
    channel = session.lease_channels.pop(key, None)
    if channel is not None:
        if channel.held == channel.prefetch:
            _wake_consumers(instance, channel)
        channel.held -= 1
    session.leases.pop(key, None)
    queue.end(entry, outcome, session.name, delay_ms=delay_ms, lease_expired=lease_expired)
    if outcome != Outcome.ACK:
        instance.wake(queue)


def _wake_consumers(instance: Instance, channel: Channel) -> None:
    """The channel gets credit again."""
    for consumer in channel.consumers.values():
        instance.wake(consumer.queue)


def begin(instance: Instance, hello: Hello, said: Hello | Resume, connection: Connection) -> tuple[Session, int]:
    """Give a client's session its connection; returns it, and how many leases it still has."""
    session = _register(instance, hello)
    old = session.connection
    if old is not None:
        detach(instance, session)
        old.abort()
    session.connection = connection
    session.settled = session.reported_settled = 0
    adopted = resume(instance, session, said)
    instance.engine.operations.name_session(session.id, hello.name)
    return session, adopted


def _register(instance: Instance, hello: Hello) -> Session:
    """The session of this id, a new one if there is none."""
    found = instance.sessions.get(hello.session)
    if found is None:
        found = instance.sessions[hello.session] = Session(hello.session, hello.name)
        found.since_ms = instance.engine.clock.now_ms()
        if hello.client:  # one more connection of a client that may be suspended
            others = instance.sessions.values()
            found.suspended = any(each.suspended for each in others if each.client == hello.client)
    found.name = hello.name
    found.client = hello.client or hello.session
    return found


def resume(instance: Instance, session: Session, said: Hello | Resume) -> int:
    """Take a session over from its old connection or from before a restart; returns how many leases it still has.

    What the client settled and what it holds is taken as it says; every other lease was never received and is
    released, which costs no attempt.
    """
    for outcome, name, id, token in said.settles:
        found = find(instance, session, name, id, token)
        if found is not None:
            end(instance, session, *found, outcome)
    session.lease_channels.clear()
    session.channels.clear()
    adopted: set[tuple[str, int]] = set()
    for number, name, id, token in said.held:
        if find(instance, session, name, id, token) is not None:
            channel = session.channel(number)
            channel.held += 1
            session.lease_channels[(name, id)] = channel
            adopted.add((name, id))
    for queue, entry in held_by(instance, session):
        if (queue.name, entry.id) not in adopted:
            end(instance, session, queue, entry, Outcome.RELEASE)
    return len(adopted)


def held_by(instance: Instance, session: Session) -> list[tuple[BrokerQueue, Entry]]:
    """All leases of a session, in all kinds of queues."""
    stored = instance.engine.state.leases.get(session.id, {})
    entries = [*stored.values(), *session.leases.values()]
    return [(instance.queues[entry.queue], entry) for entry in entries if entry.queue in instance.queues]


def detach(instance: Instance, session: Session) -> None:
    """The connection is gone: no deliveries until it is back; the leases live on for the grace period."""
    session.connection = None
    session.lost_at_ms = instance.engine.clock.now_ms()
    session.replies.clear()
    session.deliveries.clear()
    instance.results.forget_session(session)
    for queue in instance.queues.values():
        queue.consumers = [consumer for consumer in queue.consumers if consumer.session is not session]
        for getter in [getter for getter in queue.getters if getter.session is session]:
            queue.getters.remove(getter)
            getter.drop()


def close(instance: Instance, session: Session, outcome: Outcome, *, lease_expired: bool = False) -> None:
    """The session is over: its leases end, its exclusive and auto-delete queues go."""
    consumed = {consumer.queue for channel in session.channels.values() for consumer in channel.consumers.values()}
    for queue, entry in held_by(instance, session):
        end(instance, session, queue, entry, outcome, lease_expired=lease_expired)
    detach(instance, session)
    for queue in list(instance.queues.values()):
        if queue.active is not None and queue.active[0] == session.id:
            queue.active = None
            instance.wake(queue)
        unused = queue in consumed and queue.auto_delete and not queue.consumers
        if queue.owner is session or unused:
            queue.drop()
    instance.sessions.pop(session.id, None)
    if outcome == Outcome.RELEASE:
        instance.engine.operations.forget_session(session.id)
    instance.outbox.schedule()


def renew_all(instance: Instance) -> None:
    """Prolong, on disk, the leases of all sessions that are connected."""
    for session in instance.sessions.values():
        if session.connection is not None and session.id in instance.engine.state.leases:
            instance.engine.operations.renew_by_queue(session.id)
            instance.outbox.schedule()


def expire(instance: Instance, grace_ms: int) -> int:
    """Return what sessions hold that did not come back: after a grace; from before a restart, when the lease ends.

    A lease that ended while no broker ran lasts for the grace, too: its client may have waited for a broker all along.
    Returns how many leases that were.
    """
    expired = 0
    now = instance.engine.clock.now_ms()
    for session in list(instance.sessions.values()):
        if session.connection is None and session.lost_at_ms + grace_ms <= now:
            expired += len(held_by(instance, session))
            close(instance, session, Outcome.REQUEUE, lease_expired=True)
    state = instance.engine.state
    back = instance.opened_at_ms + grace_ms <= now  # clients of before a restart had time to come back
    for id in state.leases.keys() - instance.sessions.keys() if back else ():
        if is_timed(id):
            continue  # TimedLeases ends it
        name = state.session_names.get(id, "")
        for entry in list(state.leases[id].values()):
            queue = instance.queues.get(entry.queue)
            if entry.lease_until <= now and queue is not None:
                queue.end(entry, Outcome.REQUEUE, name, lease_expired=True)
                expired += 1
                instance.wake(queue)
                instance.outbox.schedule()
    for id in state.session_names.keys() - instance.sessions.keys() - state.leases.keys() - state.producers.keys():
        instance.engine.operations.forget_session(id)
        instance.outbox.schedule()
    return expired
