"""The least that clients can cost: the same ones on Kombu's in-memory transport, with no broker at all."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from celery.signals import task_postrun
from celery.worker import state

from . import celery_app, clients
from .clients import Timing
from .kombu_api import Queue
from .peers import Peer
from .processes import Waiter, run_alone
from .results import Results
from .targets import MEMORY
from .workloads import Sizes, cpu_microseconds, rate

PEER = Peer(MEMORY, "memory://")
QUEUE = "bench-floor"


def measure_publish(sizes: Sizes, results: Results, folder: Path) -> None:
    """Add the CPU of a client that publishes."""
    for _ in range(sizes.rounds):
        published, _consumed = run_alone(round_trip, sizes.publish)
        results.add("publish.cpu", MEMORY, cpu_microseconds(published))


def measure_consume(sizes: Sizes, results: Results, folder: Path) -> None:
    """Add the CPU of a client that consumes."""
    for _ in range(sizes.rounds):
        _published, consumed = run_alone(round_trip, sizes.consume)
        results.add("consume.cpu", MEMORY, cpu_microseconds(consumed))


def round_trip(barrier: Waiter, messages: int) -> tuple[Timing, Timing]:
    """Publish and consume; the in-memory queues live as long as this process."""
    with clients.connected(PEER) as connection:
        Queue(QUEUE, durable=True)(connection.default_channel).declare()
    return clients.publish(barrier, PEER, QUEUE, messages), clients.consume(barrier, PEER, QUEUE, messages)


def measure_celery(sizes: Sizes, results: Results, folder: Path) -> None:
    """Add the rates of ``apply_async`` and of a solo worker in the same process."""
    for number in range(sizes.rounds):
        sent, worked = run_alone(send_and_work, sizes.tasks, str(folder / f"floor-{number}.json"))
        results.add("celery.send", MEMORY, rate(sent))
        results.add("celery.rate", MEMORY, rate(worked))
        results.add("celery.cpu", MEMORY, cpu_microseconds(worked))


def send_and_work(barrier: Waiter, tasks: int, path: str) -> tuple[Timing, Timing]:
    """Send tasks, and run a worker until it has executed all of them."""
    run = celery_app.Run(PEER, QUEUE, tasks, path)
    sent, executed = celery_app.send(barrier, run), count(1)

    def stop_after_last(**_: Any) -> None:
        if next(executed) == tasks:
            state.should_stop = 0

    task_postrun.connect(stop_after_last)
    with suppress(SystemExit):
        celery_app.make_app(run).worker_main(["worker", "-l", "WARNING", *celery_app.SOLO])
    return sent, Timing(*json.loads(Path(path).read_text(encoding="ascii")))
