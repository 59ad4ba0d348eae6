"""A Get: a client that takes one message from a queue without being its consumer."""

from __future__ import annotations

from collections.abc import Callable

from ...protocol.message_base import Message
from ...protocol.messages import Got
from ...storage.state.queue_buckets import Entry
from .sessions import Channel, ConsumedQueue, Session


class GetOne:
    """A getter that takes one message or none, at once."""

    __slots__ = ("channel", "no_ack", "reply", "rid", "session")

    def __init__(
        self, session: Session, channel: Channel, rid: int, no_ack: bool, reply: Callable[[Session, Message], None]
    ) -> None:
        self.session = session
        self.channel = channel
        self.rid = rid
        self.no_ack = no_ack
        self.reply = reply

    def take(self, queue: ConsumedQueue, entry: Entry) -> bool:
        delivery = queue.lease(entry, self.session, self.channel, "", self.no_ack)
        self.reply(self.session, Got(self.rid, delivery, len(queue.messages)))
        return True

    def nothing(self) -> bool:
        self.end()
        return True

    def end(self) -> None:
        self.reply(self.session, Got(self.rid, None, 0))

    def drop(self) -> None:
        """Nothing was claimed for it."""
