"""Open a session, or resume it, on a new socket: connect, log in, and restore what ended with the old connection."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable
from typing import Any

from ...errors import ConnectionLost
from ...protocol.framing import frame
from ...protocol.messages import Welcome
from ...url import Address
from ..clock import Clock
from ..connection_options import Options
from ..socket.connect import connect_memory, connect_socket_url, connect_tcp
from ..socket.framed_socket import FramedSocket
from ..socket.handshake import shake_hands
from .session import Session

log = logging.getLogger(__name__)


def open_session(
    session: Session, address: Address, options: Options, clock: Clock, more: Callable[[], Iterable[Any]]
) -> tuple[FramedSocket, Welcome]:
    """Connect to the broker; what a resumed session needs is sent again, and the unanswered requests last.

    Args:
        more: returns messages that every new connection begins with, beside the session's state.

    Raises:
        ConnectionLost: nobody answers, or the connection broke.
        OpenDataError: the broker refuses, or can't be started.
    """
    sock = _connect(address, options, clock)
    try:
        opened, welcome = _log_in(sock, session, address, options)
        if welcome.heartbeat_ms:
            opened.expect_heartbeats(welcome.heartbeat_ms / 1000, clock.monotonic)
        _restore(opened, session, options)
        opened.send_all(b"".join(map(frame, more())), session.receive)
    except OSError as exc:
        sock.close()
        raise ConnectionLost(f"the connection to {address} broke: {exc}") from exc
    except BaseException:
        sock.close()
        raise
    return opened, welcome


def _connect(address: Address, options: Options, clock: Clock) -> socket.socket:
    if address.kind == "memory":
        return connect_memory(address.name)
    if address.kind == "tcp":
        return connect_tcp(address, options)
    if address.kind == "unix":
        return connect_socket_url(address, options)
    from ..launch_broker import attach  # only a folder has a broker that a client may start

    return attach(address, options, clock)


def _log_in(sock: socket.socket, session: Session, address: Address, options: Options) -> tuple[FramedSocket, Welcome]:
    """Greet the broker and tell it what the client holds of the session."""
    hello = session.hello(
        options.name or f"{socket.gethostname()}:{os.getpid()}",
        address.instance,
        options.user or address.user,
        options.resolve_secret() or address.secret,
        heartbeat_ms=int(1000 * options.heartbeat),
    )
    resume = session.resume()
    opened, welcome, rest = shake_hands(sock, hello, options.connect_timeout, resume)
    if resume is not None and welcome.adopted < len(resume.held):
        log.info("%d leases ended while the connection was lost", len(resume.held) - welcome.adopted)
    session.welcomed()
    session.receive(rest)
    return opened, welcome


def _restore(opened: FramedSocket, session: Session, options: Options) -> None:
    """Declare again what ended with the old connection, then send again what was not answered."""
    opened.send_all(b"".join(session.redeclarations()), session.receive)
    while session.redeclaring:
        if not opened.wait(options.connect_timeout):
            raise ConnectionLost("the broker did not answer the declarations of a resumed session")
        session.receive(opened.receive())
    opened.send_all(b"".join(session.unanswered.values()), session.receive)
