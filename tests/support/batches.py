"""Staged batches for tests."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.protocol.envelope import SPARK_JOB, decode, encode_fields
from kombu_opendata.protocol.messages import Consume, DeclareQueue, JobInfo, Outcome
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.job import BatchInfo, StagingTarget
from kombu_opendata.url import parse


def envelope(body: bytes, exchange: str = "", routing_key: str = "q", headers: dict[str, Any] | None = None) -> bytes:
    """As a client makes them."""
    return encode_fields((body, "application/data", "binary", headers or {}, {}, exchange, routing_key))


def headers(routing_key: str = "q", **more: str) -> dict[str, str]:
    """Metadata headers of a message."""
    return {"exchange": "", "routing_key": routing_key, "priority": "0", **more}


def stage(
    target: StagingTarget, job_id: str, parts: Sequence[Iterable[bytes]], *, attempt: int = 0, **fields: Any
) -> list[BatchInfo]:
    """A batch for each part, with these bodies, for queue ``q`` unless fields say otherwise."""
    key = fields.pop("routing_key", "q")
    found = []
    for partition, bodies in enumerate(parts):
        writer = BatchWriter(target, job_id, partition, attempt)
        for number, body in enumerate(bodies):
            writer.add(envelope(body), headers(key, id=f"{partition}-{number}"), routing_key=key, **fields)
        found.append(writer.close())
    return found


def commit_job(client: QueueClient, job_id: str, tasks: int, *, queue: str = "q") -> JobInfo:
    """A job of these tasks, which are in the queue."""
    staging = StagingClient(client.connections.usable())
    writer = BatchWriter(staging.staging_target(), job_id, 0, 0)
    for number in range(tasks):
        job = {SPARK_JOB: job_id}
        writer.add(envelope(b"%d" % number, "", queue, job), headers(queue, **job), routing_key=queue)
    staging.commit_job(job_id, [writer.close()])
    return client.wait_job(job_id, 60, until=lambda job: job.state != "routing")


def as_objects(target: StagingTarget) -> StagingTarget:
    """The target, with nothing going inline."""
    return StagingTarget(target.url, target.instance, target.options, target.max_message_bytes, 0, 0)


class Sink:
    """A consumer of the wire protocol that acknowledges all it gets and counts each body."""

    def __init__(self, url: str, *queues: str, prefetch: int = 500) -> None:
        self.connection = BrokerConnection(parse(url), Options(name="sink", start_timeout=60, reconnect_timeout=60))
        self.connection.connect()
        self.got: Counter[bytes] = Counter()
        self.ids: list[int] = []
        self.connection.set_prefetch(1, prefetch)
        for queue in queues:
            self.declare(queue)
            self.connection.consume(Consume(0, 1, f"sink-{queue}", queue, False, False, {}))

    def declare(self, queue: str, **arguments: Any) -> None:
        """A durable queue; ``_`` in a name stands for ``-``."""
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        self.connection.call(DeclareQueue(0, queue, True, False, False, given, False))

    def take(self, count: int, seconds: float = 60) -> None:
        """Until so many messages came in all, or the test fails."""
        deadline = time.monotonic() + seconds
        while self.got.total() < count:
            rest = deadline - time.monotonic()
            assert rest > 0, f"{self.got.total()} of {count} messages came within {seconds:g} s"
            with contextlib.suppress(TimeoutError):
                self.connection.drain(min(rest, 0.5))
            self.handle()

    def quiet(self, seconds: float = 0.3) -> None:
        """Take until nothing came for some time."""
        with contextlib.suppress(TimeoutError):
            while True:
                self.connection.drain(seconds)
                self.handle()

    def handle(self) -> None:
        """Count and acknowledge what is there."""
        leases = []
        while self.connection.events:
            event: Any = self.connection.events.popleft()
            self.got[decode(event.envelope)[0]] += 1
            self.ids.append(event.id)
            leases.append(event.lease)
        if leases:
            self.connection.settle(1, Outcome.ACK, leases)

    def close(self) -> None:
        self.connection.close()
