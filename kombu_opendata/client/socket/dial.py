"""Concurrent connects to several endpoints, so that a host that drops packets does not delay the others.

The first connect has a head start; the next one begins when it fails, or after :data:`STAGGER_SECONDS`.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ...url import Address
from .poll import poll

STAGGER_SECONDS = 0.25
_UNDER_WAY = frozenset({errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK, errno.EINTR})


class Endpoint(NamedTuple):
    """Endpoint to connect to: one address of a resolved host name, or a broker that does not listen on TCP."""

    broker: Address  # without other brokers
    family: int
    place: Any


def resolve(broker: Address) -> list[Endpoint]:
    """Return the endpoints of a broker.

    Raises:
        OSError: the host's name can't be resolved.
    """
    if broker.kind != "tcp":
        return [Endpoint(broker, socket.AF_UNIX, broker.host)]
    infos = socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM)
    return [Endpoint(broker, info[0], info[4]) for info in infos]


def dial(endpoints: Iterable[Endpoint], seconds: float) -> Iterator[tuple[Endpoint, socket.socket | OSError]]:
    """Yield each endpoint's connected socket or error, in the order in which the connects end.

    Sockets that are still connecting when the iterator is closed, or after ``seconds``, are closed.
    """
    waiting, pending = deque(endpoints), dict[socket.socket, Endpoint]()
    ends_at = time.monotonic() + seconds
    next_at = 0.0
    try:
        while waiting or pending:
            if waiting and (not pending or time.monotonic() >= next_at):
                next_at = time.monotonic() + STAGGER_SECONDS
                endpoint = waiting.popleft()
                sock = socket.socket(endpoint.family, socket.SOCK_STREAM)
                sock.settimeout(0)
                pending[sock] = endpoint
            for sock, endpoint in list(pending.items()):
                code = sock.connect_ex(endpoint.place)
                if code not in _UNDER_WAY:
                    del pending[sock]
                    yield endpoint, _connected(sock, code)
            if pending and not _wait(pending, min(next_at, ends_at) if waiting else ends_at, ends_at):
                break
        for endpoint in (*pending.values(), *waiting):
            yield endpoint, TimeoutError("timed out")
    finally:
        for sock in pending:
            sock.close()


def _connected(sock: socket.socket, code: int) -> socket.socket | OSError:
    if code in (0, errno.EISCONN):
        return sock
    sock.close()
    return OSError(code, os.strerror(code))


def _wait(pending: Iterable[socket.socket], until: float, ends_at: float) -> bool:
    """Wait until a connect has ended, or until this time. Return True if time is left."""
    fds = [sock.fileno() for sock in pending]
    poll(fds, fds, max(0.0, until - time.monotonic()))
    return time.monotonic() < ends_at
