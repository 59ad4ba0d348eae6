"""Handshake on a new socket: preambles, Hello, Welcome; a resume sends the client's state before the Welcome."""

from __future__ import annotations

import socket
from contextlib import suppress

from ...errors import BrokerStopping, ConnectionLost, ProtocolError, from_wire
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
from .framed_socket import RECEIVE_BYTES, FramedSocket, framed
from .tls import certificate_refusal


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
        first, *rest = _ask(sock, reader, hello)
        if resume is not None and isinstance(first, LoggedIn):
            first, *rest = _ask(sock, reader, resume)
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


def _ask(sock: socket.socket, reader: FrameReader[BrokerMessage], message: Hello | Resume) -> list[BrokerMessage]:
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
