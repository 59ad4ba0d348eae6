"""Keeps a session connected while its process is in user code: a worker of the solo pool in a long task.

Such a process can't see that its socket broke, and a restarted broker gives what it holds to others when the stored
lease ends. So a daemon thread waits for the socket to hang up, in one system call for as long as it does not. It leaves
the break to the connection's own thread for a moment, and resumes the session itself if that one has not done it.

A process that forks children to work (prefork) never blocks and has no keeper, as a thread and forks don't go together.
Nor has one whose sockets are green: there, other greenlets run while one waits, and a thread would be a greenlet.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import weakref
from typing import TYPE_CHECKING

from ...errors import OpenDataError
from ..socket.framed_socket import Waker

if TYPE_CHECKING:
    from .resumable_socket import Link

logger = logging.getLogger(__name__)

#: How long after a break the connection's own thread may begin to resume.
HANDS_OFF_SECONDS = 0.25


def threads_are_native() -> bool:
    """Whether a thread runs while another one is in user code, as it does not under gevent and eventlet."""
    return socket.socket.__module__ == "socket" and hasattr(select, "poll")


class Keeper:
    """The thread of one link."""

    def __init__(self, link: Link) -> None:
        self._link = weakref.ref(link)
        self._waker = Waker()
        threading.Thread(target=self._run, name="opendata-keeper", daemon=True).start()

    def wake(self) -> None:
        """The link's socket changed."""
        self._waker.wake()

    def _run(self) -> None:
        try:
            while (pause := self._look()) is not None:
                self._wait(None, pause)
        except OpenDataError as exc:  # the link is closed, and its next use says so
            logger.warning("a session was not resumed: %s", exc)
        except Exception:
            logger.exception("the keeper of a session ended")

    def _look(self) -> float | None:
        """Watch the socket, or resume; returns how long to wait before the next look, None at the end."""
        link = self._link()
        if link is None or link.closed:
            return None
        wire = link.wire
        if wire is None:
            return link.resume_for_owner(HANDS_OFF_SECONDS)
        del link  # an unused connection is to be collected
        if self._wait(wire.fd, None):
            self._wait(None, HANDS_OFF_SECONDS)
            link = self._link()
            if link is not None:
                link.put_away(wire)
        return 0.0

    def _wait(self, fd: int | None, seconds: float | None) -> bool:
        """Wait for the socket to hang up, or to be woken; whether it did."""
        if seconds == 0.0:
            return False
        poller = select.poll()
        poller.register(self._waker.fd, select.POLLIN)
        if fd is not None:
            poller.register(fd, getattr(select, "POLLRDHUP", 0))
        happened = poller.poll(None if seconds is None else 1000 * seconds)
        self._waker.clear()
        return any(ready == fd for ready, _ in happened)
