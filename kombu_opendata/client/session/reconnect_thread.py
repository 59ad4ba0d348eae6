"""Thread that resumes a session while its process is in user code, for example a solo worker in a long task.

Such a process does not notice that its socket broke, and a restarted broker ends the leases of the session when their
stored time ends. A daemon thread therefore waits, in one system call, until the socket hangs up. After a grace period
for the thread that uses the connection, the daemon thread resumes the session.

A process that forks children to work (prefork) is never in user code for long and has no such thread, as threads and
forks don't combine safely. Processes under gevent or eventlet do not need it: other greenlets run while one waits, and
a thread would be a greenlet.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import weakref
from typing import Protocol

from ...errors import OpenDataError
from ..socket.framed_socket import FramedSocket, Waker

log = logging.getLogger(__name__)

#: seconds after a break in which the thread that uses the connection may begin to resume
GRACE_SECONDS = 0.25


class Reconnectable(Protocol):
    """Interface of the session link for the reconnect thread."""

    @property
    def is_closed(self) -> bool: ...

    @property
    def current(self) -> FramedSocket | None: ...

    def hung_up(self, broken: FramedSocket) -> None:
        """Handle the hang-up of this socket, which the thread noticed."""

    def resume_after(self, grace_seconds: float) -> float | None:
        """Resume, unless the break is too recent.

        Return the seconds until the next call, None once the session is closed.
        """


def threads_are_native() -> bool:
    """Return True if a thread runs while another one is in user code. Under gevent and eventlet it does not."""
    return socket.socket.__module__ == "socket" and hasattr(select, "poll")


class ReconnectThread:
    """Reconnect thread of one session."""

    def __init__(self, target: Reconnectable) -> None:
        self._target = weakref.ref(target)  # weak, so that an unused connection is collected
        self._waker = Waker()
        threading.Thread(target=self._run, name="opendata-reconnect", daemon=True).start()

    def wake(self) -> None:
        """Wake the thread: the session has another socket, or none."""
        self._waker.wake()

    def _run(self) -> None:
        try:
            while (pause := self._watch()) is not None:
                self._wait(None, pause)
        except OpenDataError as exc:  # the session is closed, and its next use raises the error
            log.warning("a session was not resumed: %s", exc)
        except Exception:
            log.exception("the thread that resumes a session ended")

    def _watch(self) -> float | None:
        """Wait until the socket hangs up, or resume. Return the seconds until the next call, None at the end."""
        target = self._target()
        if target is None or target.is_closed:
            return None
        watched = target.current
        if watched is None:
            return target.resume_after(GRACE_SECONDS)
        del target
        if self._wait(watched.fd, None):
            self._wait(None, GRACE_SECONDS)
            target = self._target()
            if target is not None:
                target.hung_up(watched)
        return 0.0

    def _wait(self, fd: int | None, seconds: float | None) -> bool:
        """Wait until the descriptor hangs up, or :meth:`wake` is called. Return True if it hung up."""
        if seconds == 0.0:
            return False
        poller = select.poll()
        poller.register(self._waker.fd, select.POLLIN)
        if fd is not None:
            poller.register(fd, getattr(select, "POLLRDHUP", 0))
        happened = poller.poll(None if seconds is None else 1000 * seconds)
        self._waker.clear()
        return any(ready == fd for ready, _ in happened)
