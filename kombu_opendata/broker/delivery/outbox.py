"""Outbox: replies and deliveries that wait for the next commit, so that nothing is sent before it is durable."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable

from ...protocol.messages import Count, Deliver, Ok, PublishConfirm, QueueDeclared, ResultStored, Sent, SettleConfirm
from ...protocol.messages.message_base import WireMessage
from ..model.sessions import Session, SessionConnection

#: replies that an error may replace: the client may repeat the call
_REFUSABLE = frozenset((PublishConfirm, Sent, Ok, QueueDeclared, Count, ResultStored))

#: the messages for one connection, in order
OutgoingMessages = tuple[SessionConnection, list[WireMessage]]


class Outbox:
    """Replies and deliveries of an instance that wait for the next commit.

    Args:
        turn: delivers, commits and sends; :meth:`schedule` calls it once.

    Attributes:
        is_scheduled: True if a turn is scheduled; the turn clears it when it begins.
        sessions_to_answer: sessions with messages to be sent.
    """

    __slots__ = ("_committing", "_loop", "_outgoing", "_turn", "is_scheduled", "sessions_to_answer")

    def __init__(self, loop: AbstractEventLoop, turn: Callable[[], None]) -> None:
        self._loop = loop
        self._turn = turn
        self.is_scheduled = False
        self._outgoing: list[OutgoingMessages] = []
        self._committing: list[OutgoingMessages] = []  # taken for the commit in progress
        self.sessions_to_answer: dict[Session, None] = {}  # in order, so that a run can be repeated exactly

    # ------------------------------------------------------------------ adding
    def reply(self, session: Session, message: WireMessage) -> None:
        """Reply to a session after the next commit."""
        session.replies.append(message)
        self.sessions_to_answer[session] = None
        if not self.is_scheduled:
            self.schedule()

    def answer_last(self, connection: SessionConnection, message: WireMessage) -> None:
        """Reply to a connection whose session has ended, after the next commit."""
        self._outgoing.append((connection, [message]))
        self.schedule()

    def answer_now(self, session: Session) -> None:
        """Schedule a turn that sends the messages that were added to the session, and confirms its settlements."""
        self.sessions_to_answer[session] = None
        if not self.is_scheduled:
            self.schedule()

    def send_now(self, session: Session, message: WireMessage) -> None:
        """Send a message that does not depend on uncommitted changes."""
        if session.connection is None:
            self.reply(session, message)
        else:
            session.connection.send_all([message])

    def schedule(self) -> None:
        """Deliver, commit and send in the next turn of the loop."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self._loop.call_soon(self._turn)

    # ------------------------------------------------------------------ sending
    @property
    def is_empty(self) -> bool:
        """True if the outbox has no collected messages."""
        return not self._outgoing

    @property
    def is_awaited(self) -> bool:
        """True if a client waits for the next commit; no client waits for confirmations of settlements."""
        return bool(self._outgoing) or any(session.replies or session.deliveries for session in self.sessions_to_answer)

    @property
    def outgoing(self) -> int:
        """Number of connections with collected messages."""
        return len(self._outgoing)

    def collect(self) -> None:
        """Collect the messages of all sessions for the next commit; later messages wait for the commit after it."""
        for session in self.sessions_to_answer:
            if session.connection is not None:
                self._outgoing.append((session.connection, _take(session)))
        self.sessions_to_answer.clear()

    def send_all(self) -> None:
        """Send the messages of all sessions, after a commit during which none could be added."""
        if self._outgoing:
            send(self.take())
        sessions, self.sessions_to_answer = self.sessions_to_answer, {}
        for session in sessions:
            if session.connection is not None:
                session.connection.send_all(_take(session))

    def take(self) -> list[OutgoingMessages]:
        """Return and remove the collected messages, for :func:`send` after the commit."""
        outgoing, self._outgoing = self._outgoing, []
        self._committing = outgoing
        return outgoing

    def refuse(self, refusal: Callable[[int], WireMessage]) -> None:
        """Refuse the calls whose replies wait for a commit, except those that deliver messages."""
        pending = [*self._committing, *self._outgoing]
        pending += [
            (session.connection, session.replies)
            for session in self.sessions_to_answer
            if session.connection is not None
        ]
        for connection, messages in pending:
            refusable = [message for message in messages if type(message) in _REFUSABLE]
            if refusable:
                messages[:] = [message for message in messages if type(message) not in _REFUSABLE]
                connection.send_all([refusal(message.rid) for message in refusable])  # type: ignore[attr-defined]


def send(outgoing: list[OutgoingMessages]) -> None:
    """Send the messages that :meth:`Outbox.take` returned."""
    for connection, messages in outgoing:
        connection.send_all(messages)
    outgoing.clear()


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
