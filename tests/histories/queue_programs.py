"""Programs without Kombu: the queue client with its leases, an operator's definitions, Spark jobs, and a stranger."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import NotFound
from kombu_opendata.protocol.messages import DeclareQueue
from kombu_opendata.queue_client import Message, QueueOptions
from kombu_opendata.staging.batch_writer import BatchWriter

from ..support.batches import as_objects, envelope, headers
from . import events as e
from .programs import ARGUMENTS, KEYS, PATIENT, WEIGHTED, WEIGHTS, Run, pause, persist
from .recorder import NO_ANSWER, Recorder, body_of, digest

LETTERS, GRAVEYARD, BOX = "letters", "graveyard", "box"
STEERED, ROWS, SECRET = "steered", "rows", "secret-plans"
BOX_LENGTH = 5
EXCHANGE = "steering"
LETTER_ATTEMPTS = 5
RETENTION = "x-done-retention"
#: the definition of the weights of partitions, and how many messages of one a read by groups takes at most
SHARES = f"x-partition-weights of {WEIGHTED}"
GROUP_MESSAGES = 5
#: so that nothing returns while the shares are measured
_MEASURED_SECONDS = 600


def connected(url: str, name: str) -> QueueClient:
    """A client whose broker has answered."""
    client = QueueClient(url, name=name, **PATIENT)
    persist(client.heartbeat)
    return client


def write_letters(run: Run, name: str) -> None:
    """Send with the queue client: alone, in batches, delayed, for a short time, and again with one key."""
    dice, record = run.begin(name)
    with connected(run.url, name) as client:
        create_letters(client)
        number = 0
        while not run.end.exists():
            key, number = f"{name}-{number}", number + 1
            send_letter(dice, record, client, key)
            pause(dice)


def create_letters(client: QueueClient) -> None:
    client.create(GRAVEYARD)
    options = QueueOptions(
        max_attempts=LETTER_ATTEMPTS, dead_letter_exchange="", dead_letter_routing_key=GRAVEYARD, lease_seconds=600
    )
    client.create(LETTERS, options)


def send_letter(dice: random.Random, record: Recorder, client: QueueClient, key: str) -> None:
    body = body_of(key, dice.choice((10, 500, 5000)))
    what = dice.choice(("plain", "plain", "twice", "batch", "delay", "ttl"))
    delay, ttl = (0.2 + dice.random() if what == "delay" else 0.0), (0.1 + dice.random() if what == "ttl" else 0.0)
    if what == "batch":
        keys = [f"{key}.{part}" for part in range(5)]
        calls = [record.called(publish(key, body)) for key in keys]
        try:
            ids = client.send_batch(LETTERS, [body] * len(keys), [{"key": key} for key in keys])
        except NO_ANSWER:
            return
        for call, id in zip(calls, ids, strict=True):
            record.returned(call, id)
        return
    for _ in range(2 if what == "twice" else 1):
        record.run(
            publish(key, body, delay=delay, ttl=ttl),
            lambda: client.send(
                LETTERS, body, {"key": key}, delay=delay or None, ttl=ttl or None,
                idempotency_key=key if what == "twice" else "",
            ),
            int,
        )  # fmt: skip


def publish(key: str, body: str, **more: float) -> e.Publish:
    return e.Publish(key=key, queues=(LETTERS,), digest=digest(body.encode()), **more)  # type: ignore[arg-type]


def fill_box(run: Run, name: str) -> None:
    """Send to a queue that is mostly full, and look at its length."""
    dice, record = run.begin(name)
    with connected(run.url, name) as client:
        create_box(client)
        number = 0
        while not run.end.exists():
            key, number = f"{name}-{number}", number + 1
            published = e.Publish(key=key, queues=(BOX,), digest=digest(key.encode()))
            record.run(published, partial(client.send, BOX, key, {"key": key}), int)
            with suppress(*NO_ANSWER):
                found = client.metrics(BOX)
                length = found.ready + found.delayed
                record.add(e.Measured, name=f"length of {BOX}", value=length, limit=BOX_LENGTH)
            pause(dice)


def create_box(client: QueueClient) -> None:
    client.create(BOX, QueueOptions(max_length=BOX_LENGTH, overflow="reject-publish", lease_seconds=600))


def create_weighted(client: QueueClient) -> None:
    client.calls.call(DeclareQueue(0, WEIGHTED, True, False, False, ARGUMENTS[WEIGHTED], False))


def read_letters(run: Run, name: str, queue: str = LETTERS) -> None:
    """Read with leases, and settle each delivery in one of all ways. In the box, a return would exceed the limit.

    The queue with weights is mostly read by groups; a lease that a killed client leaves blocks its group for a time.
    """
    dice, record = run.begin(name)
    with connected(run.url, name) as client:
        {LETTERS: create_letters, BOX: create_box, WEIGHTED: create_weighted}[queue](client)
        while not run.drained.exists():
            requested_at, order = record.now(), ""
            longest = 20.0 if queue == WEIGHTED else 600.0
            lease_seconds = longest if queue == BOX else dice.choice((longest, longest, longest, 0.2))
            try:
                if queue == WEIGHTED and dice.random() < 0.8:
                    order = dice.choice(("fill", "round_robin", "head"))
                    found = read_group(client, lease_seconds, dice.choice((1, 3, GROUP_MESSAGES)), order, 0.2)
                else:
                    found = client.read_with_poll(queue, lease_seconds, dice.choice((1, 1, 3)), max_poll_seconds=0.2)
            except NO_ANSWER:
                continue
            if not found and run.end.exists():
                pause(dice)
            for message in found:
                record.add(
                    e.Delivered, client=name, queue=queue, id=message.id, token=message.token,
                    key=message.headers.get("key", ""), attempt=message.attempts,
                    digest=digest(str(message.body).encode()), requested_at=requested_at,
                    lease_seconds=lease_seconds, order=order,
                )  # fmt: skip
            if lease_seconds < 1 and dice.random() < 0.5:
                time.sleep(0.3)  # until another one may have it
            for message in found:
                settle(dice, record, client, message)
        record.lost("closed")


def read_group(
    client: QueueClient, lease_seconds: float, qty: int, order: Any, wait_seconds: float, queue: str = WEIGHTED
) -> list[Message]:
    """Read messages of the groups of a queue, which are those of tenants."""
    return client.read_grouped(queue, lease_seconds, qty, order=order, header="tenant", max_poll_seconds=wait_seconds)


def settle(dice: random.Random, record: Recorder, client: QueueClient, message: Message) -> None:
    queue = message.queue
    ends: dict[e.End, Callable[[], Any]] = {
        "ack": lambda: client.archive(queue, message),
        "reject": lambda: client.reject(queue, message),
        "requeue": lambda: client.reject(queue, message, requeue=True),
        "release": lambda: client.release(queue, message),
    }
    end: e.End = "ack" if queue == BOX else dice.choices(list(ends), (80, 6, 7, 7))[0]
    record.run(e.Settle(queue=queue, id=message.id, token=message.token, end=end), ends[end])


def steer(run: Run, name: str) -> None:
    """Alter, pause, bind and create, and read each definition back."""
    dice, record = run.begin(name)
    with connected(run.url, name) as client:
        record.run(e.Define(name=f"queue {STEERED}", value=True), lambda: client.create(STEERED))
        client.declare_exchange(EXCHANGE)
        while not run.end.exists():
            number = dice.randrange(3)
            change(dice, record, client, number)
            definition = dice.choice(DEFINITIONS)
            record.run(e.Read(name=definition), partial(read_definition, client, definition), lambda value: value)
            pause(dice)


def weigh(run: Run, name: str) -> None:
    """Alter the weights of partitions, and read them back."""
    dice, record = run.begin(name)
    with connected(run.url, name) as client:
        create_weighted(client)
        while not run.end.exists():
            weights = dice.choice((WEIGHTS, {"gold": 1, "silver": 3, "*": 2}))
            change = partial(client.alter, WEIGHTED, {"x-partition-weights": weights})
            record.run(e.Define(name=SHARES, value=weights), change)
            record.run(e.Read(name=SHARES), partial(read_definition, client, SHARES), lambda value: value)
            pause(dice)


def measure_shares(client: QueueClient, record: Recorder) -> None:
    """Measure how far the partitions of a queue are from their shares while messages of all wait.

    In fair queueing, no two of them are further apart than a message of each, by their weights. What waited before is
    read first. Since its start, the broker must have had no read by groups: a partition may have given messages while
    another one was next, whose group had a message in flight.
    """
    while client.read(WEIGHTED, _MEASURED_SECONDS, 1000):
        continue
    weights = read_definition(client, SHARES) or WEIGHTS
    shares = {key: weights.get(key) or weights.get("*") or 1 for key in KEYS}
    count, before = 2 * sum(shares.values()), GROUP_MESSAGES * sum(shares.values())
    for key in KEYS:
        client.send_batch(WEIGHTED, [b"waits"] * (count + before), [{"tenant": key}] * (count + before))
    client.read(WEIGHTED, _MEASURED_SECONDS, before)
    found = Counter(message.headers["tenant"] for message in client.read(WEIGHTED, _MEASURED_SECONDS, count))
    for one, other in combinations(KEYS, 2):
        distance = abs(found[one] / shares[one] - found[other] / shares[other])
        limit = 1 / shares[one] + 1 / shares[other]
        record.add(e.Measured, name=f"distance of {one} from {other}", value=round(distance / limit, 3), limit=1)


DEFINITIONS = (
    f"queue {STEERED}",
    f"alteration {RETENTION}",
    "pause",
    *(f"binding {number}" for number in range(3)),
    *(f"queue extra{number}" for number in range(3)),
)


def change(dice: random.Random, record: Recorder, client: QueueClient, number: int) -> None:
    """Change one definition."""
    seconds = dice.randrange(100_000, 200_000)
    changes: list[tuple[str, Any, Callable[[], Any]]] = [
        (f"alteration {RETENTION}", seconds, lambda: client.alter(STEERED, {RETENTION: seconds})),
        (f"alteration {RETENTION}", None, lambda: client.alter(STEERED, reset=True)),
        ("pause", True, lambda: client.pause(STEERED)),
        ("pause", None, lambda: client.resume(STEERED)),
        (f"binding {number}", True, lambda: client.bind(STEERED, EXCHANGE, f"key{number}")),
        (f"binding {number}", None, lambda: client.unbind(STEERED, EXCHANGE, f"key{number}")),
        (f"queue extra{number}", True, lambda: client.create(f"extra{number}")),
        (f"queue extra{number}", None, lambda: client.delete_queue(f"extra{number}")),
    ]
    name, value, call = dice.choice(changes)
    record.run(e.Define(name=name, value=value), call)


def read_definition(client: QueueClient, name: str) -> Any:
    """Return the value of a definition; None if it is not there."""
    kind, _, which = name.partition(" ")
    if kind.startswith("x-"):
        return client.get_queue(which.removeprefix("of ")).overrides.get(kind)
    if kind == "binding":
        return any(binding.routing_key == f"key{which}" for binding in client.list_bindings(STEERED)) or None
    try:
        queue = client.get_queue(which if kind == "queue" else STEERED)
    except NotFound:
        return None
    return {"queue": True, "pause": queue.paused or None, "alteration": queue.overrides.get(which)}[kind]


def drive_jobs(run: Run, name: str) -> None:
    """Stage Spark jobs as executors do; commit each, some twice, and abort some."""
    dice, record = run.begin(name)
    with connected(run.url, f"{name}-queues") as queues:
        queues.create(ROWS)
    with StagingClient(run.url, Options(name=name, start_timeout=240, reconnect_timeout=240)) as client:
        persist(client.staging_target)
        number = 0
        while not run.end.exists():
            job, number = f"{name}-{number}", number + 1
            parts = [tuple(f"{job}-{part}-{row}" for row in range(dice.choice((1, 20)))) for part in range(2)]
            keys = sum(parts, ())
            try:
                target = client.staging_target()
                target = as_objects(target) if dice.random() < 0.5 else target
                batches = [stage_rows(target, job, part, rows) for part, rows in enumerate(parts)]
            except NO_ANSWER:
                continue
            if dice.random() < 0.2:
                record.run(e.AbortJob(job=job, keys=keys), partial(client.abort_job, job))
                continue
            for _ in range(dice.choice((1, 2))):
                commit = e.CommitJob(job=job, queue=ROWS, keys=keys)
                record.run(commit, partial(client.commit_job, job, batches))
            pause(dice)


def stage_rows(target: Any, job: str, partition: int, keys: tuple[str, ...]) -> Any:
    writer = BatchWriter(target, job, partition, 0)
    for key in keys:
        writer.add(envelope(key.encode(), "", ROWS, {"key": key}), headers(ROWS, key=key), routing_key=ROWS)
    return writer.close()


def trespass(run: Run, name: str) -> None:
    """Do what this user has no right to; no answer may name what it must not know."""
    dice, record = run.begin(name)
    own = run.url.replace("root:x@", "eve:x@")
    with connected(run.url, f"{name}-root") as root:
        root.create(SECRET)
        root.declare_exchange("plans", "direct")
        root.bind(SECRET, "plans", "plan")
    with connected(own, name) as client:
        attempts = attempts_on(client, SECRET, "plans", "eve-own")
        client.create("eve-own")
        while not run.end.exists():
            action = dice.choice(list(attempts))
            record.run(e.Forbidden(action=action, secrets=('plan"',)), attempts[action])
            lists: dict[str, Callable[[], Any]] = {
                "list queues": client.list_queues, "list bindings": client.list_bindings,
            }  # fmt: skip
            for what, call in lists.items():
                number = record.called(e.Forbidden(action=what, secrets=(SECRET,)))
                with suppress(*NO_ANSWER):
                    record.returned(number, str(call()), "refused")
            pause(dice)


def attempts_on(client: QueueClient, queue: str, exchange: str, own: str) -> dict[str, Callable[[], Any]]:
    """What a user may not do with a queue and an exchange of others, but with a queue of its own."""
    return {
        "send to a queue": lambda: client.send(queue, "x"),
        "read a queue": lambda: client.read(queue),
        "purge a queue": lambda: client.purge(queue),
        "delete a queue": lambda: client.delete_queue(queue),
        "pause a queue": lambda: client.pause(queue),
        "alter a queue": lambda: client.alter(queue, {RETENTION: 1}),
        "bind a queue": lambda: client.bind(queue, exchange, "other"),
        "publish to an exchange": lambda: client.publish("x", exchange=exchange, routing_key="plan"),
        "delete an exchange": lambda: client.delete_exchange(exchange),
        "move messages": lambda: client.move_messages(queue, own),
    }
