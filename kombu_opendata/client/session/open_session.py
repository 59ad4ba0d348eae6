"""Opening and resuming of a session on a new socket: connect, log in, and restore the connection's state."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from typing import Any

from ...errors import ConnectionLost, OpenDataError
from ...protocol.framing import frame
from ...protocol.messages import Hello, Welcome
from ...url import Address
from ..client_name import default_name
from ..clock import ClientClock
from ..connection_options import Options
from ..login_secret import secret_of
from ..socket.connect import secured
from ..socket.framed_socket import FramedSocket
from ..socket.handshake import shake_hands
from .route import BrokerRoute, DialOutcome
from .session import ClientSession

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
        for attempt in attempts:
            try:
                opened = _begin(session, route, attempt, options, clock, more)
            except OpenDataError as exc:
                route.failed(attempt.endpoint)
                refusals.append(exc)
            else:
                route.worked(attempt.endpoint)
                return opened
    raise route.refusal(refusals)


def _begin(
    session: ClientSession,
    route: BrokerRoute,
    attempt: DialOutcome,
    options: Options,
    clock: ClientClock,
    more: Callable[[], Iterable[Any]],
) -> tuple[FramedSocket, Welcome]:
    """Log in over the connected socket and restore the session."""
    if isinstance(attempt.result, OpenDataError):
        raise attempt.result
    broker, sock = attempt.endpoint.broker, attempt.result
    try:
        if broker.kind == "tcp":
            sock = secured(sock, broker, options, attempt.seconds)
        hello = _hello(session, broker, options, route.heartbeat(options))
        opened, welcome = _log_in(sock, session, hello, options.connect_timeout, attempt.seconds)
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
