"""Who waits at a queue for messages without being its consumer: a Get, or a Read of the queue client.

:meth:`Instance.deliver` offers each deliverable message to the first getter of the queue, before its consumers, and
tells all of them when there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ..protocol.messages import Got
from .entities import BrokerQueue, Channel, Session

if TYPE_CHECKING:
    from ..storage.queue_buckets import Entry
    from .instance import Instance


class Getter(Protocol):
    """One that waits."""

    session: Session

    def take(self, instance: Instance, queue: BrokerQueue, entry: Entry) -> bool:
        """Claim a message; whether this getter has all that it wanted."""

    def nothing(self, instance: Instance, queue: BrokerQueue) -> bool:
        """There is no message now; whether this getter is done with it."""

    def end(self, instance: Instance, queue: BrokerQueue) -> None:
        """The queue goes: answer."""

    def drop(self, instance: Instance, queue: BrokerQueue) -> None:
        """The client's connection is gone: it will ask again."""


class GetOne:
    """A Get: one message or none, at once."""

    __slots__ = ("channel", "no_ack", "rid", "session")

    def __init__(self, session: Session, channel: Channel, rid: int, no_ack: bool) -> None:
        self.session = session
        self.channel = channel
        self.rid = rid
        self.no_ack = no_ack

    def take(self, instance: Instance, queue: BrokerQueue, entry: Entry) -> bool:
        delivery = instance.lease(queue, entry, self.session, self.channel, "", self.no_ack)
        instance.outbox.reply(self.session, Got(self.rid, delivery, len(queue.messages)))
        return True

    def nothing(self, instance: Instance, queue: BrokerQueue) -> bool:
        instance.outbox.reply(self.session, Got(self.rid, None, 0))
        return True

    def end(self, instance: Instance, queue: BrokerQueue) -> None:
        instance.outbox.reply(self.session, Got(self.rid, None, 0))

    def drop(self, instance: Instance, queue: BrokerQueue) -> None:
        """Nothing was claimed for it."""
