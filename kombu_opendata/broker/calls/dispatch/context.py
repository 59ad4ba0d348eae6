"""The context of a call: its session, its replies, and the queues that it may use."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from ....errors import AccessRefused, NotFound, RequestError
from ....protocol import messages as m
from ....protocol.messages.message_base import WireMessage
from ...access.audit import Audit
from ...delivery.background import Background
from ...delivery.outbox import Outbox
from ...delivery.queues import Queues
from ...model.name_checks import check_name
from ...model.queue import BrokerQueue
from ...model.sessions import Session


def check_range(what: str, value: int, low: int, high: int) -> None:
    """Raise :class:`RequestError` for a value of a call that is out of range."""
    if not low <= value <= high:
        raise RequestError(f"{what} is {low} to {high}, not {value}", value=value, limit=high)


class Context:
    """The context of one session's calls.

    Attributes:
        reply: answers the client after the next commit.
        deletion: held while a queue is deleted or purged, which delays definitions.
        waiting: the number of the client's definitions that wait for that.
    """

    __slots__ = (
        "_audit",
        "_background",
        "_instance_name",
        "_outbox",
        "_queues",
        "deletion",
        "reply",
        "session",
        "waiting",
    )

    def __init__(
        self, session: Session, outbox: Outbox, background: Background, queues: Queues, instance_name: str, audit: Audit
    ) -> None:
        self.session = session
        self.reply = partial(outbox.reply, session)
        self._outbox = outbox
        self._background = background
        self._queues = queues
        self._instance_name = instance_name
        self._audit = audit
        self.deletion: asyncio.Lock = queues.lock
        self.waiting = 0

    # ------------------------------------------------------------------ replies
    def welcome(self, message: WireMessage, *, resumes: bool) -> None:
        """Answer the greeting, before messages that waited while the session had no connection.

        Args:
            resumes: the client takes the reply as a confirmation of its settlements.
        """
        if not resumes:
            self._outbox.send_now(self.session, message)
            return
        self.session.replies.insert(0, message)
        self._outbox.answer_now(self.session)

    def refuse(self, rid: int, exc: Exception) -> None:
        """Answer a call that failed; see :meth:`.Background.refusal`."""
        refusal = self._background.refusal(self.session, rid, exc)
        if refusal is not None:
            self.reply(refusal)

    def refuse_now(self, rid: int, exc: Exception) -> None:
        """Refuse a call as :meth:`refuse` does, while no commit is possible."""
        refusal = self._background.refusal(self.session, rid, exc)
        if refusal is not None:
            self._outbox.send_now(self.session, refusal)

    def run(self, rid: int, work: Coroutine[Any, Any, WireMessage | None], *, once: bool = False) -> None:
        """Run the rest of a call in the background; see :meth:`.Background.run`."""
        self._background.run(self.session, rid, work, once=once)

    # ------------------------------------------------------------------ calls that run once
    def repeat(self, rid: int) -> bool:
        """Return whether this call is running or done; see :meth:`.Background.repeat`."""
        return self._background.repeat(self.session, rid)

    def answer_once(self, rid: int, message: WireMessage, size: int = 0) -> None:
        """Answer a call that runs once; see :meth:`.Background.answer`."""
        self._background.answer(self.session, rid, message, size)

    def note(self, message: m.DeclareQueue | m.DeclareExchange | m.Bind) -> None:
        """Remember a declaration of a client that is notified of the object's deletion."""
        if self.session.declared is not None:
            self.session.declared.note(message)

    def audit(self, text: str, *args: object, **fields: Any) -> None:
        """Write the client's change to the audit log; see :meth:`.Audit.changed`."""
        session = self.session
        self._audit.changed(session.acting_as or session.user.name, session.described, text, *args, **fields)

    # ------------------------------------------------------------------ queues
    def queue(self, name: str) -> BrokerQueue:
        """Return a queue that this client may use.

        Raises:
            NotFound: there is no such queue.
            RequestError: the name is not valid.
            AccessRefused: the queue is exclusive to another connection.
        """
        queue = self._queues.get(name)
        if queue is None or queue.deleting:
            check_name(name, "queue")
            raise NotFound(f"no queue {name!r} in instance {self._instance_name!r}: declare it first", queue=name)
        self.check_owner(queue)
        return queue

    def check_exists(self, queue: BrokerQueue) -> None:
        """Raise :class:`NotFound` if a queue was deleted while the call waited."""
        if self.queue(queue.name) is not queue:
            raise NotFound(f"queue {queue.name!r} was deleted during the call: try again", queue=queue.name)

    def check_owner(self, queue: BrokerQueue) -> None:
        """Raise :class:`AccessRefused` for a queue that is exclusive to another connection."""
        owner = queue.owner
        if owner is not None and (owner.client != self.session.client or owner.user.name != self.session.user.name):
            raise AccessRefused(f"queue {queue.name!r} is exclusive to another connection", queue=queue.name)
