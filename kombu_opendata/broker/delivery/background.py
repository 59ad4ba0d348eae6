"""Calls that run in the background, and the recent replies of calls that must run once.

A client repeats a call after a reconnect if it has no reply. A call that only reads runs again, and the reply of the
first run is dropped, because its connection is closed. A call that changes state, such as a move of messages, must not
run twice, and its client must receive its result.

==================  ================================================  =================================================
the call (session,  if the client repeats it                          the state ends when
number) is
==================  ================================================  =================================================
unknown             it runs                                           the call begins
running             nothing happens: the reply follows on the new     the call ends; an error is a reply, too
                    connection
answered            the retained reply is sent again                  another call of the session shows that the reply
                                                                      has arrived, the session ends, or the limit below
                                                                      is reached
==================  ================================================  =================================================

The broker retains one reply per session, because a client sends such calls one after the other. The replies of all
sessions take at most :data:`_RETAINED_BYTES`; beyond that the oldest are deleted, and a repeated call runs again. The
key of a reply is the session's id and not the session object, because a client that reconnects late gets a new object.
The replies are only in memory. After a restart of the broker, the records of repeated calls
(:mod:`kombu_opendata.storage.operations.repeated_requests`) let an interrupted call continue.

Numbers on replies, by which a client drops duplicates, would not help: the reply is lost, not duplicated. Replies in
the store would need a commit for each call, although nearly all replies arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Mapping
from typing import Any

from ...errors import AccessRefused, OpenDataError, QueueFull, QueuePaused
from ...protocol.messages import Failed, Status
from ...protocol.messages.message_base import WireMessage
from ..access.audit import Audit
from ..access.rights import Rights
from ..model.sessions import Session, SessionConnection
from .outbox import Outbox

log = logging.getLogger(__name__)

#: maximum size of the retained replies of all sessions
_RETAINED_BYTES = 64 << 20
_OVERHEAD_BYTES = 500


class Background:
    """Running calls of one instance, and the retained replies.

    Attributes:
        refused: the number of calls that failed, by error code.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, outbox: Outbox, sessions: Mapping[bytes, Session], audit: Audit
    ) -> None:
        self._loop = loop
        self._outbox = outbox
        self._sessions = sessions
        self._audit = audit
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: set[tuple[bytes, int]] = set()  # calls that run once: session and request number
        self._retained: OrderedDict[bytes, tuple[int, WireMessage, int]] = OrderedDict()  # number, reply, size
        self._retained_bytes = 0
        self.refused: Counter[str] = Counter()

    async def close(self) -> None:
        """Cancel running calls, without undoing their changes so far."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------ tasks
    def run(
        self, session: Session, rid: int, work: Coroutine[Any, Any, WireMessage | None], *, once: bool = False
    ) -> None:
        """Run a call in the background, and reply with its result or error; a result of None is not sent.

        Args:
            rid: the request number; 0 if the call has no reply.
            once: the call must not run twice; see :meth:`repeat`.
        """
        if once:
            self._running.add((session.id, rid))
        task = self._loop.create_task(self._finish(session, rid, work, session.connection, once))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(
        self,
        session: Session,
        rid: int,
        work: Coroutine[Any, Any, WireMessage | None],
        connection: SessionConnection | None,
        once: bool,
    ) -> None:
        try:
            answer = await work
        except Exception as exc:
            answer = self.refusal(session, rid, exc)
            self._outbox.schedule()  # the turn checks whether the engine failed
        finally:
            self._running.discard((session.id, rid))
        if answer is None:
            return
        if once:
            self.answer(session, rid, answer)
        elif session.connection is connection:
            if isinstance(answer, Status):  # also while the store takes no writes
                self._outbox.send_now(session, answer)
            else:
                self._outbox.reply(session, answer)

    def refusal(self, session: Session, rid: int, exc: Exception) -> Failed | None:
        """Return the reply to a call that failed, None if it needs no reply; log unexpected errors."""
        if not isinstance(exc, OpenDataError):
            log.error("a call failed", exc_info=exc)
            exc = OpenDataError(f"the broker failed at this call: {exc!r}; see its log")
        exc = _without_hidden_queue(exc, session.rights)
        self.refused[exc.code] += 1
        if isinstance(exc, AccessRefused) and exc.right:
            self._audit.refused(exc, session.described)
        return Failed(rid, exc.code, exc.text, exc.values) if rid else None

    # ------------------------------------------------------------------ once
    def repeat(self, session: Session, rid: int) -> bool:
        """Return True if this call is running or done; its reply is or will be sent again."""
        if (session.id, rid) in self._running:
            return True
        retained = self._retained.get(session.id)
        if retained is None or retained[0] != rid:
            self.forget(session.id)  # a client with a new call has received the reply
            return False
        self._outbox.reply(session, retained[1])
        return True

    def answer(self, session: Session, rid: int, answer: WireMessage, size: int = 0) -> None:
        """Reply to a call that runs once, and retain the reply.

        Args:
            size: the approximate size of the reply in bytes.
        """
        self.forget(session.id)
        size += _OVERHEAD_BYTES
        self._retained[session.id] = (rid, answer, size)
        self._retained_bytes += size
        while self._retained_bytes > _RETAINED_BYTES:
            self._retained_bytes -= self._retained.popitem(last=False)[1][2]
        current = self._sessions.get(session.id)  # a new object if its client reconnected late
        if current is not None and current.connection is not None:
            self._outbox.reply(current, answer)

    def forget(self, session: bytes) -> None:
        """Delete the retained reply of a session that has received it."""
        retained = self._retained.pop(session, None)
        if retained is not None:
            self._retained_bytes -= retained[2]


def _without_hidden_queue(exc: OpenDataError, rights: Rights) -> OpenDataError:
    """Return the error, without the name of its queue if the user may not see that queue."""
    if not isinstance(exc, (QueueFull, QueuePaused)) or rights.may_see(exc.queue or ""):
        return exc
    what = "is full and refuses the message" if isinstance(exc, QueueFull) else "takes no publishes now"
    return type(exc)(f"a queue that the message is routed to {what}: nothing was stored; publish again later")
