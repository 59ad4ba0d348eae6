"""Calls that run as tasks, and answers that are kept for clients that repeat a call."""

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

#: bytes of kept answers, over all sessions
_KEPT_BYTES = 64 << 20
_OVERHEAD_BYTES = 500


class Background:
    """The running calls of one instance.

    A client repeats an unanswered call after a reconnect. A call that only reads runs again, and its first answer is
    dropped. A call that changes something runs once: the last answer of each session is kept for a while, and sent
    again for the same request number.

    Attributes:
        refused: how many calls were answered with an error, by its code.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, outbox: Outbox, sessions: Mapping[bytes, Session], audit: Audit
    ) -> None:
        self._loop = loop
        self._outbox = outbox
        self._sessions = sessions
        self._audit = audit
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: set[tuple[bytes, int]] = set()  # calls that run once: session and request number
        self._kept: OrderedDict[bytes, tuple[int, WireMessage, int]] = OrderedDict()  # by session: number, answer, size
        self._kept_bytes = 0
        self.refused: Counter[str] = Counter()

    async def close(self) -> None:
        """Cancel running calls; what they have changed so far stays."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------ tasks
    def run(
        self, session: Session, rid: int, work: Coroutine[Any, Any, WireMessage | None], *, once: bool = False
    ) -> None:
        """Run a call as a task, and answer with its result or error; a result of None is no answer.

        Args:
            rid: the request number; 0 if the call has no answer.
            once: the call must not run twice; see :meth:`repeat`.
        """
        if once:
            self._under_way.add((session.id, rid))
        task = self._loop.create_task(self._finish(session, rid, work, session.connection, once))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(
        self,
        session: Session,
        rid: int,
        work: Coroutine[Any, Any, WireMessage | None],
        asked_on: SessionConnection | None,
        once: bool,
    ) -> None:
        try:
            answer = await work
        except Exception as exc:
            answer = self.refusal(session, rid, exc)
            self._outbox.schedule()  # the turn checks whether the engine failed
        finally:
            self._under_way.discard((session.id, rid))
        if answer is None:
            return
        if once:
            self.answer(session, rid, answer)
        elif session.connection is asked_on:
            if isinstance(answer, Status):  # also while the store takes no writes
                self._outbox.send_now(session, answer)
            else:
                self._outbox.reply(session, answer)

    def refusal(self, session: Session, rid: int, exc: Exception) -> Failed | None:
        """The answer to a call that failed; None if it needs no answer. An unexpected error is logged."""
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
        """Whether this call is running or done. Its answer is sent again, or will be sent."""
        if (session.id, rid) in self._under_way:
            return True
        kept = self._kept.get(session.id)
        if kept is None or kept[0] != rid:
            self.forget(session.id)  # a client with a new call has received the answer
            return False
        self._outbox.reply(session, kept[1])
        return True

    def answer(self, session: Session, rid: int, answer: WireMessage, size: int = 0) -> None:
        """Answer a call that runs once, and keep the answer.

        Args:
            size: the approximate size of the answer in bytes.
        """
        self.forget(session.id)
        size += _OVERHEAD_BYTES
        self._kept[session.id] = (rid, answer, size)
        self._kept_bytes += size
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1][2]
        now = self._sessions.get(session.id)  # a new object if its client was away for long
        if now is not None and now.connection is not None:
            self._outbox.reply(now, answer)

    def forget(self, session: bytes) -> None:
        """Forget a session's kept answer, which it has received."""
        kept = self._kept.pop(session, None)
        if kept is not None:
            self._kept_bytes -= kept[2]


def _without_hidden_queue(exc: OpenDataError, rights: Rights) -> OpenDataError:
    """The error without the name of a queue that the user may not see, but to which its message was routed."""
    if not isinstance(exc, (QueueFull, QueuePaused)) or rights.may_see(exc.queue or ""):
        return exc
    what = "is full and refuses the message" if isinstance(exc, QueueFull) else "takes no publishes now"
    return type(exc)(f"a queue that the message is routed to {what}: nothing was stored; publish again later")
