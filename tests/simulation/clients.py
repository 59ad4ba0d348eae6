"""Simulated clients: the package's own sessions, in fibers, whose calls a history records."""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kombu_opendata import QueueClient
from kombu_opendata.client.client_clock import ClientClock
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.errors import OpenDataError
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope, metadata_headers, open_envelope
from kombu_opendata.url import memory

from ..histories import events as e
from .loop import Fiber, Process, SimulatedLoop
from .plan import QUEUES, Step

PREFETCH = 4
_CHANNEL = 1
TIMES: dict[str, Any] = {"reconnect_timeout": 20.0, "resume_timeout": 60.0, "connect_timeout": 5.0, "heartbeat": 1.0}
_OUTCOMES = {
    "ack": m.Outcome.ACK,
    "reject": m.Outcome.REJECT,
    "requeue": m.Outcome.REQUEUE,
    "release": m.Outcome.RELEASE,
}


def body_of(key: str, size: int) -> bytes:
    """Return the body of a message; its bytes follow from its key."""
    return (f"{key} ".encode() * (size // (len(key) + 1) + 1))[: max(size, len(key) + 1)]


def digest(body: bytes) -> str:
    return f"{zlib.crc32(body):08x}"


class Recorder:
    """The events of a run, in order.

    Args:
        now: the time of the simulation.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.events: list[e.AnyEvent] = []
        self._calls = 0

    def called(self, client: str, operation: e.AnyOperation) -> int:
        self._calls += 1
        self.events.append(e.Called(at=self.now(), client=client, call=self._calls, operation=operation))
        return self._calls

    def returned(self, client: str, call: int, outcome: e.Outcome = "returned", reply: Any = None) -> None:
        self.events.append(e.Returned(at=self.now(), client=client, call=call, outcome=outcome, reply=reply))

    def add(self, event: e.AnyEvent) -> None:
        self.events.append(event)

    def lost(self, client: str, why: e.Loss) -> None:
        self.events.append(e.Lost(at=self.now(), client=client, why=why))


@dataclass
class Surroundings:
    """What the clients of a run share.

    Attributes:
        wall_ms: the clock of the brokers' host, to which the clients' clocks are set.
    """

    loop: SimulatedLoop
    record: Recorder
    wall_ms: Callable[[], int]
    address: str
    started: dict[str, Client] = field(default_factory=dict)


class Client:
    """A client, which takes one step after the other.

    Attributes:
        life: the number of its process.
    """

    def __init__(self, name: str, around: Surroundings, life: int = 0) -> None:
        self.name, self.life = name, life
        self.around, self.loop, self.record = around, around.loop, around.record
        self.label = name if not life else f"{name}.{life}"
        self.process = Process(around.loop, self.label)
        self.steps: deque[Step] = deque()
        self.random = random.Random(self.label)
        self.sockets: list[Any] = []
        self.clock = ClientClock(
            wall=lambda: around.wall_ms() / 1000,
            monotonic=around.loop.time,
            sleep=lambda seconds: self.fiber.block(seconds),
        )
        self.fiber = Fiber(self.process, self._run)
        around.started[self.label] = self

    def entropy(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def take(self, step: Step) -> None:
        self.steps.append(step)
        if len(self.steps) == 1:
            self.fiber.wake()

    def _run(self) -> None:
        self.begin()
        while True:
            while not self.steps:
                self.idle()
            step = self.steps.popleft()
            try:
                getattr(self, step.action)(**step.arguments)
            except (OpenDataError, OSError):
                self.failed()

    def idle(self) -> None:
        self.fiber.block(None)

    def begin(self) -> None:
        """Prepare at the start of the process."""

    def failed(self) -> None:
        """A step ended with an error."""

    @property
    def is_connected(self) -> bool:
        """True if no connection with leases is lost."""
        return True

    def kill(self) -> None:
        self.record.lost(self.label, "killed")
        self.process.kill()
        self.fiber.end()

    def settled(self, delivery: tuple[str, int, int], end: str) -> int:
        queue, id, token = delivery
        return self.record.called(self.label, e.Settle(queue=queue, id=id, token=token, end=end))  # type: ignore[arg-type]

    def delivered(self, key: str, body: bytes, lease: tuple[str, int, int], attempt: int, requested_at: float) -> None:
        queue, id, token = lease
        self.record.add(
            e.Delivered(
                at=self.record.now(),
                client=self.label,
                queue=queue,
                key=key,
                id=id,
                token=token,
                attempt=attempt,
                digest=digest(body),
                requested_at=requested_at,
            )
        )


class KombuClient(Client):
    """A client with the session that Kombu's transport has."""

    def begin(self) -> None:
        self.connection: BrokerConnection
        self._open()

    def _open(self) -> None:
        self.held: dict[tuple[str, int, int], str] = {}
        self.connection = BrokerConnection(
            memory(self.around.address), Options(name=self.label, **TIMES), clock=self.clock, entropy=self.entropy
        )

    def failed(self) -> None:
        if self.connection.closed:
            self.record.lost(self.label, "closed")
            self.held.clear()
            self._open()

    @property
    def is_connected(self) -> bool:
        current: Any = self.connection.link.current
        return current is not None and not current.is_dead

    # ---- steps
    def publish(self, key: str, queue: str, size: int, priority: int = 0, delay: float = 0.0, ttl: float = 0.0) -> None:
        body, now_ms = body_of(key, size), self.around.wall_ms()
        headers = {"key": key}
        operation = e.Publish(key=key, queues=(queue,), priority=priority, delay=delay, ttl=ttl, digest=digest(body))
        message = m.Publish(
            0,
            0,
            "",
            queue,
            encode_envelope(body, "application/data", "binary", headers, {}, "", queue),
            metadata_headers(headers, "", queue, priority, "application/data"),
            priority,
            now_ms,
            now_ms + round(1000 * delay) if delay else 0,
            round(1000 * ttl) if ttl else -1,
        )
        call = self.record.called(self.label, operation)
        try:
            reply = self.connection.publish(message)
        except OpenDataError as exc:
            if is_refusal(exc):
                self.record.returned(self.label, call, "refused")
            raise
        self.record.returned(self.label, call, reply=reply.message_id or None)


class Consumer(KombuClient):
    """A consumer of all queues."""

    def _open(self) -> None:
        super()._open()
        self._is_consuming = False

    def _consume(self) -> None:
        if not self._is_consuming:
            self.connection.connect() if not self.connection.session.is_known else None
            self.connection.set_prefetch(_CHANNEL, PREFETCH)
            for queue in QUEUES:
                if (_CHANNEL, queue) not in self.connection.session.consumers:
                    self.connection.consume(m.Consume(0, _CHANNEL, queue, queue, False, False, {}))
            self._is_consuming = True

    def receive(self, seconds: float) -> None:
        self._consume()
        self.connection.drain(seconds)
        while self.connection.events:
            event = self.connection.events.popleft()
            if isinstance(event, m.Delivery):
                body, key = opened(event.envelope)
                self.held[event.lease] = key
                self.delivered(key, body, event.lease, event.attempts, 0.0)

    def settle(self, place: float, end: str) -> None:
        if not self.held:
            return
        lease = list(self.held)[int(place * len(self.held))]
        del self.held[lease]
        call = self.settled(lease, end)
        self.connection.settle(_CHANNEL, _OUTCOMES[end], [lease])
        self.record.returned(self.label, call, "sent")


class Reader(Client):
    """A program with a queue client, whose leases end by time."""

    LEASE_SECONDS = 20.0

    def begin(self) -> None:
        self.held: dict[tuple[str, int, int], Any] = {}
        self.client = QueueClient(
            f"opendata+memory://{self.around.address}", name=self.label, clock=self.clock, **TIMES
        )

    def read(self, queue: str, qty: int) -> None:
        requested_at = self.record.now()
        for message in self.client.read(queue, vt=self.LEASE_SECONDS, qty=qty):
            lease = queue, message.id, message.token
            self.held[lease] = message
            body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
            self.delivered(str(message.headers.get("key", "")), body, lease, message.attempts, requested_at)

    def end(self, place: float, end: str) -> None:
        if not self.held:
            return
        lease = list(self.held)[int(place * len(self.held))]
        message, queue = self.held.pop(lease), lease[0]
        call = self.settled(lease, end)
        if end == "ack":
            self.client.archive(queue, message)
        elif end == "release":
            self.client.release(queue, message)
        else:
            self.client.reject(queue, message, requeue=end == "requeue")
        self.record.returned(self.label, call)


def is_refusal(error: OpenDataError) -> bool:
    """Return True if the broker has certainly not stored the message."""
    from kombu_opendata.errors import ConnectionLost

    return not isinstance(error, ConnectionLost) and not error.values.get("uncertain")


def opened(envelope: bytes) -> tuple[bytes, str]:
    """Return the body and the key of a delivered message."""
    fields = open_envelope(envelope)
    assert fields is not None
    body = bytes(fields[0])
    return _unpacked(body), str(fields[3].get("key", ""))


def _unpacked(body: bytes) -> bytes:
    import msgspec

    value = msgspec.msgpack.decode(body)
    return value if isinstance(value, bytes) else str(value).encode()
