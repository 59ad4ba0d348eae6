"""Leases: which session holds which message, and ending them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ....protocol.messages import Outcome
from ....storage.state.queue_buckets import Entry
from ...model.queue import BrokerQueue
from ...model.sessions import Session
from ..outbox import Outbox
from ..queues import Queues


class Leases:
    """The leases of one instance; ``stored`` are those of stored queues, by session, queue and message id."""

    __slots__ = ("_outbox", "_queues", "_stored")

    def __init__(self, queues: Queues, stored: Mapping[bytes, Mapping[tuple[str, int], Entry]], outbox: Outbox) -> None:
        self._queues = queues
        self._stored = stored
        self._outbox = outbox

    def find(self, session: Session, queue: str, id: int, token: int) -> tuple[BrokerQueue, Entry] | None:
        """The lease with this token if the session holds it; None for a stale or foreign token."""
        found = self._queues.get(queue)
        entry = found.messages.in_flight.get(id) if found is not None else None
        if found is None or entry is None or entry.claimed_at != token or entry.session != session.id or found.deleting:
            return None
        return found, entry

    def held_by(self, session: Session) -> list[tuple[BrokerQueue, Entry]]:
        """All leases of a session, in all kinds of queues."""
        entries = [*self._stored.get(session.id, {}).values(), *session.leases.values()]
        return [(self._queues[entry.queue], entry) for entry in entries if entry.queue in self._queues]

    def settle(self, session: Session, outcome: int, leases: Iterable[tuple[str, int, int]]) -> None:
        """End leases. Those that are not the session's any more are ignored: another consumer may have the message."""
        for name, id, token in leases:
            session.settled += 1
            found = self.find(session, name, id, token)
            if found is not None:
                self.end(session, *found, outcome)
        self._outbox.talk(session)

    def end(
        self,
        session: Session,
        queue: BrokerQueue,
        entry: Entry,
        outcome: int,
        *,
        delay_ms: int = -1,
        lease_expired: bool = False,
    ) -> None:
        """End one lease; the arguments are those of :meth:`.BrokerQueue.end`."""
        key = (queue.name, entry.id)
        channel = session.lease_channels.pop(key, None)
        if channel is not None:
            if channel.held == channel.prefetch:
                self._queues.wake_channel(channel)
            channel.held -= 1
        session.leases.pop(key, None)
        queue.end(entry, outcome, session.name, delay_ms=delay_ms, lease_expired=lease_expired)
        if outcome != Outcome.ACK:
            self._queues.wake(queue)

    def close_channel(self, session: Session, number: int) -> None:
        """Close a channel: remove its consumers, and release what it holds."""
        channel = session.channels.pop(number, None)
        if channel is None:
            return
        for consumer in list(channel.consumers.values()):
            self._queues.remove_consumer(consumer)
        for name, id in [key for key, of in session.lease_channels.items() if of is channel]:
            queue = self._queues.get(name)
            entry = queue.messages.in_flight.get(id) if queue is not None else None
            if queue is not None and entry is not None and entry.session == session.id:
                self.end(session, queue, entry, Outcome.RELEASE)
