"""Socket options of TCP connections, and detection of lost peers.

The kernel of a running host answers TCP probes even if its processes are busy or stopped. A broker therefore considers
a client lost when the client's *kernel* does not answer: keepalive detects that on an idle connection, and
:func:`peer_is_gone` while bytes are in flight. ``TCP_USER_TIMEOUT`` would also close the connection of a worker that is
only too busy to read, so only clients set it.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

KEEPALIVE_IDLE_SECONDS = 10
KEEPALIVE_INTERVAL_SECONDS = 5
KEEPALIVE_PROBES = 3
USER_TIMEOUT_MS = 30_000

#: fields of Linux's struct tcp_info: unanswered probes, unacknowledged segments, ms since the last acknowledgement
_TCP_INFO = struct.Struct("3xB20xI28xI")
_LOST_PROBES = 3


def is_tcp(sock: Any) -> bool:
    """Return True for a TCP socket, False for a Unix socket."""
    return sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6)


def set_tcp_options(sock: Any, *, user_timeout_ms: int | None = USER_TIMEOUT_MS) -> None:
    """Send small frames immediately, and detect a dead peer within half a minute.

    Args:
        user_timeout_ms: limit for the time until sent bytes are acknowledged; None means the system's default.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", user_timeout_ms),
    ):
        if value is not None and hasattr(socket, name):  # not on every system
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def peer_is_gone(sock: Any, seconds: float) -> bool:
    """Return True if the peer's kernel did not answer for ``seconds``; False if the system can't report that."""
    if not hasattr(socket, "TCP_INFO"):
        return False
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    return len(info) == _TCP_INFO.size and says_gone(info, seconds)


def says_gone(info: bytes, seconds: float) -> bool:
    """Return True if a struct tcp_info shows a dead peer, which answers no probes.

    A peer whose process does not read still answers the probes of its closed window.
    """
    probes, unacknowledged, last_ack_ms = _TCP_INFO.unpack(info)
    return bool(last_ack_ms > 1000 * seconds and (unacknowledged > 0 or probes >= _LOST_PROBES))
