"""Notifications for systemd: the protocol of sd_notify(3), datagrams to the socket in ``NOTIFY_SOCKET``.

=====================  ====================================================================================
message                when
=====================  ====================================================================================
``READY=1``            the broker is active, or waits as the standby: its startup is done
``STATUS=…``           each time its health changes: the text for ``systemctl status``
``RELOADING=1``        a reload begins; ``READY=1`` follows when it is done
``STOPPING=1``         the broker sends its clients a goodbye
``WATCHDOG=1``         from the event loop, twice per ``WATCHDOG_USEC``: a loop that hangs sends none
``EXTEND_TIMEOUT_…``   every few seconds during startup, so that a long recovery does not count as hanging
=====================  ====================================================================================
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import MutableMapping

from ..endpoints.health import Health
from .file_reloads import Reloading

log = logging.getLogger(__name__)

#: interval at which a starting broker extends the timeout, and the new timeout
_EXTEND_SECONDS, _EXTENDED_SECONDS = 5.0, 120


def notify_address(environment: MutableMapping[str, str], pid: int) -> tuple[str, float] | None:
    """Return the address for messages, and the watchdog's interval in seconds (0: no watchdog); None without systemd.

    The variables are removed from the environment, because child processes must not inherit them.
    """
    address = environment.pop("NOTIFY_SOCKET", "")
    usec, for_pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    if not address:
        return None
    if address[0] not in "/@":
        log.warning("NOTIFY_SOCKET %r is neither a path nor an abstract socket: systemd gets no notifications", address)
        return None
    is_watched = usec.isdecimal() and for_pid in ("", str(pid))
    return address, int(usec) / 1e6 if is_watched else 0.0


class ServiceManager:
    """Sender of one broker's notifications, from its event loop."""

    def __init__(self, address: str, watchdog_seconds: float, health: Health, reloading: Reloading) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._sock.setblocking(False)
        self._health = health
        self._seconds = watchdog_seconds / 2 if watchdog_seconds else _EXTEND_SECONDS
        self._is_watched = bool(watchdog_seconds)
        self._sent = ""
        self._is_ready = False
        health.watchers.append(self._report)
        reloading.watchers.append(self._reloading)
        self._report()

    async def run(self) -> None:
        """Send watchdog messages indefinitely; they prove that the event loop runs."""
        while True:
            if self._is_watched:
                self._send("WATCHDOG=1")
            if not self._is_ready:
                self._send(f"EXTEND_TIMEOUT_USEC={_EXTENDED_SECONDS}000000")
            await asyncio.sleep(self._seconds if self._is_ready else min(self._seconds, _EXTEND_SECONDS))

    def _reloading(self, fault: str | None) -> None:
        """Report the beginning of a reload (None), or its end, with its error."""
        if fault is None:
            self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")
            return
        self._sent = f"STATUS={self._status()}{f'; the reload failed: {fault}' if fault else ''}"
        self._send(f"READY=1\n{self._sent}")

    def close(self) -> None:
        self._sock.close()

    def _status(self) -> str:
        state, fault = self._health.state, self._health.fault
        return f"{state}: {fault}" if fault and state in ("active", "standby") else state

    def _report(self) -> None:
        lines = [f"STATUS={self._status()}"]
        if self._health.state == "stopping":
            lines.insert(0, "STOPPING=1")
        elif self._health.state in ("active", "standby") and not self._is_ready:
            self._is_ready = True
            lines.insert(0, "READY=1")
        text = "\n".join(lines)
        if text != self._sent:
            self._sent = text
            self._send(text)

    def _send(self, text: str) -> None:
        try:
            self._sock.sendto(text.encode(), self._address)
        except OSError as exc:
            log.warning("systemd was not notified of %r: %s", text, exc.strerror or exc)


def from_environment(health: Health, reloading: Reloading) -> ServiceManager | None:
    """Return the service manager that started this process, or None."""
    request = notify_address(os.environ, os.getpid())
    return ServiceManager(*request, health, reloading) if request is not None else None
