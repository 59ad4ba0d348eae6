"""The programs of clients, which run until a file exists and record everything they do."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import kombu as _kombu
from msgspec import field

import kombu_opendata  # noqa: F401 - registers the transport
from kombu_opendata.client.session.unconfirmed import TaskRun
from kombu_opendata.protocol.messages import Outcome
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.protocol.unique_key import HEADER as UNIQUE
from kombu_opendata.transport.kombu_message import DELIVERY_COUNT

from . import events as e
from .recorder import NO_ANSWER, Recorder, body_of, digest

#: as Any: the package says it is typed, but most of its functions are not
kombu: Any = _kombu
T = TypeVar("T")
PATIENT: dict[str, Any] = {"start_timeout": 240, "reconnect_timeout": 240}


class Run(e.Plain):
    """What a client needs to know: where its broker is, where to record, and when to end.

    Attributes:
        environment: variables for its process.
    """

    folder: Path
    url: str
    seed: int
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def end(self) -> Path:
        """No further publishes when this file exists."""
        return self.folder / "end"

    @property
    def drained(self) -> Path:
        """No further deliveries when this file exists."""
        return self.folder / "drained"

    def begin(self, name: str) -> tuple[random.Random, Recorder]:
        """The client's own randomness, and its record."""
        os.environ.update(self.environment)
        return random.Random(f"{self.seed} {name}"), Recorder(self.folder, name)


def pause(dice: random.Random) -> None:
    """Keep the rate of a client: no wait for anything."""
    time.sleep(dice.random() * 0.02)


def persist(call: Callable[[], T], errors: tuple[type[Exception], ...] = NO_ANSWER) -> T:
    """Repeat a client's call until its broker is there; returns its answer."""
    deadline = time.monotonic() + PATIENT["reconnect_timeout"]
    while True:
        try:
            return call()
        except errors:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


#: queues with partitions: with slots, with rates, and with weights
TENANTS, THROTTLED, WEIGHTED = PARTITIONED = ("tenants", "throttled", "weighted")
KEYS = ("gold", "silver", "bronze")
TENANT_SLOTS, ALL_SLOTS = 2, 4
#: deliveries in a second, and at a time: more than may be delivered later because a broker had to start. The runner
#: takes a queue as quiet between two of them
RATE, PARTITION_RATE, BURST = 2, 1, 6
WEIGHTS = {"gold": 4, "silver": 2}
#: the arguments of the queues
ARGUMENTS: dict[str, dict[str, Any]] = {
    TENANTS: {"x-partition-by": "tenant", "x-partition-concurrency": TENANT_SLOTS, "x-concurrency": ALL_SLOTS},
    THROTTLED: {
        "x-partition-by": "tenant",
        "x-rate": f"{60 * RATE}/m:{BURST}",
        "x-partition-rate": f"{60 * PARTITION_RATE}/m:{BURST}",
    },
    WEIGHTED: {"x-partition-by": "tenant", "x-partition-weights": WEIGHTS},
}


def queue_of(name: str, **options: Any) -> Any:
    return kombu.Queue(name, durable=True, queue_arguments=ARGUMENTS.get(name), **options)


def produce(run: Run, name: str, queue: str) -> None:
    """Publish with Kombu, with priorities; for partitions by tenants, some with unique keys."""
    dice, record = run.begin(name)
    with kombu.Connection(run.url, transport_options={**PATIENT, "consumer_name": name}) as connection:
        persist(connection.connect)
        producer = connection.Producer()
        number = 0
        while not run.end.exists():
            key, priority = f"{name}-{number}", dice.choice((0, 0, 0, 5, 9))
            body, headers = body_of(key, dice.choice((10, 100, 3000))), {"key": key}
            published = e.Publish(key=key, queues=(queue,), priority=priority, digest=digest(body.encode()))
            if queue in PARTITIONED:
                headers |= tenant_headers(dice, published)
            message = {"routing_key": queue, "declare": [queue_of(queue)], "priority": priority, "headers": headers}
            record.run(published, partial(producer.publish, body, **message))
            number += 1
            pause(dice)


def tenant_headers(dice: random.Random, published: e.Publish) -> dict[str, Any]:
    """Choose a tenant, and for some messages a unique key."""
    published.partition = dice.choice(KEYS)
    headers: dict[str, Any] = {"tenant": published.partition}
    if published.queues == (TENANTS,) and dice.random() < 0.4:
        published.unique = f"unique-{dice.randrange(4)}"
        headers[UNIQUE] = {"key": published.unique, "on_conflict": dice.choice(("return", "error", "replace"))}
    return headers


def consume(run: Run, name: str, queue: str) -> None:
    """Consume with Kombu; most are acknowledged, some return, some are rejected.

    What returned to the client itself is acknowledged by the earlier token, which must do nothing, and returns again.
    Some are tasks: acknowledged before their run, and their end is reported twice, as after a reconnect.
    """
    dice, record = run.begin(name)
    returned: dict[tuple[str, int], int] = {}

    def acknowledge_by(token: int, message: Any) -> None:
        of, id, _token = message.lease
        call = record.called(e.Settle(queue=of, id=id, token=token, end="ack"))
        message.channel.connection.settle(message.channel.channel_id, Outcome.ACK, [(of, id, token)])
        record.returned(call, outcome="sent")

    def end_task(message: Any) -> None:
        key = message.headers["key"]
        report = TaskReport.cut(TaskState.SUCCEEDED, 1000, os.getpid(), key)
        record.add(e.TaskEnded, client=name, key=key, end="succeeded")
        for _ in range(2):
            message.channel.connection.settle_task(message.channel.channel_id, Outcome.REPORT, message.lease, report)

    def received(body: Any, message: Any) -> None:
        of, id, token = message.lease
        record.add(
            e.Delivered, client=name, queue=of, id=id, token=token, key=message.headers["key"],
            attempt=1 + message.headers.get(DELIVERY_COUNT, 0), digest=digest(body.encode()),
        )  # fmt: skip
        end: e.End = dice.choices(("ack", "requeue", "reject"), (85, 12, 3))[0]
        if (earlier := returned.pop((of, id), None)) is not None:
            acknowledge_by(earlier, message)
            end = "requeue"
        elif end == "requeue":
            returned[of, id] = token
        runs = end == "ack" and message.channel.takes_reports and dice.random() < 0.3
        call = record.called(e.Settle(queue=of, id=id, token=token, end=end, runs=runs))
        if runs:
            message.run = TaskRun.BEGUN
        {"ack": message.ack, "requeue": message.requeue, "reject": message.reject}[end]()
        record.returned(call, outcome="sent")
        if runs:
            end_task(message)

    with kombu.Connection(run.url, transport_options={**PATIENT, "consumer_name": name}) as connection:
        persist(connection.connect)
        declared = queue_of(queue, channel=connection.default_channel)
        with connection.Consumer([declared], callbacks=[received], prefetch_count=dice.choice((1, 10, 50))):
            while not run.drained.exists():
                try:
                    connection.drain_events(timeout=0.1)
                except TimeoutError:
                    continue
            record.lost("closed")
