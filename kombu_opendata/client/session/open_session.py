"""Opening and resuming of a session on a new socket: connect, shake hands, log in, and restore the connection's state.

The handshake is: preambles, Hello, Welcome; a resume sends the client's state before the Welcome. The secret of a login
comes from the URL, the connection's options, a file or the environment.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from typing import Any

from ...errors import BrokerStopping, ConnectionLost, OpenDataError, ProtocolError, RequestError, from_wire
from ...file_system import read_private
from ...protocol.framing import (
    DEFAULT_MAX_FRAME_BYTES,
    PREAMBLE,
    PREAMBLE_BYTES,
    FrameReader,
    broker_messages,
    check_preamble,
    frame,
)
from ...protocol.messages import BrokerGoodbye, BrokerMessage, Failed, Hello, LoggedIn, Resume, Welcome
from ...url import Address
from ..client_clock import ClientClock
from ..connection_options import Options, default_name
from ..socket.connect import certificate_refusal, secured
from ..socket.framed_socket import RECEIVE_BYTES, FramedSocket, framed
from .route import BrokerRoute
from .session import ClientSession

FILE_VARIABLE = "OPENDATA_SECRET_FILE"
VARIABLE = "OPENDATA_SECRET"


def secret_of(user: str, broker: Address, options: Options) -> str:
    """Return the secret for a user's next login. A file is read each time, so a change of it needs no restart.

    Raises:
        RequestError: the file can't be used; the text has the reason.
    """
    configured = broker.secret or options.resolve_secret()
    if configured or not user:
        return configured or ""
    if path := os.environ.get(FILE_VARIABLE):
        return _read_secret(path)
    return os.environ.get(VARIABLE, "")


def _read_secret(path: str) -> str:
    data = read_private(path, f"the file of ${FILE_VARIABLE},", RequestError)
    try:
        secret = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as exc:
        raise RequestError(f"the file of ${FILE_VARIABLE}, {path} is not UTF-8", path=path) from exc
    if not secret:
        raise RequestError(f"the file of ${FILE_VARIABLE}, {path} is empty: write the secret into it", path=path)
    return secret


def shake_hands(
    sock: socket.socket, hello: Hello, timeout: float, resume: Resume | None = None, *, silence: float | None = None
) -> tuple[FramedSocket, Welcome, list[BrokerMessage]]:
    """Open the protocol on a connected socket; also return the messages that followed the Welcome immediately.

    Args:
        resume: sent after the login, if the Hello announces it.
        silence: seconds to wait for the preamble, which a running broker sends immediately; None means ``timeout``.

    Raises:
        ConnectionLost: the peer closed the connection.
        ProtocolError: the peer speaks another protocol.
        VersionMismatch: the peer speaks another version.
        OpenDataError: the broker refused the Hello, with its own error.
    """
    reader = FrameReader(broker_messages, DEFAULT_MAX_FRAME_BYTES)
    try:
        sock.settimeout(timeout if silence is None else silence)
        _send(sock, PREAMBLE)
        check_preamble(_receive_preamble(sock), peer="broker")
        sock.settimeout(timeout)
        first, *rest = _request(sock, reader, hello)
        if resume is not None and isinstance(first, LoggedIn):
            first, *rest = _request(sock, reader, resume)
    except OSError as exc:
        if (refusal := certificate_refusal(exc)) is not None:
            raise refusal from exc
        raise ConnectionLost(f"the broker did not answer the handshake: {exc}") from exc
    if isinstance(first, Welcome):
        reader.max_frame_bytes = first.max_frame_bytes
        return framed(sock, reader), first, rest
    if isinstance(first, Failed):
        raise from_wire(first.code, first.text, first.values)
    if isinstance(first, BrokerGoodbye):
        raise BrokerStopping(f"the broker is stopping: {first.reason}")
    raise ProtocolError(f"the broker answered the Hello with {type(first).__name__}")


def _request(sock: socket.socket, reader: FrameReader[BrokerMessage], message: Hello | Resume) -> list[BrokerMessage]:
    """Send a message and return the first messages that arrive."""
    _send(sock, frame(message))
    messages: list[BrokerMessage] = []
    while not messages:
        messages = list(reader.feed(_receive(sock, RECEIVE_BYTES)))
    return messages


def _send(sock: socket.socket, data: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # a broker that refuses the connection has sent the reason
        sock.sendall(data)


def _receive_preamble(sock: socket.socket) -> bytes:
    data = b""
    while len(data) < PREAMBLE_BYTES:
        data += _receive(sock, PREAMBLE_BYTES - len(data))
    return data


def _receive(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size)
    if not data:
        raise ConnectionLost("the broker closed the connection during the handshake")
    return data


log = logging.getLogger(__name__)


def open_session(
    session: ClientSession, route: BrokerRoute, options: Options, clock: ClientClock, more: Callable[[], Iterable[Any]]
) -> tuple[FramedSocket, Welcome]:
    """Connect to the active broker; for a resumed session, send its state and then its unanswered requests again.

    Args:
        more: returns messages that every new connection begins with, besides the session's state.

    Raises:
        ConnectionLost: no broker answers, or the connection broke.
        NotActive: only standbys answer.
        OpenDataError: the broker refuses, or can't be started.
    """
    refusals: list[OpenDataError] = []
    with closing(route.attempts(options, clock)) as attempts:
        for endpoint, result, seconds in attempts:
            try:
                if isinstance(result, OpenDataError):
                    raise result
                opened = _begin(session, route, endpoint.broker, result, seconds, options, clock, more)
            except OpenDataError as exc:
                route.failed(endpoint)
                refusals.append(exc)
            else:
                route.worked(endpoint)
                return opened
    raise route.refusal(refusals)


def _begin(
    session: ClientSession,
    route: BrokerRoute,
    broker: Address,
    sock: socket.socket,
    seconds: float,
    options: Options,
    clock: ClientClock,
    more: Callable[[], Iterable[Any]],
) -> tuple[FramedSocket, Welcome]:
    """Log in over the connected socket and restore the session."""
    try:
        if broker.kind == "tcp":
            sock = secured(sock, broker, options, seconds)
        hello = _hello(session, broker, options, route.heartbeat(options))
        opened, welcome = _log_in(sock, session, hello, options.connect_timeout, seconds)
        if welcome.heartbeat_ms:
            opened.expect_heartbeats(welcome.heartbeat_ms / 1000, clock.monotonic)
        _restore(opened, session, welcome, options)
        opened.send_all(b"".join(map(frame, more())), session.receive)
    except OSError as exc:
        sock.close()
        raise ConnectionLost(f"the connection to {broker} broke: {exc}") from exc
    except BaseException:
        sock.close()
        raise
    return opened, welcome


def _hello(session: ClientSession, broker: Address, options: Options, heartbeat: float) -> Hello:
    user = broker.user or options.user
    return session.hello(
        options.name or default_name(),
        broker.instance,
        user,
        secret_of(user, broker, options),
        heartbeat_ms=int(1000 * heartbeat),
        act_as=options.act_as,
    )


def _log_in(
    sock: socket.socket, session: ClientSession, hello: Hello, timeout: float, silence: float
) -> tuple[FramedSocket, Welcome]:
    """Send Hello and the client's state of the session; apply the broker's replies."""
    resume = session.resume()
    opened, welcome, rest = shake_hands(sock, hello, timeout, resume, silence=silence)
    if resume is not None and welcome.adopted < len(resume.held):
        ended = len(resume.held) - welcome.adopted
        session.waiting.append(partial(log.info, "%d leases ended while the connection was lost", ended))
    session.welcomed()
    session.receive(rest)
    return opened, welcome


def _restore(opened: FramedSocket, session: ClientSession, welcome: Welcome, options: Options) -> None:
    """Repeat the declarations that ended with the old connection, then send the unanswered requests again."""
    opened.send_all(b"".join(session.redeclarations(welcome)), session.receive)
    while session.redeclaring:
        if not opened.wait(options.connect_timeout):
            raise ConnectionLost("the broker did not answer the declarations of a resumed session")
        session.receive(opened.receive())
    session.run_id = welcome.run_id
    opened.send_all(b"".join(session.unanswered.values()), session.receive)
