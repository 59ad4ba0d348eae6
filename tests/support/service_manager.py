"""The socket on which systemd hears from its services."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


class NotifySocket:
    """Receives what services say; ``address`` is for ``NOTIFY_SOCKET``."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[str] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    def hear(self, seconds: float) -> str:
        """The next message; empty if none comes in time."""
        self._sock.settimeout(max(seconds, 0.001))
        try:
            self.heard.append(self._sock.recv(4096).decode())
        except TimeoutError:
            return ""
        return self.heard[-1]

    def hear_until(self, condition: Callable[[str], bool], seconds: float = 60) -> str:
        """The first message from now on with which the condition holds; the test fails when none comes in time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if condition(text := self.hear(left)):
                return text
        raise AssertionError(f"not within {seconds:g} s; heard: {self.heard}")

    def forget(self) -> None:
        """Drop what has come in."""
        while self.hear(0):
            pass
        self.heard.clear()

    def close(self) -> None:
        self._sock.close()
