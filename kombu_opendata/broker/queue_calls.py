"""The calls of the queue client: which function does which, and what they share.

A call that changes something is done once although its client may ask twice: the answer of a session's last call is
kept for a while, and repeated where the same number comes again. Calls that read the store are tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..errors import OpenDataError
from ..protocol import messages as m
from .entities import Session

if TYPE_CHECKING:
    from .instance import Instance

log = logging.getLogger(__name__)

#: bytes of answers that are kept for who asks again, over all sessions
_KEPT_BYTES = 64 << 20
_OVERHEAD_BYTES = 500


class QueueCalls:
    """The answers and the tasks of one instance's calls."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._kept: OrderedDict[bytes, tuple[int, Any, int]] = OrderedDict()  # by session: number, answer, size
        self._kept_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way: set[tuple[bytes, int]] = set()
        self.stops: dict[tuple[bytes, int], asyncio.Event] = {}  # of reads with a condition, by session and number

    def stop(self) -> None:
        """The instance is closing."""
        for task in self._tasks:
            task.cancel()

    # ------------------------------------------------------------------ once
    def repeat(self, session: Session, rid: int) -> bool:
        """Whether this call was done already, or is under way; then it is answered as it was, or will be."""
        if (session.id, rid) in self._under_way:
            return True
        kept = self._kept.get(session.id)
        if kept is None or kept[0] != rid:
            self._forget(session.id)  # who asks something new has the answer
            return False
        self._instance.reply(session, kept[1])
        return True

    def answer(self, session: Session, message: Any, size: int = 0) -> None:
        """Answer a call that changed something, after the commit, and keep the answer for a client that asks again."""
        self._forget(session.id)
        size += _OVERHEAD_BYTES
        self._kept[session.id] = (message.rid, message, size)
        self._kept_bytes += size
        while self._kept_bytes > _KEPT_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1][2]
        now = self._instance.sessions.get(session.id)  # another object, if its client was away for long
        if now is not None and now.connection is not None:
            self._instance.reply(now, message)

    def _forget(self, session: bytes) -> None:
        kept = self._kept.pop(session, None)
        if kept is not None:
            self._kept_bytes -= kept[2]

    # ------------------------------------------------------------------ tasks
    def spawn(self, session: Session, rid: int, work: Awaitable[None], *, once: bool = False) -> None:
        """Do a call in a task. ``once``: its client may ask again while it runs, which changes nothing."""
        if once:
            self._under_way.add((session.id, rid))
        task = self._instance.loop.create_task(self._do(session, rid, work, once))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _do(self, session: Session, rid: int, work: Awaitable[None], once: bool) -> None:
        connection = session.connection
        try:
            await work
        except Exception as exc:
            if not isinstance(exc, OpenDataError):
                log.exception("a call of the queue client failed")
                exc = OpenDataError(f"the broker failed at this call: {exc!r}; see its log")
            if once or session.connection is connection:
                self.answer(session, m.Failed(rid, exc.code, exc.text, exc.values))
        finally:
            self._under_way.discard((session.id, rid))


def handlers() -> dict[type, Callable[[Any, Any], None]]:
    """The function of each message."""
    from . import looking, queue_figures, reading, sending, settling, workers

    modules = (sending, reading, settling, looking, queue_figures, workers)
    return {kind: function for module in modules for kind, function in module.HANDLERS.items()}
