"""Heartbeats of a TCP connection, to show that the broker is alive and to detect an unreachable client host."""

from __future__ import annotations

import asyncio
import logging

from ...protocol import messages as m
from ...protocol.framing import frame
from ...protocol.tcp import is_tcp, peer_is_gone

log = logging.getLogger(__name__)

#: the minimum interval that a client can request
MIN_HEARTBEAT_MS = 100
#: minimum time without an answer of the client's host before the connection is closed. A client that requests frequent
#: heartbeats, to detect a dead broker early, must not lose its leases in a short network interruption. The time is
#: shorter only if the broker's own interval is shorter than half of it.
_PATIENCE_SECONDS = 30.0
#: interval of the checks of the client's host without heartbeats
_CHECK_MS = 60_000
_HEARTBEAT = frame(m.BrokerHeartbeat())


class HeartbeatMonitor:
    """Heartbeats to a client, and the check that its host is reachable; both run twice per heartbeat interval.

    Attributes:
        is_quiet: True if nothing was sent since the last check; each write clears it.
    """

    __slots__ = ("_audible", "_patience", "_seconds", "_timer", "_transport", "is_quiet")

    def __init__(self) -> None:
        self.is_quiet = True
        self._audible = False
        self._seconds = self._patience = 0.0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport | None, requested_ms: int, ours_ms: int) -> int:
        """Start with the smaller of both intervals, and return it; 0 means no heartbeats, as for a Unix socket."""
        if transport is None or not is_tcp(transport.get_extra_info("socket")):
            return 0
        intervals = [interval for interval in (requested_ms, ours_ms) if interval > 0]
        heartbeat_ms = max(min(intervals), MIN_HEARTBEAT_MS) if intervals else 0
        self._transport, self._audible = transport, bool(heartbeat_ms)
        self._seconds = (heartbeat_ms or _CHECK_MS) / 2000
        self._patience = max(4 * self._seconds, min(2 * (ours_ms or _CHECK_MS) / 1000, _PATIENCE_SECONDS))
        self._wait()
        return heartbeat_ms

    def stop(self) -> None:
        """Stop the checks of a closing connection."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._check)

    def _check(self) -> None:
        transport = self._transport
        sock = transport.get_extra_info("socket") if transport is not None else None
        if transport is None or transport.is_closing() or sock is None:
            return
        if peer_is_gone(sock, self._patience):
            log.warning("a client's host has not answered for %.1f s: its connection is closed", self._patience)
            transport.abort()
            return
        if self._audible and self.is_quiet:
            transport.write(_HEARTBEAT)
        self.is_quiet = True
        self._wait()
