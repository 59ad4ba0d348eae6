"""Heartbeats of one TCP connection: they show that the broker is alive, and detect an unreachable client host."""

from __future__ import annotations

import asyncio
import logging

from ...protocol import messages as m
from ...protocol.framing import frame
from ...protocol.tcp import is_tcp, peer_is_gone

log = logging.getLogger(__name__)

#: the minimum interval that a client can request
MIN_HEARTBEAT_MS = 100
#: the minimum time that a client's host may be silent, unless the broker's own interval is shorter than half of it: a
#: client may need to detect a dead broker soon, and still keep its leases during a network interruption
_PATIENCE_SECONDS = 30.0
#: without heartbeats, the client's host is checked with this interval
_CHECK_MS = 60_000
_HEARTBEAT = frame(m.BrokerHeartbeat())


class HeartbeatMonitor:
    """Regular checks, twice per heartbeat interval, whether the client's host is reachable and whether data was sent.

    Attributes:
        is_quiet: nothing was sent since the last check; cleared by each write.
    """

    __slots__ = ("_audible", "_patience", "_seconds", "_timer", "_transport", "is_quiet")

    def __init__(self) -> None:
        self.is_quiet = True
        self._audible = False
        self._seconds = self._patience = 0.0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, transport: asyncio.Transport | None, wanted_ms: int, ours_ms: int) -> int:
        """Start with the smaller of both intervals, and return it; 0 means none. A Unix socket needs none."""
        if transport is None or not is_tcp(transport.get_extra_info("socket")):
            return 0
        intervals = [interval for interval in (wanted_ms, ours_ms) if interval > 0]
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
