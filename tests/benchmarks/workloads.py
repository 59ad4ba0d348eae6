"""One round of each comparison with one broker: prepare a queue, measure, remove the queue."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from . import celery_app, clients
from .celery_app import LEDGER, READY, Run
from .clients import Content, Timing
from .peers import Peer
from .processes import BenchError, run_alone, run_together, wait_until
from .results import Results
from .targets import ALWAYS, OURS, QUORUM, RABBITMQ, REDIS

PUBLISHERS = 8
#: of Linux; Python has the name there only
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 18)
_FLOW_CONTROL_MS = 600_000
_serial = itertools.count(1)


def _size(full: Any, quick: Any) -> Any:
    return field(default=full, metadata={"quick": quick})


@dataclass(frozen=True)
class Sizes:
    """The messages, tasks and seconds of a round; `consume` and the backlogs are multiples of 80."""

    publish: int = _size(3_000, 500)
    publish_each: int = _size(1_500, 200)
    consume: int = _size(12_000, 2_000)
    tasks: int = _size(5_000, 800)
    results: int = _size(1_000, 150)
    chord: int = _size(1_000, 200)
    backlog: int = _size(10_000_000, 50_000)
    backlog_sample_each: int = _size(1_000, 250)
    peers_backlog: int = _size(1_000_000, 20_000)
    backlog_peers: tuple[str, ...] = _size((OURS, RABBITMQ, REDIS), (OURS, RABBITMQ, REDIS))
    history: int = _size(10_000_000, 20_000)
    spark: int = _size(1_000_000, 50_000)
    spark_slice: int = _size(4_000, 500)
    spark_rows: int = _size(10_000_000, 50_000)
    spark_tasks: int = _size(1_000_000, 10_000)
    latency: int = _size(6_000, 600)
    rounds: int = _size(5, 2)
    restarts: int = _size(3, 1)
    connections: int = _size(5_000, 200)
    curve_backlog: tuple[int, ...] = _size((0, 1_000, 100_000, 1_000_000), (0, 1_000, 10_000))
    curve_history: tuple[int, ...] = _size((0, 100_000, 1_000_000), (0, 10_000))
    curve_queues: tuple[int, ...] = _size((1, 100, 10_000), (1, 100))
    curve_bindings: tuple[int, ...] = _size((1, 100, 10_000), (1, 100))
    curve_consumers: tuple[int, ...] = _size((1, 10, 100), (1, 10))
    curve_connections: tuple[int, ...] = _size((1, 100, 1_000), (1, 50))
    curve_sample_each: int = _size(1_000, 200)
    curve_latency: int = _size(500, 100)
    queues: int = _size(10_000, 1_000)
    partitions: tuple[int, ...] = _size((1, 1_000, 100_000), (1, 100, 2_000))
    fair_backlog: int = _size(1_000_000, 8_000)
    fair_tasks: int = _size(1_200, 100)
    fair_seconds: float = _size(600.0, 30.0)
    s3_seconds: float = _size(8.0, 2.0)


QUICK = Sizes(**{size.name: size.metadata["quick"] for size in fields(Sizes)})


# ---------------------------------------------------------------------- what rounds share
@contextmanager
def some_queues(peer: Peer, what: str, count: int = 1) -> Iterator[list[str]]:
    """Give new durable queues, deleted on the way out."""
    names = [f"bench-{what}-{next(_serial)}" for _ in range(count)]
    run_alone(clients.declare, peer, *names)
    try:
        yield names
    finally:
        run_alone(clients.delete, peer, *names)


@contextmanager
def a_queue(peer: Peer, what: str) -> Iterator[str]:
    with some_queues(peer, what) as (name,):
        yield name


def rate(*timings: Timing) -> float:
    """Return the messages per second from the first start to the last end."""
    seconds = max(timing.end for timing in timings) - min(timing.start for timing in timings)
    return sum(timing.messages for timing in timings) / seconds


def cpu_microseconds(timing: Timing) -> float:
    """Return the client's CPU time per message."""
    return timing.cpu_seconds / timing.messages * 1e6


def publish_together(
    peer: Peer, name: str, count_each: int, publishers: int = PUBLISHERS, content: Content | None = None
) -> list[Timing]:
    """Publish with processes that start at one moment."""
    return run_together(clients.publish, [(peer, name, count_each, "", (), content)] * publishers)


def publish_and_consume(peer: Peer, name: str, each: int) -> tuple[float, float]:
    """Return both rates of a sample that leaves the queue as long as it was."""
    published = publish_together(peer, name, each)
    return rate(*published), rate(run_alone(clients.consume, peer, name, each * PUBLISHERS))


def consume_all(peer: Peer, name: str | list[str], count: int, prefetch: int = 100) -> Timing:
    """Consume and ack all messages of queues.

    Raises:
        BenchError: there were fewer or more.
    """
    timing: Timing = run_alone(clients.consume, peer, name, count, prefetch)
    if timing.messages != count:
        raise BenchError(f"{timing.messages} deliveries of {count} messages")
    return timing


def unconfirmed(peer: Peer) -> Peer:
    """Return a peer whose clients wait for no publish: ours for all at the end, RabbitMQ's not at all.

    RabbitMQ stops reading from clients that are too fast for it. Its client, py-amqp, gives up after a second of that,
    unless it is asked to wait longer.
    """
    if peer.name == OURS:
        return replace(peer, options={"publish_mode": "pipeline"})
    settings = {_TCP_USER_TIMEOUT: _FLOW_CONTROL_MS} if peer.name in (RABBITMQ, QUORUM) else {}
    return replace(peer, options={"socket_settings": settings} if settings else {})


# ---------------------------------------------------------------------- rounds
def publish_one_by_one(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    with a_queue(peer, "publish") as name:
        timing: Timing = run_alone(clients.publish, peer, name, sizes.publish)
    results.add("publish.rate", peer.name, rate(timing))
    results.add("publish.cpu", peer.name, cpu_microseconds(timing))


def publish_by_many(publishers: int, peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    key, each = f"publish{publishers}", sizes.publish_each * PUBLISHERS // publishers
    with a_queue(peer, key) as name:
        timings = publish_together(peer, name, each, publishers)
        waiting = run_alone(clients.depth, peer, name)
        if waiting != publishers * each:
            raise BenchError(f"{waiting} messages wait where {publishers} × {each} were published")
    results.add(f"{key}.rate", peer.name, rate(*timings))


def publish_without_waiting(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    peer, count = unconfirmed(peer), sizes.consume
    with a_queue(peer, "pipeline") as name:
        timing: Timing = run_alone(clients.publish, peer, name, count)
        wait_until(lambda: run_alone(clients.depth, peer, name) == count, f"{count} messages", seconds=60.0)
    results.add("pipeline.rate", peer.name, rate(timing))
    results.add("pipeline.cpu", peer.name, cpu_microseconds(timing))
    with a_queue(peer, "pipeline-send") as name:
        results.add("pipeline.send", peer.name, rate(run_alone(celery_app.send, Run(peer, name, sizes.tasks, ""))))


def publish_by_many_without_waiting(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    peer, count = unconfirmed(peer), 2 * sizes.consume
    for publishers in (PUBLISHERS, 64):
        with a_queue(peer, "pipelines") as name:
            timings = publish_together(peer, name, count // publishers, publishers)
            results.add(f"pipelines.rate{publishers}", peer.name, rate(*timings))


def consume_and_ack(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    with a_queue(peer, "consume") as name:
        publish_together(peer, name, sizes.consume // PUBLISHERS)
        timing = consume_all(peer, name, sizes.consume)
        if left := run_alone(clients.depth, peer, name):
            raise BenchError(f"{left} messages are left over")
    results.add("consume.rate", peer.name, rate(timing))
    results.add("consume.cpu", peer.name, cpu_microseconds(timing))


def solo_worker(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    with a_queue(peer, "celery") as name:
        run = Run(peer, name, sizes.tasks, str(folder / f"{name}.json"))
        sent: Timing = run_alone(celery_app.send, run)
        worked = celery_app.work(run, folder / f"{name}.log")
    results.add("celery.send", peer.name, rate(sent))
    results.add("celery.rate", peer.name, rate(worked))
    results.add("celery.cpu", peer.name, cpu_microseconds(worked))


def acks(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    for key, is_late in (("early", False), ("late", True)):
        with a_queue(peer, f"acks-{key}") as name:
            run = Run(peer, name, sizes.tasks, str(folder / f"{name}.json"), acks_late=is_late)
            run_alone(celery_app.send, run)
            results.add(f"acks.{key}", peer.name, rate(celery_app.work(run, folder / f"{name}.log")))


def results_of(rows: dict[str, str], peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    """Measure calls that wait for results, of a worker that is up."""
    backend = peer.url if peer.name == OURS else peer.results_url
    if not backend:
        raise BenchError("its results need Redis, which does not run")
    for row, kind in rows.items():
        with a_queue(peer, "results") as name:
            count = sizes.results if kind == "trip" else sizes.chord
            run = Run(peer, name, count, str(folder / f"{name}.ready"), READY, backend=backend)
            with celery_app.worker(run, folder / f"{name}.log", *celery_app.SOLO) as process:
                celery_app.wait_for_file(run, process, 60.0)
                results.add(row, peer.name, rate(run_alone(celery_app.call, run, kind)))


def pool_of_worker(
    key: str, arguments: tuple[str, ...], peer: Peer, sizes: Sizes, results: Results, folder: Path
) -> None:
    """Measure a worker's rate between a twentieth of its tasks and the last one."""
    with a_queue(peer, key) as name:
        run, begun = Run(peer, name, sizes.tasks, str(folder / f"{name}.ledger"), LEDGER), sizes.tasks // 20
        run_alone(celery_app.send, run)
        with celery_app.worker(run, folder / f"{name}.log", *arguments, *celery_app.QUIET) as process:
            celery_app.wait_lines(run, process, sizes.tasks)
    times = sorted(at for _number, at in run.lines())
    if len(times) != sizes.tasks:
        raise BenchError(f"{len(times)} runs of {sizes.tasks} tasks; see the worker's log with --keep")
    results.add(f"{key}.rate", peer.name, (len(times) - 1 - begun) / (times[-1] - times[begun]))


Comparison = Callable[[Peer, Sizes, Results, Path], None]
COMPARED: dict[str, Comparison] = {
    "publish": publish_one_by_one,
    "publish8": partial(publish_by_many, PUBLISHERS),
    "publish64": partial(publish_by_many, 64),
    "pipeline": publish_without_waiting,
    "pipelines": publish_by_many_without_waiting,
    "consume": consume_and_ack,
    "celery": solo_worker,
    "prefork": partial(pool_of_worker, "prefork", ("-P", "prefork", "-c", "2", "-O", "fair")),
    "prefork8": partial(pool_of_worker, "prefork8", ("-P", "prefork", "-c", "8", "-O", "fair")),
    "threads": partial(pool_of_worker, "threads", ("-P", "threads", "-c", "4")),
    "gevent": partial(pool_of_worker, "gevent", ("-P", "gevent", "-c", "100")),
    "results": partial(results_of, {"results.trip": "trip", "results.chord": "chord"}),
    "canvas": partial(results_of, {"canvas.group": "group", "canvas.chain": "chain"}),
}
MAIN = (OURS, RABBITMQ, REDIS)
#: the brokers of each comparison, if not the main ones
PARTICIPANTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("publish", "publish8", "publish64"), (*MAIN, QUORUM, ALWAYS)),
    "consume": (*MAIN, QUORUM),
    "latency": (OURS, RABBITMQ),
    "partitions": (OURS,),
    "unique": (OURS,),
}
