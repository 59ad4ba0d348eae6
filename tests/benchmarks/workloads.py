"""One round of each comparison against one broker: prepares a queue, measures, removes the queue."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from . import celery_app, celery_results, clients
from .clients import Timing
from .peers import Peer
from .processes import BenchError, run_alone, run_together, server, wait_until
from .results import Results
from .targets import ALWAYS, OURS, POSTGRES, QUORUM, RABBITMQ, REDIS, VOLATILE

PUBLISHERS = 8
#: of Linux; Python has the name there only
_TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", 18)
_FLOW_CONTROL_MS = 600_000
_serial = itertools.count(1)


@dataclass(frozen=True)
class Sizes:
    """How much a round does, in messages or tasks; `consume` and the backlogs are multiples of 80."""

    publish: int = 3_000
    publish_each: int = 1_500
    consume: int = 12_000
    tasks: int = 5_000
    results: int = 1_000
    chord: int = 1_000
    backlog: int = 10_000_000
    backlog_sample_each: int = 1_000
    peers_backlog: int = 1_000_000
    staged: int = 1_000_000
    staged_rounds: int = 3
    replay: int = 200_000
    replay_live_each: int = 1_000
    history: int = 10_000_000
    page: int = 1_000_000
    spark: int = 1_000_000
    spark_slice: int = 4_000
    disk_seconds: int = 240
    latency: int = 6_000
    latency_seconds: float = 10.0
    backup: int = 100_000
    rounds: int = 5
    restarts: int = 3
    connections: int = 5_000
    curve_backlog: tuple[int, ...] = (0, 1_000, 100_000, 1_000_000)
    curve_history: tuple[int, ...] = (0, 100_000, 1_000_000)
    curve_queues: tuple[int, ...] = (1, 100, 10_000)
    curve_bindings: tuple[int, ...] = (1, 100, 10_000)
    curve_consumers: tuple[int, ...] = (1, 10, 100)
    curve_connections: tuple[int, ...] = (1, 100, 1_000)
    curve_sample_each: int = 1_000
    curve_latency: int = 500
    eta: int = 100_000
    delayed: int = 1_000_000
    queues: int = 10_000
    s3_seconds: float = 8.0


QUICK = Sizes(
    publish=500,
    publish_each=200,
    consume=2_000,
    tasks=800,
    results=150,
    chord=200,
    backlog=50_000,
    backlog_sample_each=250,
    peers_backlog=20_000,
    staged=20_000,
    staged_rounds=1,
    replay=20_000,
    replay_live_each=100,
    history=20_000,
    page=20_000,
    spark=50_000,
    spark_slice=500,
    disk_seconds=75,
    latency=600,
    latency_seconds=2.0,
    backup=5_000,
    rounds=2,
    restarts=1,
    connections=200,
    curve_backlog=(0, 1_000, 10_000),
    curve_history=(0, 10_000),
    curve_queues=(1, 100),
    curve_bindings=(1, 100),
    curve_consumers=(1, 10),
    curve_connections=(1, 50),
    curve_sample_each=200,
    curve_latency=100,
    eta=5_000,
    delayed=20_000,
    queues=1_000,
    s3_seconds=2.0,
)


@contextmanager
def a_queue(peer: Peer, what: str) -> Iterator[str]:
    """A new durable queue, deleted on the way out."""
    with some_queues(peer, what, 1) as (name,):
        yield name


@contextmanager
def some_queues(peer: Peer, what: str, count: int) -> Iterator[list[str]]:
    """New durable queues, deleted on the way out."""
    names = [f"bench-{what}-{next(_serial)}" for _ in range(count)]
    run_alone(clients.declare, peer, *names)
    try:
        yield names
    finally:
        run_alone(clients.delete, peer, *names)


def publish_one_by_one(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    with a_queue(peer, "publish") as name:
        timing: Timing = run_alone(clients.publish, peer, name, sizes.publish)
    results.add("publish.rate", peer.name, rate(timing))
    results.add("publish.cpu", peer.name, cpu_microseconds(timing))


def publish_at_once(key: str, publishers: int, peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    each = sizes.publish_each * PUBLISHERS // publishers
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
    for publishers in (PUBLISHERS, 64):
        with a_queue(peer, "pipeline") as name:
            timings = publish_together(peer, name, 2 * count // publishers, publishers)
            results.add(f"pipeline.rate{publishers}", peer.name, rate(*timings))
    with a_queue(peer, "pipeline-send") as name:
        run = celery_app.Run(peer, name, sizes.tasks, "")
        results.add("pipeline.send", peer.name, rate(run_alone(celery_app.send, run)))


def unconfirmed(peer: Peer) -> Peer:
    """Clients of this peer wait for no publish: ours for all at the end, RabbitMQ's not at all.

    RabbitMQ stops reading from clients that are too fast for it. Its client, py-amqp, gives up after a second of that,
    unless it is asked to wait longer.
    """
    if peer.name == OURS:
        return replace(peer, options={"publish_mode": "pipeline"})
    settings = {_TCP_USER_TIMEOUT: _FLOW_CONTROL_MS} if peer.name in (RABBITMQ, QUORUM) else {}
    return replace(peer, options={"socket_settings": settings} if settings else {})


def consume_and_ack(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    with a_queue(peer, "consume") as name:
        publish_together(peer, name, sizes.consume // PUBLISHERS)
        timing: Timing = run_alone(clients.consume, peer, name, sizes.consume)
        left = run_alone(clients.depth, peer, name)
        if left or timing.messages != sizes.consume:
            raise BenchError(f"{timing.messages} deliveries of {sizes.consume} messages, {left} left over")
    results.add("consume.rate", peer.name, rate(timing))
    results.add("consume.cpu", peer.name, cpu_microseconds(timing))


def celery_end_to_end(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    with a_queue(peer, "celery") as name:
        run = celery_app.Run(peer, name, sizes.tasks, str(folder / f"{name}.json"))
        sent: Timing = run_alone(celery_app.send, run)
        worked = work(run, folder / f"{name}.log")
    results.add("celery.send", peer.name, rate(sent))
    results.add("celery.rate", peer.name, rate(worked))
    results.add("celery.cpu", peer.name, cpu_microseconds(worked))


def results_end_to_end(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    _ask_each(
        (
            ("results.trip", celery_results.round_trips, sizes.results),
            ("results.chord", celery_results.run_chord, sizes.chord),
        ),
        *(peer, results, folder),
    )


def canvas(peer: Peer, sizes: Sizes, results: Results, folder: Path) -> None:
    _ask_each(
        (
            ("canvas.group", celery_results.run_group, sizes.chord),
            ("canvas.chain", celery_results.run_chains, sizes.chord),
        ),
        *(peer, results, folder),
    )


def _ask_each(
    asked: Sequence[tuple[str, Callable[..., Timing], int]], peer: Peer, results: Results, folder: Path
) -> None:
    backend = peer.url if peer.name == OURS else peer.results_url
    if not backend:
        raise BenchError("its results need Redis, which does not run")
    for row, function, count in asked:
        with a_queue(peer, "results") as name:
            run = celery_results.Run(peer, backend, name, count, str(folder / f"{name}.ready"))
            results.add(row, peer.name, rate(ask(function, run, folder / f"{name}.log")))


def ask(function: Callable[..., Timing], run: celery_results.Run, log: Path) -> Timing:
    """Runs a worker, and beside it a client that asks for results."""
    ready = Path(run.ready_path)
    with server(celery_results.worker_command(run), log=str(log)) as process:
        wait_until(lambda: ready.exists() or process.poll() is not None, f"a worker of {run.queue}", seconds=60.0)
        timing: Timing = run_alone(function, run)
    return timing


def work(run: celery_app.Run, log: Path) -> Timing:
    """Runs a worker until it has executed all tasks; returns the times it wrote."""
    path = Path(run.result_path)
    with server(celery_app.worker_command(run), log=str(log)) as process:
        wait_until(lambda: path.exists() or process.poll() is not None, f"the tasks of {run.queue}", seconds=300.0)
    if not path.exists():
        raise BenchError(f"the worker exited:\n{log.read_text(encoding='utf-8', errors='replace')[-1500:]}")
    return Timing(*json.loads(path.read_text(encoding="ascii")))


def publish_together(peer: Peer, name: str, count_each: int, publishers: int = PUBLISHERS) -> list[Timing]:
    """Publishes with processes that start at one moment."""
    return run_together(clients.publish, [(peer, name, count_each)] * publishers)


def sizes_for(peer: Peer, sizes: Sizes) -> Sizes:
    """PostgreSQL gets a tenth of the messages, as it would take as long as all others together."""
    if peer.name != POSTGRES:
        return sizes
    fields = ("publish", "publish_each", "consume", "tasks")
    return replace(sizes, **{name: getattr(sizes, name) // 10 for name in fields})


def publish_and_consume(peer: Peer, name: str, sizes: Sizes) -> tuple[float, float]:
    """Both rates of a sample that leaves the queue as long as it was, in messages per second."""
    published = publish_together(peer, name, sizes.backlog_sample_each)
    consumed: Timing = run_alone(clients.consume, peer, name, sizes.backlog_sample_each * PUBLISHERS)
    return rate(*published), rate(consumed)


def rate(*timings: Timing) -> float:
    """Messages per second from the first start to the last end."""
    seconds = max(one.end for one in timings) - min(one.start for one in timings)
    return sum(one.messages for one in timings) / seconds


def cpu_microseconds(timing: Timing) -> float:
    """The client's CPU time per message."""
    return timing.cpu_seconds / timing.messages * 1e6


def pool_of_worker(
    key: str, arguments: tuple[str, ...], peer: Peer, sizes: Sizes, results: Results, folder: Path
) -> None:
    """A worker's rate between a twentieth of its tasks and the last one."""
    with a_queue(peer, key) as name:
        run = celery_app.Run(peer, name, sizes.tasks, str(folder / f"{name}.ledger"), ledger=True)
        ledger, begun = Path(run.result_path), sizes.tasks // 20
        run_alone(celery_app.send, run)
        environment = {**os.environ, celery_app.RUN: json.dumps(asdict(run))}
        with server(celery_app.pool_command(arguments), log=str(folder / f"{name}.log"), env=environment) as process:
            wait_until(
                lambda: _lines(ledger) >= sizes.tasks or process.poll() is not None,
                f"the tasks of {key}",
                seconds=300.0,
            )
    times = sorted(float(line.split()[1]) for line in ledger.read_text().splitlines())
    if len(times) != sizes.tasks:
        raise BenchError(f"{len(times)} runs of {sizes.tasks} tasks; see the worker's log with --keep")
    results.add(f"{key}.rate", peer.name, (len(times) - 1 - begun) / (times[-1] - times[begun]))


def _lines(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


Comparison = Callable[[Peer, Sizes, Results, Path], None]
COMPARED: dict[str, Comparison] = {
    "publish": publish_one_by_one,
    "publish8": partial(publish_at_once, "publish8", PUBLISHERS),
    "publish64": partial(publish_at_once, "publish64", 64),
    "pipeline": publish_without_waiting,
    "consume": consume_and_ack,
    "celery": celery_end_to_end,
    "prefork": partial(pool_of_worker, "prefork", ("-P", "prefork", "-c", "2", "-O", "fair")),
    "prefork8": partial(pool_of_worker, "prefork8", ("-P", "prefork", "-c", "8", "-O", "fair")),
    "threads": partial(pool_of_worker, "threads", ("-P", "threads", "-c", "4")),
    "gevent": partial(pool_of_worker, "gevent", ("-P", "gevent", "-c", "100")),
    "results": results_end_to_end,
    "canvas": canvas,
}
MAIN = (OURS, RABBITMQ, REDIS)
_DURABLE = (OURS, RABBITMQ, QUORUM, REDIS, ALWAYS)
_BESIDE = (VOLATILE, POSTGRES)
#: the brokers of each comparison
PARTICIPANTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(COMPARED, MAIN),
    **dict.fromkeys(("publish", "publish8"), (*_DURABLE, *_BESIDE)),
    "publish64": _DURABLE,
    "consume": (OURS, RABBITMQ, QUORUM, REDIS, *_BESIDE),
    "celery": (*MAIN, *_BESIDE),
    "latency": (OURS, RABBITMQ),
    "cpu": MAIN,
}
