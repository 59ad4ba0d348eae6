"""Simulated clients with the sessions of Kombu's transport, in fibers, whose calls a history records."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kombu_opendata.client.client_clock import ClientClock
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import OpenDataError
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope, metadata_headers, open_envelope
from kombu_opendata.protocol.messages.message_base import Reply, Request
from kombu_opendata.protocol.unique_key import OnConflict, UniqueKey
from kombu_opendata.url import memory

from ..histories import events as e
from ..histories.queue_programs import (
    ROWS,
    stage_rows,
)
from ..histories.recorder import Recorder, digest
from ..support.batches import as_objects
from .loop import Fiber, Process, SimulatedLoop
from .plan import LARGE, QUEUES, ROOT, SECRET, Step

PREFETCH = 4
#: by how much a client's clock may be ahead of that of the broker
SKEWS_MS = (0, 0, 0, 800, -800, 5000, -5000)
CHANNEL = 1
OPTIONS: dict[str, Any] = {
    "secret": SECRET,
    "reconnect_timeout": 20.0,
    "resume_timeout": 60.0,
    "connect_timeout": 5.0,
    "heartbeat": 1.0,
}
_OUTCOMES = {
    "ack": m.Outcome.ACK,
    "reject": m.Outcome.REJECT,
    "requeue": m.Outcome.REQUEUE,
    "release": m.Outcome.RELEASE,
}


def body_of(key: str, size: int) -> bytes:
    """Return the body of a message; its bytes follow from its key. Of the large ones, some can't be compressed."""
    if size >= LARGE and key[-1] in "02468":
        return random.Random(key).randbytes(size)
    return (f"{key} ".encode() * (size // (len(key) + 1) + 1))[: max(size, len(key) + 1)]


class ClientRecorder(Recorder):
    """The events of one client, in the list of a run.

    Args:
        now: the time of the simulation.
    """

    def __init__(self, events: list[e.AnyEvent], now: Callable[[], float], client: str) -> None:
        self.client, self._events, self._now = client, events, now
        self._calls = 0

    def now(self) -> float:
        return self._now()

    def add(self, kind: type[e.Event], **fields: Any) -> None:
        self._events.append(kind(at=self._now(), **fields))  # type: ignore[arg-type]


@dataclass
class Surroundings:
    """What the clients of a run share.

    Attributes:
        wall_ms: the clock of the broker that serves, from which some clients' clocks differ.
        served: the times at which brokers ended to which sessions were connected.
        broker_of: returns the server of the broker to which a session of a user is connected; None if there is none.
    """

    loop: SimulatedLoop
    events: list[e.AnyEvent]
    wall_ms: Callable[[], int]
    broker_of: Callable[[bytes, str], Any]
    address: str
    seed: int
    started: dict[str, Client] = field(default_factory=dict)
    served: dict[bytes, float] = field(default_factory=dict)


class Client:
    """A client, which takes one step after the other.

    Attributes:
        life: the number of its process.
        step: the step that it takes now.
        has_lost: a power loss may have undone the claims of its deliveries.
    """

    def __init__(self, name: str, around: Surroundings, life: int = 0) -> None:
        self.name, self.life = name, life
        self.around, self.loop = around, around.loop
        self.label = name if not life else f"{name}.{life}"
        self.record = ClientRecorder(around.events, around.loop.time, self.label)
        self.process = Process(around.loop, self.label)
        self.steps: deque[Step] = deque()
        self.step: Step | None = None
        self.random = random.Random(f"{around.seed} {self.label}")
        self.has_lost = False
        self.clock = ClientClock(
            wall=lambda: around.wall_ms() / 1000,
            monotonic=around.loop.time,
            sleep=lambda seconds: self.fiber.block(seconds),
        )
        self.fiber = Fiber(self.process, self._run)
        around.started[self.label] = self

    def entropy(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def new_connection(
        self, name: str, user: str = ROOT, entropy: Callable[[int], bytes] | None = None, **more: Any
    ) -> RepeatingConnection:
        address, options = memory(self.around.address), Options(name=name, user=user, **OPTIONS, **more)
        return RepeatingConnection(address, options, clock=self.clock, entropy=entropy or self.entropy)

    def take(self, step: Step) -> None:
        self.steps.append(step)
        if len(self.steps) == 1:
            self.fiber.wake()

    def _run(self) -> None:
        self.begin()
        while True:
            while not self.steps:
                self.idle()
            self.step = step = self.steps.popleft()
            try:
                getattr(self, step.action)(**step.arguments)
            except (OpenDataError, OSError):
                self.failed()
            self.step = None

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

    @property
    def is_at_rest(self) -> bool:
        """True if the broker has confirmed all that the client has sent."""
        return True

    def kill(self, *, is_last: bool = False) -> None:
        """End the process; at the end of a run, it is no loss if the broker has confirmed all settlements."""
        if not (is_last and self.is_at_rest):
            self.record.lost("killed")
        self.process.kill()
        self.fiber.end()

    def settled(self, lease: m.Lease, end: str, *, runs: bool = False) -> int:
        queue, id, token = lease
        return self.record.called(e.Settle(queue=queue, id=id, token=token, end=end, runs=runs))  # type: ignore[arg-type]

    def delivered(self, key: str, body: bytes, lease: m.Lease, attempt: int, **more: Any) -> None:
        queue, id, token = lease
        fields: dict[str, Any] = {"key": key, "id": id, "token": token, "attempt": attempt, "digest": digest(body)}
        self.record.add(e.Delivered, client=self.label, queue=queue, **fields, **more)


class RepeatingConnection(BrokerConnection):
    """A connection that can send a request once more after its answer."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._sent: deque[m.Publish | m.CommitJob | m.Settle] = deque(maxlen=8)

    def call(self, message: Request[Reply], timeout: float | None = None) -> Reply:
        reply = super().call(message, timeout)
        if isinstance(message, m.CommitJob):
            self._sent.append(message)
        return reply

    def publish(self, message: m.Publish, timeout: float | None = None) -> m.PublishConfirm:
        confirm = super().publish(message, timeout)
        if confirm.queues and confirm.holder is None:  # nothing was stored under the number of another one
            self._sent.append(message)
        return confirm

    def settle(self, channel: int, outcome: int, leases: list[m.Lease]) -> None:
        super().settle(channel, outcome, leases)
        self._sent.append(m.Settle(0, outcome, channel, leases))

    def repeat(self, place: float) -> None:
        """Send a confirmed request again, after the connection is resumed."""
        with self.link.lock:
            self.link.ensure_open()
        unconfirmed = self.session.settlements.unconfirmed
        sent = [message for message in self._sent if not (unconfirmed and isinstance(message, m.Settle))]
        if sent:
            message = sent[int(place * len(sent))]
            if isinstance(message, m.Settle):  # the count is of the connection
                message.seq = self.session.settlements.confirmed
            self.io.send(message)


class KombuClient(Client):
    """A client with the session that Kombu's transport has; one of an older version reports no outcomes of tasks."""

    reports_outcomes = True

    def begin(self) -> None:
        self.skew_ms = random.Random(f"{self.around.seed} clock of {self.name}").choice(SKEWS_MS)
        self.connection: RepeatingConnection
        self._open()

    def wall_ms(self) -> int:
        """Return the time of the client's host."""
        return self.around.wall_ms() + self.skew_ms

    def _open(self) -> None:
        self.held: dict[tuple[str, int, int], str] = {}
        self.connection = self.new_connection(self.label, task_outcomes=self.reports_outcomes)

    def failed(self) -> None:
        if self.connection.closed:
            self.record.lost("closed")
            self.held.clear()
            self._open()

    @property
    def is_connected(self) -> bool:
        current: Any = self.connection.link.current
        return current is not None and not current.is_dead

    @property
    def is_at_rest(self) -> bool:
        session = self.connection.session
        return self.is_connected and not session.settlements.unconfirmed

    def message(
        self, key: str, body: bytes, queue: str, headers: dict[str, str] | None = None, priority: int = 0
    ) -> m.Publish:
        headers = headers or {"key": key}
        envelope = encode_envelope(body, "application/data", "binary", headers, {}, "", queue)
        metadata = metadata_headers(headers, "", queue, priority, "application/data")
        return m.Publish(0, 0, "", queue, envelope, metadata, priority, self.wall_ms(), 0, -1)

    # ---- steps
    def repeat(self, place: float) -> None:
        self.connection.repeat(place)

    def publish(
        self,
        key: str,
        queue: str,
        size: int,
        priority: int = 0,
        delay: float = 0.0,
        ttl: float = 0.0,
        tenant: str = "",
        unique: str = "",
        until: float = -1.0,
        on_conflict: str = "return",
    ) -> None:
        body = body_of(key, size)
        headers = {"key": key, "tenant": tenant, "shard": key[-1]} if tenant else {"key": key}
        headers |= {"id": key} if unique else {}
        operation = e.Publish(
            key=key,
            queues=(queue,),
            priority=priority,
            delay=max(delay + self.skew_ms / 1000, 0.0) if delay else 0.0,  # it shifts by the clock's error
            ttl=ttl,
            digest=digest(body),
            partition=tenant,
            unique=unique,
            until=until,
            replaces=on_conflict == "replace",
        )
        message = self.message(key, body, queue, headers, priority)
        message.visible_at_ms = self.wall_ms() + round(1000 * delay) if delay else 0
        message.ttl_ms = round(1000 * ttl) if ttl else -1
        if unique:
            until_ms = round(1000 * until) if until > 0 else int(until)
            message.unique = UniqueKey(unique, until_ms, OnConflict[on_conflict.upper()])
        self.record.run(operation, lambda: self.connection.publish(message), lambda reply: reply.message_id or None)


class Consumer(KombuClient):
    """A consumer of all queues."""

    queues: tuple[str, ...] = QUEUES

    def _open(self) -> None:
        super()._open()
        self._is_consuming = self.is_leaving = False
        self.returned: deque[m.Lease] = deque(maxlen=8)

    def has(self, session: bytes) -> bool:
        """Return True if this is its session, which it does not end."""
        current = self.connection.session
        return not self.is_leaving and current.is_known and current.id == session

    def _consume(self) -> None:
        if not self._is_consuming:
            self.connection.connect() if not self.connection.session.is_known else None
            self.connection.set_prefetch(CHANNEL, PREFETCH)
            for queue in self.queues:
                if (CHANNEL, queue) not in self.connection.session.consumers:
                    self.connection.consume(m.Consume(0, CHANNEL, queue, queue, False, False, {}))
            self._is_consuming = True

    def receive(self, seconds: float, end: str = "") -> None:
        """Receive messages; with an end, settle each immediately."""
        self._consume()
        self.connection.drain(seconds)
        while self.connection.events:
            event = self.connection.events.popleft()
            if isinstance(event, m.Delivery):
                body, key = opened(event.envelope)
                self.held[event.lease] = key
                self.delivered(key, body, event.lease, event.attempts)
                if end:
                    self._settle(event.lease, end)
        if self.has_lost:  # what arrived before a power loss was read only now
            self.record.lost("cut")
            self.has_lost = False

    def take_held(self, place: float) -> m.Lease | None:
        return list(self.held)[int(place * len(self.held))] if self.held else None

    def settle(self, place: float, end: str) -> None:
        lease = self.take_held(place)
        if lease is not None:
            self._settle(lease, end)

    def _settle(self, lease: m.Lease, end: str) -> None:
        del self.held[lease]
        call = self.settled(lease, end)
        self.connection.settle(CHANNEL, _OUTCOMES[end], [lease])
        self.record.returned(call, outcome="sent")
        if end in ("requeue", "release"):
            self.returned.append(lease)

    def settle_foreign(self, place: float, of_other: bool) -> None:
        """Acknowledge what another client holds, or by an old token what this one got again: it must be ignored."""
        others = [client for client in self.around.started.values() if isinstance(client, Consumer)]
        leases = [lease for client in others if client is not self for lease in client.held]
        again = {lease[:2]: lease for lease in self.held}
        leases = leases if of_other else [lease for lease in self.returned if lease[:2] in again]
        if leases:
            lease = leases[int(place * len(leases))]
            self.held.pop(again.get(lease[:2], lease), None)  # not settled, which would hide that it is settled
            call = self.record.called(e.Forbidden(action=f"settle {lease}"))
            self.connection.settle(CHANNEL, m.Outcome.ACK, [lease])
            self.record.returned(call, outcome="sent")


class Driver(KombuClient):
    """A Spark job: the driver, and its executors."""

    def run_job(self, job: str, rows: tuple[int, ...], commits: int, seed: int) -> None:
        parts = [tuple(f"{job}-{part}-{row}" for row in range(count)) for part, count in enumerate(rows)]
        keys: tuple[str, ...] = sum(parts, ())
        staging = StagingClient(self.connection)
        target = staging.staging_target()
        if seed % 2:
            target = as_objects(target)
        batches = [stage_rows(target, job, part, names) for part, names in enumerate(parts)]
        if not commits:
            self.record.run(e.AbortJob(job=job, keys=keys), lambda: staging.abort_job(job))
        for _ in range(commits):
            commit = e.CommitJob(job=job, queue=ROWS, keys=keys)
            self.record.run(commit, lambda: staging.commit_job(job, batches))


def opened(envelope: bytes) -> tuple[bytes, str]:
    """Return the body and the key of a delivered message."""
    fields = open_envelope(envelope)
    assert fields is not None
    body = bytes(fields[0])
    return _unpacked(body), str(fields[3].get("key", ""))


def _unpacked(body: bytes) -> bytes:
    value = msgspec.msgpack.decode(body)
    return value if isinstance(value, bytes) else str(value).encode()
