"""Reentrant calls on a session, and work that is deferred until the session's lock is free.

A signal handler, a finalizer of the garbage collector, or a logging handler runs in a thread that may be in the middle
of a call, with half a frame sent or half a message processed. The lock of the session does not exclude such code, as it
is reentrant. Each call on a connection therefore checks :meth:`Reentrance.is_entered` first, and a call that
interrupted another one is handled in one of three ways:

=============================================  =======================================================================
call                                           way
=============================================  =======================================================================
a publish; a request that any session can      over another connection to the same broker, see
make (declarations, results …)                 :meth:`.BrokerConnection.free`
settling, closing a channel, closing           it waits until the interrupted call has ended: :meth:`Reentrance.later`
a call that needs this session (consuming,     :class:`.ConnectionInUse`
getting, flushing, draining)
=============================================  =======================================================================

Log records are deferred as well, because a logging handler may publish. If a record were written while the lock is
held, the handler would interrupt the call that logs. And if the handler runs in another thread, it holds its own lock
and waits for the session's, while this thread holds the session's lock and waits for the handler's. A call that waits
for a lost connection releases the lock between its attempts (:meth:`Reentrance.outside`), and the records are written
then.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ...errors import ConnectionInUse, OpenDataError

log = logging.getLogger(__name__)


class Reentrance:
    """Reentrance state of one session.

    Args:
        lock: held by the thread that uses the session.
        waiting: the work that is deferred until the lock is free.
        within: for a session that is used only in code that interrupts another session's calls: the reentrance state of
            that other session.
    """

    __slots__ = ("_is_running", "_lock", "_owned", "_waiting", "_within")

    def __init__(
        self, lock: threading.RLock, waiting: deque[Callable[[], object]], within: Reentrance | None = None
    ) -> None:
        self._lock = lock
        self._owned = threading.Condition(lock)
        self._waiting = waiting
        self._is_running = False
        self._within = within

    def is_entered(self) -> bool:
        """Return True if this thread is in a call on the session."""
        try:
            self._owned.notify(0)  # the documented way to test it: an error if this thread does not hold the lock
        except RuntimeError:
            return False
        return True

    def check(self) -> None:
        """Raise :class:`.ConnectionInUse` if this thread is in a call."""
        if self.is_entered():
            self.refuse()

    def refuse(self) -> NoReturn:
        """Raise :class:`.ConnectionInUse`."""
        raise ConnectionInUse(
            "the connection is in use by the call that this one interrupted, in a signal handler, a logging handler or "
            "a finalizer: publishing works there; for anything else open another connection"
        )

    def __enter__(self) -> None:
        """Begin a block that holds the lock; deferred work runs after it."""

    def __exit__(self, *_exc: object) -> None:
        if self._waiting:
            self.run()

    def later(self, action: Callable[[], object]) -> None:
        """Defer work until the lock is free."""
        self._waiting.append(action)

    def run(self) -> None:
        """Run deferred work, unless this thread is in a call. Work that it defers runs in the same loop."""
        # the outer loop: another thread may add work after the inner loop has ended, and leave it to this thread
        while self._waiting and not self._is_running and not self.is_entered():
            if self._within is not None and self._within.is_entered():
                while self._waiting:
                    self._within.later(self._waiting.popleft())
                return
            try:
                self._is_running = True
                while self._waiting:
                    self._do(self._waiting.popleft())
            except IndexError:
                pass  # another thread took the last item
            finally:
                self._is_running = False

    def _do(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OpenDataError as exc:
            log.warning("a call that waited for the end of another one failed: %s", exc)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Release the lock for other threads. The session must be consistent, as other calls may use it."""
        depth = 0
        try:
            while True:
                self._lock.release()
                depth += 1
        except RuntimeError:
            pass  # this thread no longer holds it
        try:
            self.run()
            yield
        finally:
            for _ in range(depth):
                self._lock.acquire()
