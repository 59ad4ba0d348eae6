"""Simulated programs with the queue client: readers, an operator, and a user who may use only a queue of its own."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kombu_opendata import QueueClient
from kombu_opendata.errors import AccessRefused, OpenDataError
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.messages.message_base import Request
from kombu_opendata.queue_client import Message

from ..histories import events as e
from ..histories.programs import TENANTS
from ..histories.queue_programs import (
    BOX,
    BOX_LENGTH,
    DEFINITIONS,
    EXCHANGE,
    SHARES,
    STEERED,
    attempts_on,
    change,
    read_definition,
    read_group,
    send_letter,
    settle,
)
from ..histories.recorder import digest
from .brokers import GRACE_SECONDS
from .clients import OPTIONS, Client, Consumer, body_of
from .plan import OWN, QUEUES, ROOT, SPLIT, TENANT

#: arguments that the operator alters
SLOTS, SPLIT_BY = f"x-concurrency of {TENANTS}", f"x-partition-by of {SPLIT}"
ALTERED = (SLOTS, SPLIT_BY, SHARES)


def _query(dice: random.Random, now_ms: int) -> Request[Any]:
    """Return a request that changes nothing; those of the history are about the time until now."""
    queue, since_ms = dice.choice(QUEUES), now_ms - dice.choice((0, 20, 2000))
    queries: tuple[Request[Any], ...] = (
        m.GetStatus(0),
        m.ListQueues(0),
        m.ListBindings(0),
        m.ListWorkers(0),
        m.GetMetrics(0, [queue]),
        m.GetResults(0, [b"task1"]),
        m.Peek(0, queue, 0, 20),
        m.ListByState(0, queue, dice.choice(("available", "in_flight", "delayed", "done", "failed")), 0, 20),
        m.ListPartitions(0, TENANTS),
        m.CountDue(0, [queue], 1000, 60),
        m.ListMessages(0, gte=since_ms),
        m.ListAttempts(0, gte=since_ms),
        m.ListFailures(0, gte=since_ms),
        m.CountAttempts(0, gte=since_ms, lt=now_ms + 1000, bucket_ms=100),
    )
    return dice.choice(queries)


class QueueClientUser(Client):
    """A program with a queue client."""

    user = ROOT

    def begin(self) -> None:
        self.held: dict[m.Lease, Any] = {}
        self.client = QueueClient(
            f"opendata+memory://{self.around.address}", name=self.label, user=self.user, clock=self.clock, **OPTIONS
        )


class Reader(QueueClientUser):
    """A program that sends, and that reads with leases that end by time."""

    def write(self, key: str, seed: int) -> None:
        send_letter(random.Random(seed), self.record, self.client, key)

    def read(self, queue: str, qty: int, lease_seconds: float) -> None:
        self._read(lease_seconds, lambda: self.client.read(queue, vt=lease_seconds, qty=qty))

    def read_grouped(self, queue: str, qty: int, lease_seconds: float, order: Any, wait_seconds: float) -> None:
        self._read(
            lease_seconds,
            lambda: read_group(self.client, lease_seconds, qty, order, wait_seconds, queue),
            order=order,
        )

    def _read(self, lease_seconds: float, read: Callable[[], list[Message]], **more: Any) -> None:
        more |= {"requested_at": self.record.now(), "lease_seconds": lease_seconds}
        for message in read():
            lease = message.queue, message.id, message.token
            self.held[lease] = message
            body = message.body if isinstance(message.body, bytes) else str(message.body).encode()
            self.delivered(str(message.headers.get("key", "")), body, lease, message.attempts, **more)

    def query(self, count: int, seed: int) -> None:
        """Give up waiting for the replies to some queries, and then wait for one."""
        dice, connection = random.Random(seed), self.client.connections.usable()
        for _ in range(count):
            with suppress(TimeoutError):
                connection.call(_query(dice, self.around.wall_ms()), timeout=0)
        connection.call(m.GetStatus(0))

    def end(self, place: float, seed: int) -> None:
        if self.held:
            lease = list(self.held)[int(place * len(self.held))]
            settle(random.Random(seed), self.record, self.client, self.held.pop(lease))


class Operator(QueueClientUser):
    """A user who changes definitions, and reads them."""

    def steer(self, seed: int) -> None:
        dice = random.Random(seed)
        change(dice, self.record, self.client, dice.randrange(3))

    def limit(self, slots: int) -> None:
        """Change the slots of a queue."""
        self._alter(SLOTS, slots)

    def split(self, by: str | None) -> None:
        """Give a queue other partitions, or none; its messages are moved in the background."""
        self._alter(SPLIT_BY, by)

    def weigh(self, weights: dict[str, int]) -> None:
        """Give the partitions of a queue other shares."""
        self._alter(SHARES, weights)

    def measure_box(self) -> None:
        """Look at the length of a queue with a limit."""
        found = self.client.metrics(BOX)
        self.record.add(e.Measured, name=f"length of {BOX}", value=found.ready + found.delayed, limit=BOX_LENGTH)

    def _alter(self, name: str, value: Any) -> None:
        argument, _, queue = name.split(" ")
        self.record.run(e.Define(name=name, value=value), lambda: self.client.alter(queue, {argument: value}))

    def delay(self, queue: str, key: str, seconds: int) -> None:
        self.record.run(
            e.Delay(queue=queue, partition=key, seconds=seconds),
            lambda: self.client.delay_key(queue, seconds, key=key),
            lambda until: round(until.timestamp() * 1000) if until is not None else 0,
        )

    def look(self, place: float) -> None:
        name = (*DEFINITIONS, *ALTERED)[int(place * len((*DEFINITIONS, *ALTERED)))]
        self.record.run(e.Read(name=name), lambda: read_definition(self.client, name), lambda value: value)


class Tenant(Reader):
    """A user who may use a queue of its own, and tries to use what belongs to others."""

    user = TENANT

    def begin(self) -> None:
        super().begin()
        self.taken: set[bytes] = set()  # sessions of other users

    def send(self, key: str, size: int) -> None:
        body = body_of(key, size)
        published = e.Publish(key=key, queues=(OWN,), digest=digest(body))
        self.record.run(published, lambda: self.client.send(OWN, body, {"key": key}), int)

    def trespass(self, place: float) -> None:
        """Do something without the right to it."""
        attempts = attempts_on(self.client, STEERED, EXCHANGE, OWN) | self._further_attempts(
            QUEUES[int(7919 * place) % len(QUEUES)]
        )
        action = list(attempts)[int(place * len(attempts))]
        self.record.run(e.Forbidden(action=action), attempts[action])

    def _further_attempts(self, queue: str) -> dict[str, Callable[[], Any]]:
        call = self.client.calls.call
        return {
            "declare a queue": lambda: self.client.create("eve-new"),
            "acknowledge by id": lambda: self.client.archive(queue, 1),
            "see messages": lambda: self.client.peek(queue),
            "send to a consumed queue": lambda: self.client.send(queue, b"forbidden"),
            "purge a consumed queue": lambda: self.client.purge(queue),
            "get results": lambda: call(m.GetResults(0, [b"task1"])),
            "store a result": lambda: call(m.StoreResult(0, b"task1", 2, b"FORBIDDEN", 0)),
            "delay a partition": lambda: self.client.delay_key(TENANTS, 1, key="gold"),
            "stage a job": lambda: call(m.AbortJob(0, "job1", [])),
        }

    def list_all(self) -> None:
        """List what there is: the answer may name only what this user may know."""
        lists: dict[str, Callable[[], Any]] = {
            "list queues": self.client.list_queues,
            "list bindings": self.client.list_bindings,
        }
        for what, call in lists.items():
            number = self.record.called(e.Forbidden(action=what, secrets=QUEUES))
            self.record.returned(number, str(call()), "refused")

    def take_session(self, place: float) -> None:
        """Log in with the session of another user, which is connected, or was when a broker ended a moment ago."""
        others = [client for client in self.around.started.values() if isinstance(client, Consumer)]
        other = others[int(place * len(others))]
        session, now = other.connection.session.id, self.record.now()
        since = now if self.around.broker_of(session, ROOT) is not None else self.around.served.get(session, 0.0)
        if not other.has(session) or session in self.taken or now > since + GRACE_SECONDS:
            return
        call, taken = self.record.called(e.Forbidden(action="take a session")), False
        while self.record.now() < since + GRACE_SECONDS:
            connection = self.new_connection(self.label, TENANT, lambda _size: session)
            try:
                connection.connect()
            except AccessRefused:
                break
            except OpenDataError:  # no broker serves yet
                self.fiber.block(0.02)
            else:
                self.taken.add(session)
                taken = other.has(session) and self._is_stored(since)
                connection.abandon()
                break
        self.record.returned(call, outcome="returned" if taken else "refused")
        if session in self.taken:
            self.around.events.append(e.Lost(at=now, client=other.label, why="cut"))

    def _is_stored(self, since: float) -> bool:
        """Return True if the owner of a session that was connected at a time must be known still.

        A session ends after a grace period without its client. A power loss, or an older broker, may lose its owner.
        """
        events = [event for event in self.around.events if event.at >= since]
        crashes = [event.how for event in events if isinstance(event, e.Crashed)]
        is_lost = any(how in ("power loss", "upgrade") for how in crashes)
        is_known = not is_lost and not any(isinstance(event, e.ClockSet) for event in events)
        return is_known and self.record.now() < since + GRACE_SECONDS
