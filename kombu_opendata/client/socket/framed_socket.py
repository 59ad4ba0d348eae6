"""Connected sockets that carry frames.

A plain socket stays in blocking mode and is read and written with ``MSG_DONTWAIT`` where it must not wait: one system
call per operation, and none to switch modes. TLS sockets, and those of gevent and eventlet, do not support that flag;
they stay in non-blocking mode and wait in ``poll``.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from ...protocol.framing import FrameReader
from ...protocol.messages import BrokerMessage
from .poll import poll

RECEIVE_BYTES = 256 << 10
_TIMEVAL = struct.Struct("ll")


class Waker:
    """Wake-up of a thread that waits in :meth:`FramedSocket.wait`.

    It is a pair of sockets, not a pipe: eventlet's ``os.read`` would wait when there is nothing to read.
    """

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.settimeout(0)
        self._write_end.settimeout(0)
        self.fd = self._read_end.fileno()

    def wake(self) -> None:
        with suppress(OSError):
            self._write_end.send(b"\0")

    def clear(self) -> None:
        with suppress(OSError):
            self._read_end.recv(4096)

    def __del__(self) -> None:
        # Close only when no thread can be waiting on it: the number of a closed descriptor may be reused immediately.
        for end in (self._read_end, self._write_end):
            with suppress(OSError):
                end.close()


class FramedSocket:
    """Plain socket with the reader of its frames.

    Every method raises OSError when the connection is lost, and ProtocolError when the peer violates the protocol.
    """

    def __init__(self, sock: socket.socket, reader: FrameReader[BrokerMessage]) -> None:
        self._sock = sock
        self._window = memoryview(bytearray(RECEIVE_BYTES))
        self.reader = reader
        self.fd = sock.fileno()
        self.silence: float | None = None  # seconds without a byte after which the broker is considered dead
        self._heard_at = 0.0
        self._monotonic: Callable[[], float] | None = None
        self._set_mode()

    def _set_mode(self) -> None:
        self._sock.settimeout(None)

    def expect_heartbeats(self, heartbeat: float, monotonic: Callable[[], float]) -> None:
        """Expect bytes from the broker every ``heartbeat`` seconds: two silent intervals mean that it is dead."""
        self.silence = 2 * heartbeat
        self._monotonic = monotonic
        self._heard_at = monotonic()
        self._limit_receive(self.silence)

    def _limit_receive(self, seconds: float) -> None:
        whole = int(seconds)
        self._sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(whole, int((seconds - whole) * 1_000_000))
        )

    @property
    def is_silent(self) -> bool:
        """True if nothing arrived for too long. Read all available bytes of the socket first."""
        return self._monotonic is not None and self._monotonic() - self._heard_at > (self.silence or 0.0)

    @property
    def silent_text(self) -> str:
        return f"the broker sent nothing for {self.silence:g} s, two heartbeats"

    def send_now(self, data: Any) -> int:
        """Send as many bytes as fit without waiting; return their number."""
        try:
            return self._sock.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def send_all(self, data: bytes | memoryview, take_in: Callable[[list[BrokerMessage]], None]) -> None:
        """Send all bytes. While this waits, ``take_in`` receives messages: the broker reads only if it can write."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.send_now(rest) :]
            if rest:
                if not self.wait(self.silence, write=True):
                    raise TimeoutError(self.silent_text)
                take_in(self.receive_now() or [])

    def receive(self) -> list[BrokerMessage]:
        """Wait for bytes and return the messages that they complete."""
        try:
            return self._feed(self._sock.recv_into(self._window))
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, self.silent_text) from None

    def receive_now(self) -> list[BrokerMessage] | None:
        """Return the messages that arrived, or None if no bytes are available."""
        try:
            size = self._sock.recv_into(self._window, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        return self._feed(size)

    def _feed(self, size: int) -> list[BrokerMessage]:
        if not size:
            raise ConnectionResetError(errno.ECONNRESET, "the broker closed the connection")
        if self._monotonic is not None:
            self._heard_at = self._monotonic()
        data = self._window[:size]
        message = self.reader.single(data)
        return list(self.reader.feed(data)) if message is None else [message]

    def wait(self, timeout: float | None, *, write: bool = False, waker: Waker | None = None) -> bool:
        """Wait until bytes can be read (or written, or the waker was used). Return False after the timeout."""
        reading = (self.fd,) if waker is None else (self.fd, waker.fd)
        return poll(reading, (self.fd,) if write else (), timeout)

    def close(self) -> None:
        with suppress(OSError):
            self._sock.close()


class PollingSocket(FramedSocket):
    """TLS socket, or a socket of gevent or eventlet."""

    def _set_mode(self) -> None:
        self._sock.settimeout(0)

    def _limit_receive(self, seconds: float) -> None:
        """Do nothing: this socket waits in ``poll``."""

    def send_now(self, data: Any) -> int:
        try:
            return self._sock.send(data)
        except OSError as exc:
            if not _would_block(exc):
                raise
            return 0

    def receive(self) -> list[BrokerMessage]:
        while True:
            messages = self.receive_now()
            if messages is not None:
                return messages
            if not self.wait(self.silence):
                raise TimeoutError(errno.ETIMEDOUT, self.silent_text)

    def receive_now(self) -> list[BrokerMessage] | None:
        try:
            size = self._sock.recv_into(self._window)
        except OSError as exc:
            if not _would_block(exc):
                raise
            return None
        return self._feed(size)


def _would_block(exc: OSError) -> bool:
    if isinstance(exc, (BlockingIOError, TimeoutError)):
        return True
    import ssl

    return isinstance(exc, (ssl.SSLWantReadError, ssl.SSLWantWriteError))


def framed(sock: socket.socket, reader: FrameReader[BrokerMessage]) -> FramedSocket:
    """Return a connected socket with the reader of its frames. A simulated socket brings its own class for that."""
    if (simulated := getattr(sock, "framed", None)) is not None:
        return cast(FramedSocket, simulated(reader))
    return (FramedSocket if type(sock).__module__ == "socket" else PollingSocket)(sock, reader)
