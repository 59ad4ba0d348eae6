"""A client of the wire protocol that does just what a test says, also what no real client would do."""

from __future__ import annotations

import os
import socket
from types import TracebackType
from typing import Any, Self

import msgspec

from kombu_opendata.protocol.framing import PREAMBLE, PREAMBLE_BYTES, FrameReader, broker_messages, frame
from kombu_opendata.protocol.messages import (
    BrokerMessage,
    Consume,
    DeclareQueue,
    Deliver,
    Delivery,
    Failed,
    Hello,
    Publish,
    QueueDeclared,
    Welcome,
)

PATIENCE_SECONDS = 60


class RawClient:
    """One socket. ``deliveries`` are all that came in; ``session`` is the id of the last :meth:`hello`."""

    def __init__(self, at: str | int, *, preamble: bytes = PREAMBLE, source: str = "") -> None:
        """Connect to a path, or to a port of this host; ``source`` is this side's address."""
        self.sock = socket.socket(socket.AF_UNIX if isinstance(at, str) else socket.AF_INET)
        if source:
            self.sock.bind((source, 0))
        self.sock.settimeout(PATIENCE_SECONDS)
        self.sock.connect(at if isinstance(at, str) else ("127.0.0.1", at))
        self.deliveries: list[Delivery] = []
        self.session = b""
        self._messages: list[BrokerMessage] = []
        self._reader = FrameReader(broker_messages)
        self._greeted = False
        self._rid = 0
        if preamble:
            self.send_bytes(preamble)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_args: TracebackType | type | BaseException | None) -> None:
        self.sock.close()

    # ------------------------------------------------------------ bytes
    def send_bytes(self, data: bytes) -> None:
        """A broker that has cut this connection off already is none of this method's business."""
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def send_frame(self, body: bytes) -> None:
        self.send_bytes(len(body).to_bytes(4, "little") + body)

    def send_array(self, *values: Any) -> None:
        """A frame with any array in it."""
        self.send_frame(msgspec.msgpack.encode(values))

    def receive(self) -> BrokerMessage | None:
        """The next message; None at the end of the stream."""
        while not self._messages:
            try:
                data = self.sock.recv(1 << 18)
            except ConnectionResetError:
                return None
            if not data:
                return None
            if not self._greeted:
                assert len(data) >= PREAMBLE_BYTES, data
                data, self._greeted = data[PREAMBLE_BYTES:], True
            self._messages += self._reader.feed(data)
        return self._messages.pop(0)

    def last_word(self) -> Failed | None:
        """Read to the end; the Failed that the broker said about the connection."""
        found = None
        while (message := self.receive()) is not None:
            if isinstance(message, Failed) and message.rid == 0:
                found = message
        return found

    # ------------------------------------------------------------ messages
    def send(self, message: Any) -> int:
        """Send a message with the next request number; returns it."""
        self._rid += 1
        if hasattr(message, "rid"):
            message.rid = self._rid
        self.send_bytes(frame(message))
        return self._rid

    def answer(self, rid: int) -> Any:
        """The answer to a request; deliveries before it are kept."""
        while True:
            message = self.receive()
            assert message is not None, "the broker closed the connection"
            if isinstance(message, Deliver):
                self.deliveries += message.deliveries
            elif getattr(message, "rid", None) == rid:
                return message

    def call(self, message: Any) -> Any:
        return self.answer(self.send(message))

    def wait_deliveries(self, count: int) -> list[Delivery]:
        while len(self.deliveries) < count:
            message = self.receive()
            assert message is not None, "the broker closed the connection"
            if isinstance(message, Deliver):
                self.deliveries += message.deliveries
        return self.deliveries

    # ------------------------------------------------------------ what most tests say
    def hello(self, session: bytes = b"", **fields: Any) -> Welcome:
        self.session = session or os.urandom(16)
        answer = self.call(Hello(0, self.session, **{"name": "raw", **fields}))
        assert isinstance(answer, Welcome), answer
        return answer

    def declare(self, queue: str, arguments: dict[str, Any] | None = None) -> QueueDeclared:
        answer = self.call(DeclareQueue(0, queue, True, False, False, arguments or {}, False))
        assert isinstance(answer, QueueDeclared), answer
        return answer

    def publish(self, queue: str, seq: int, envelope: bytes = b"raw", **fields: Any) -> Any:
        return self.call(publish(queue, seq, envelope, **fields))

    def consume(self, queue: str, tag: str = "raw") -> Any:
        return self.call(Consume(0, 1, tag, queue, False, False, {}))


def publish(queue: str, seq: int, envelope: bytes = b"raw", **fields: Any) -> Publish:
    """A publish to a queue by its name."""
    given = {"exchange": "", "routing_key": queue, "headers": {}, "priority": 0, "created_at_ms": 1, **fields}
    return Publish(0, seq, envelope=envelope, **given)
