"""The first exchange on a new socket: preambles, then Hello and Welcome."""

from __future__ import annotations

import socket

from ..errors import BrokerStopping, ConnectionLost, ProtocolError, from_wire
from ..protocol.framing import (
    DEFAULT_MAX_FRAME_BYTES,
    PREAMBLE,
    PREAMBLE_BYTES,
    FrameReader,
    broker_messages,
    check_preamble,
    frame,
)
from ..protocol.messages import BrokerGoodbye, BrokerMessage, Failed, Hello, Welcome
from .wire import RECEIVE_BYTES, Wire, wire_for


def greet(sock: socket.socket, hello: Hello, timeout: float) -> tuple[Wire, Welcome, list[BrokerMessage]]:
    """Open the protocol on a connected socket; returns also what came right behind the Welcome.

    Raises:
        ConnectionLost: the peer went away.
        ProtocolError: it speaks something else.
        VersionMismatch: it speaks another version.
        OpenDataError: the broker refused the Hello, with its own error.
    """
    reader = FrameReader(broker_messages, DEFAULT_MAX_FRAME_BYTES)
    messages: list[BrokerMessage] = []
    try:
        sock.settimeout(timeout)
        sock.sendall(PREAMBLE)
        check_preamble(_receive_preamble(sock), peer="broker")
        sock.sendall(frame(hello))
        while not messages:
            messages = list(reader.feed(_receive(sock, RECEIVE_BYTES)))
    except OSError as exc:
        raise ConnectionLost(f"the broker did not answer the greeting: {exc}") from exc
    first, rest = messages[0], messages[1:]
    if isinstance(first, Welcome):
        reader.max_frame_bytes = first.max_frame_bytes
        return wire_for(sock, reader), first, rest
    if isinstance(first, Failed):
        raise from_wire(first.code, first.text, first.values)
    if isinstance(first, BrokerGoodbye):
        raise BrokerStopping(f"the broker is stopping: {first.reason}")
    raise ProtocolError(f"the broker answered the Hello with {type(first).__name__}")


def _receive_preamble(sock: socket.socket) -> bytes:
    data = b""
    while len(data) < PREAMBLE_BYTES:
        data += _receive(sock, PREAMBLE_BYTES - len(data))
    return data


def _receive(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size)
    if not data:
        raise ConnectionLost("the broker closed the connection during the greeting")
    return data
