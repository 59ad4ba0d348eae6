"""The simulated network: connections between clients and brokers, with delays, partitions and resets.

Bytes of one direction arrive in order, in pieces, each after a delay. One read has all that has arrived, so a process
gets several messages together. A partition holds what is sent until it ends; a reset of a connection loses it.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from kombu_opendata.client.socket.framed_socket import FramedSocket

from .loop import Fiber, Process, SimulatedLoop

#: bytes that the kernels of both hosts hold before a write waits
_KERNEL_BYTES = 256 << 10
_END = b""


class Direction:
    """The bytes of a connection from one process to another."""

    def __init__(self, network: Network, link: frozenset[str], arrive: Callable[[bytes], None]) -> None:
        self._network, self._link, self._arrive = network, link, arrive
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._last_at = 0.0
        self.pending_bytes = 0
        self.is_cut = False
        self._timer: asyncio.TimerHandle | None = None

    def send(self, data: bytes) -> None:
        if self.is_cut:
            return
        network, now = self._network, self._network.loop.time()
        cut = network.random.randrange(1, len(data)) if len(data) > 1 and network.random.random() < 0.05 else len(data)
        for piece in (data[:cut], data[cut:]) if data else (_END,):
            if piece or not data:
                self._last_at = max(self._last_at, now + network.delay())
                self._pieces.append((self._last_at, piece))
                self.pending_bytes += len(piece)
        self.pump()

    def pump(self) -> None:
        """Schedule the arrival of the next piece, unless a partition holds it."""
        if self._timer is None and self._pieces and not self.is_cut and self._link not in self._network.partitions:
            loop = self._network.loop
            self._timer = loop.call_at(self._pieces[0][0], self._deliver, context=loop.root)

    def _deliver(self) -> None:
        self._timer = None
        if self.is_cut or self._link in self._network.partitions:
            return
        pieces = self._pieces
        at, data = pieces.popleft()
        now = max(at, self._network.loop.time())
        while data and pieces and pieces[0][0] <= now and pieces[0][1]:
            data += pieces.popleft()[1]
        self.pending_bytes -= len(data)
        self._network.count("packet")
        self._arrive(data)
        self.pump()

    def cut(self) -> None:
        self.is_cut = True
        self._pieces.clear()
        self.pending_bytes = 0


class Connection:
    """A connection of a client with a broker."""

    def __init__(self, network: Network, client: str, broker: str) -> None:
        self.network, self.link = network, frozenset((client, broker))
        self.to_broker = Direction(network, self.link, self._to_broker)
        self.to_client = Direction(network, self.link, self._to_client)
        self.transport: ConnectedTransport
        self.peer: Any  # of the client: a socket, or a transport of another broker

    def _to_broker(self, data: bytes) -> None:
        self.transport.arrived(data)

    def _to_client(self, data: bytes) -> None:
        self.peer.arrived(data)

    def reset(self) -> None:
        """End the connection; what is under way is lost."""
        self.to_broker.cut()
        self.to_client.cut()
        self.network.connections.pop(self, None)
        self.transport.lost(ConnectionResetError(errno.ECONNRESET, "reset by the simulation"))
        self.peer.lost(ConnectionResetError(errno.ECONNRESET, "reset by the simulation"))

    def end(self) -> None:
        """Let the client read what is under way, and then the end, as the kernel of a broker that was killed does."""
        self.to_broker.cut()
        self.to_client.send(_END)
        self.network.connections.pop(self, None)

    def closed_by_client(self) -> None:
        """Let the broker read what is under way, and then the end."""
        self.to_client.cut()
        if not self.to_broker.is_cut:
            self.to_broker.send(_END)
        self.network.connections.pop(self, None)


class Network:
    """All connections."""

    def __init__(self, loop: SimulatedLoop, random_numbers: random.Random, count: Callable[[str], None]) -> None:
        self.loop, self.random, self.count = loop, random_numbers, count
        self.connections: dict[Connection, None] = {}
        self.partitions: set[frozenset[str]] = set()
        self.slow_seconds = 0.0
        self._near_seconds = random_numbers.choice((0.0001, 0.002))  # on one host, and between two

    def delay(self) -> float:
        seconds = self._near_seconds * self.random.uniform(0.05, 1.0)
        if self.random.random() < 0.01:
            seconds += self.random.uniform(0.0, 0.1)
        return seconds + (self.random.uniform(0.0, self.slow_seconds) if self.slow_seconds else 0.0)

    def of_process(self, name: str) -> list[Connection]:
        return [connection for connection in self.connections if name in connection.link]

    def partition(self, link: frozenset[str]) -> None:
        self.partitions.add(link)

    def heal(self, link: frozenset[str]) -> None:
        self.partitions.discard(link)
        for connection in list(self.connections):
            if connection.link == link:
                connection.to_broker.pump()
                connection.to_client.pump()


class TcpSocket:
    """A broker's view of a TCP socket."""

    family = socket.AF_INET

    def setsockopt(self, *_arguments: Any) -> None:
        pass

    def getsockopt(self, *_arguments: Any) -> bytes:
        return b""


_TCP = TcpSocket()


class ConnectedTransport(asyncio.Transport):
    """The transport of a process with an event loop."""

    def __init__(
        self, process: Process, protocol: asyncio.Protocol, connection: Connection, direction: Direction
    ) -> None:
        super().__init__()
        self._process, self._protocol = process, protocol
        self._connection, self._direction = connection, direction
        self._is_paused = self._is_closing = self._is_lost = False
        self._held: list[bytes] = []
        self._high = 64 << 10
        self._writing_paused = False

    def _call(self, callback: Callable[..., Any], *arguments: Any) -> None:
        self._process.loop.call_soon(callback, *arguments, context=self._process.context)

    # ---- from the network
    def arrived(self, data: bytes) -> None:
        if data and self._held and self._held[-1]:
            self._held[-1] += data
        else:
            self._held.append(data)
        self._call(self._hand_over)

    def _hand_over(self) -> None:
        while self._held and not self._is_paused and not self._is_lost:
            data = self._held.pop(0)
            if data == _END:
                self._protocol.eof_received()
                self.close()
                return
            self._protocol.data_received(data)

    def lost(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            self._call(self._protocol.connection_lost, error)

    # ---- from the protocol
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return _TCP if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or self._high

    def get_write_buffer_size(self) -> int:
        return max(self._direction.pending_bytes - _KERNEL_BYTES, 0)

    def write(self, data: Any) -> None:
        if self._is_closing or not data:
            return
        self._direction.send(bytes(data))
        if not self._writing_paused and self.get_write_buffer_size() > self._high:
            self._writing_paused = True
            self._protocol.pause_writing()
            self._process.loop.call_later(0.01, self._look, context=self._process.context)

    def _look(self) -> None:
        if self._is_lost:
            return
        if self.get_write_buffer_size() > self._high // 4:
            self._process.loop.call_later(0.01, self._look, context=self._process.context)
        else:
            self._writing_paused = False
            self._protocol.resume_writing()

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._call(self._hand_over)

    def is_reading(self) -> bool:
        return not self._is_paused

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._direction.send(_END)
            self.lost_later()

    def lost_later(self) -> None:
        self._is_lost = True
        self._call(self._protocol.connection_lost, None)

    def abort(self) -> None:
        if not self._is_lost:
            self._direction.cut()
            self._is_closing = True
            self.lost_later()
            self._connection.reset()


class ClientSocket:
    """A client's socket, for the blocking code of a fiber."""

    def __init__(self, fiber: Fiber, connection: Connection) -> None:
        self._fiber, self._connection = fiber, connection
        self._buffer = bytearray()
        self._is_ended = False
        self._error: Exception | None = None
        self._timeout: float | None = None
        self.on_lost: Callable[[], None] = lambda: None

    def framed(self, reader: Any) -> FramedSocket:
        return ClientFramedSocket(self, reader)  # type: ignore[arg-type]

    # ---- from the network
    def arrived(self, data: bytes) -> None:
        if data == _END:
            self._is_ended = True
            self.on_lost()
        self._buffer += data
        self._fiber.wake()

    def lost(self, error: Exception | None) -> None:
        if self._error is None:
            self._error = error
            self.on_lost()
            self._fiber.wake()

    @property
    def is_dead(self) -> bool:
        return self._error is not None or self._is_ended

    @property
    def is_readable(self) -> bool:
        return bool(self._buffer) or self._is_ended or self._error is not None

    def wait(self, seconds: float | None) -> bool:
        """Wait until the socket can be read; return False after the time."""
        loop = self._fiber.process.loop
        ends_at = None if seconds is None else loop.time() + seconds
        while not self.is_readable:
            rest = None if ends_at is None else ends_at - loop.time()
            if rest is not None and rest <= 0:
                return False
            self._fiber.block(rest)
        return True

    # ---- as a socket
    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def setsockopt(self, _level: int, name: int, value: Any) -> None:
        if name == socket.SO_RCVTIMEO:
            whole, micros = (int.from_bytes(value[at : at + 8], "little") for at in (0, 8))
            self._timeout = whole + micros / 1_000_000 or None

    def fileno(self) -> int:
        return 0

    def sendall(self, data: bytes) -> None:
        self.send(data)

    def send(self, data: Any, _flags: int = 0) -> int:
        if self._error is not None:
            raise self._error
        if self._is_ended and not self._buffer:
            raise BrokenPipeError(errno.EPIPE, "closed by the broker")
        self._connection.to_broker.send(bytes(data))
        return len(data)

    def recv(self, size: int) -> bytes:
        if not self.wait(self._timeout):
            raise TimeoutError("timed out")
        return self._take(size)

    def recv_into(self, window: memoryview, _size: int = 0, flags: int = 0) -> int:
        if flags & socket.MSG_DONTWAIT:
            if not self.is_readable:
                raise BlockingIOError
        elif not self.wait(self._timeout):
            raise BlockingIOError
        data = self._take(len(window))
        window[: len(data)] = data
        return len(data)

    def _take(self, size: int) -> bytes:
        if not self._buffer and self._error is not None:
            raise self._error
        data = bytes(self._buffer[:size])
        del self._buffer[: len(data)]
        return data

    def close(self) -> None:
        if self._error is None:
            self._error = ConnectionResetError(errno.ECONNRESET, "the socket is closed")
            self._connection.closed_by_client()
            self.on_lost()


class ClientFramedSocket(FramedSocket):
    """The frames of a client's socket."""

    @property
    def is_dead(self) -> bool:
        return self._sock.is_dead  # type: ignore[attr-defined,no-any-return]

    def wait(self, timeout: float | None, *, write: bool = False, waker: Any = None) -> bool:
        return write or self._sock.wait(timeout)  # type: ignore[attr-defined]
