"""Answers and deliveries that wait for the next commit, so that nothing is sent before it is durable."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable

from ...protocol.messages import Count, Deliver, Ok, PublishConfirm, QueueDeclared, ResultStored, Sent, SettleConfirm
from ...protocol.messages.message_base import WireMessage
from ..model.sessions import Session, SessionConnection

#: answers that a client may get again, or ask for again, without harm
_REFUSABLE = frozenset((PublishConfirm, Sent, Ok, QueueDeclared, Count, ResultStored))

#: the messages for one connection, in order
OutgoingMessages = tuple[SessionConnection, list[WireMessage]]


class Outbox:
    """The answers and deliveries of an instance that wait for the next commit.

    Attributes:
        turn: delivers, commits and sends; :meth:`schedule` calls it once. Set by the instance.
        is_scheduled: there will be a turn, which clears it when it begins.
        talking: sessions with messages to be sent.
    """

    __slots__ = ("_committing", "_loop", "_parcels", "is_scheduled", "talking", "turn")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self.turn: Callable[[], None]
        self.is_scheduled = False
        self._parcels: list[OutgoingMessages] = []
        self._committing: list[OutgoingMessages] = []  # taken for the commit under way
        self.talking: set[Session] = set()

    # ------------------------------------------------------------------ adding
    def reply(self, session: Session, message: WireMessage) -> None:
        """Answer a session after the next commit."""
        session.replies.append(message)
        self.talking.add(session)
        if not self.is_scheduled:
            self.schedule()

    def answer_last(self, connection: SessionConnection, message: WireMessage) -> None:
        """Answer a connection whose session is over, after the next commit."""
        self._parcels.append((connection, [message]))
        self.schedule()

    def talk(self, session: Session) -> None:
        """Send the messages that were added to the session."""
        self.talking.add(session)
        if not self.is_scheduled:
            self.schedule()

    def send_now(self, session: Session, message: WireMessage) -> None:
        """Send a message that shows nothing of what the next commit makes durable."""
        if session.connection is None:
            self.reply(session, message)
        else:
            session.connection.send_all([message])

    def schedule(self) -> None:
        """Deliver, commit and send in the next turn of the loop."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self._loop.call_soon(self.turn)

    # ------------------------------------------------------------------ sending
    @property
    def is_empty(self) -> bool:
        """Whether :meth:`collect` has left nothing to be sent."""
        return not self._parcels

    @property
    def is_awaited(self) -> bool:
        """Whether a client waits for what the next commit covers; a confirmation of settlements is not waited for."""
        return bool(self._parcels) or any(session.replies or session.deliveries for session in self.talking)

    @property
    def parcels(self) -> int:
        """How many parcels are collected."""
        return len(self._parcels)

    def collect(self) -> None:
        """Collect the messages of all sessions for the next commit; later ones wait for the one after it."""
        for session in self.talking:
            if session.connection is not None:
                self._parcels.append((session.connection, _take(session)))
        self.talking.clear()

    def take(self) -> list[OutgoingMessages]:
        """Take all that is collected, for :func:`send` after the commit."""
        parcels, self._parcels = self._parcels, []
        self._committing = parcels
        return parcels

    def refuse(self, refusal: Callable[[int], WireMessage]) -> None:
        """Refuse the calls whose answers wait for a commit, except those that hand out messages."""
        waiting = [*self._committing, *self._parcels]
        waiting += [(session.connection, session.replies) for session in self.talking if session.connection is not None]
        for connection, messages in waiting:
            refused = [one for one in messages if type(one) in _REFUSABLE]
            if refused:
                messages[:] = [one for one in messages if type(one) not in _REFUSABLE]
                connection.send_all([refusal(one.rid) for one in refused])  # type: ignore[attr-defined]


def send(parcels: list[OutgoingMessages]) -> None:
    """Send what :meth:`Outbox.take` gave."""
    for connection, messages in parcels:
        connection.send_all(messages)
    parcels.clear()


def _take(session: Session) -> list[WireMessage]:
    """Take a session's messages, deliveries after replies."""
    messages, session.replies = session.replies, []
    if session.deliveries:
        messages.append(Deliver(session.settled, session.deliveries))
        session.deliveries = []
        session.turn_bytes = 0
    elif session.settled != session.reported_settled:
        messages.append(SettleConfirm(session.settled))
    session.reported_settled = session.settled
    return messages
