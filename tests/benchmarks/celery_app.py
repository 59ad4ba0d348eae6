"""What a measured Celery producer and worker do: an app with one trivial task that counts itself.

As a program, ``python -m tests.benchmarks.celery_app SETTINGS-AS-JSON`` is a solo worker in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celery import Celery

from . import clients
from .clients import Timing
from .peers import Peer
from .processes import Waiter

_QUIET = ("-l", "WARNING", "--without-gossip", "--without-mingle", "--without-heartbeat")
WORKER_ARGUMENTS = ("worker", "-P", "solo", "-c", "1", "--prefetch-multiplier", "8", *_QUIET)

RUN = "OPENDATA_BENCH_RUN"


@dataclass(frozen=True)
class Run:
    """One Celery measurement: where to, how many tasks, and the file the worker writes its times to."""

    peer: Peer
    queue: str
    tasks: int
    result_path: str
    ledger: bool = False
    """Whether the file has a line for each task, as a worker with a pool needs it."""
    acks_late: bool = False


def make_app(run: Run) -> Any:
    """The measured application, with the task ``bench.tick``."""
    if run.peer.url.startswith("opendata"):
        importlib.import_module("kombu_opendata")
    app = Celery("bench", set_as_current=False)
    app.conf.update(
        broker_url=run.peer.url,
        broker_transport_options=dict(run.peer.options),
        broker_connection_retry_on_startup=True,
        task_default_queue=run.queue,
        task_ignore_result=True,
        task_acks_late=run.acks_late,
    )
    note = Ledger(run).add if run.ledger else Counter(run).add

    @app.task(name="bench.tick")
    def tick(number: int) -> None:
        note(number)

    return app


class Ledger:
    """Writes down each task and its time, whatever process or thread it ran in."""

    def __init__(self, run: Run) -> None:
        self._file = os.open(run.result_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, number: int) -> None:
        os.write(self._file, f"{number} {time.monotonic():.6f}\n".encode())


class Counter:
    """Counts the tasks in memory and writes the times when the last one has run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seen: set[int] = set()
        self._start = 0.0
        self._cpu = 0.0

    def add(self, number: int) -> None:
        if not self._seen:
            self._start, self._cpu = time.monotonic(), time.process_time()
        self._seen.add(number)
        if len(self._seen) == self._run.tasks:
            self._write(Timing(self._run.tasks - 1, self._start, time.monotonic(), time.process_time() - self._cpu))

    def _write(self, timing: Timing) -> None:
        path = Path(self._run.result_path)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(timing), encoding="ascii")
        os.replace(part, path)


def send(barrier: Waiter, run: Run) -> Timing:
    """Sends the run's tasks with ``apply_async``, the first outside the measured stretch (it opens the connection)."""
    task = make_app(run).tasks["bench.tick"]
    task.apply_async((0,))
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    for number in range(1, run.tasks):
        task.apply_async((number,))
    with task.app.producer_pool.acquire() as producer:  # the one that sent them
        clients.flush(producer.channel)
    return Timing(run.tasks - 1, start, time.monotonic(), time.process_time() - cpu)


def worker_command(run: Run) -> list[str]:
    """The command of a worker for this run."""
    return [sys.executable, "-m", __name__, json.dumps(asdict(run))]


def pool_command(pool: Sequence[str]) -> list[str]:
    """The command of a worker with a pool; its run is in the environment variable :data:`RUN`."""
    return [sys.executable, "-m", "celery", "-A", "tests.benchmarks.celery_pool", "worker", *pool, *_QUIET]


def read_run(settings: str) -> Run:
    """A run that was given to another process as JSON."""
    values = json.loads(settings)
    return Run(**{**values, "peer": Peer(**values["peer"])})


def main(settings: str) -> None:
    make_app(read_run(settings)).worker_main(list(WORKER_ARGUMENTS))


if __name__ == "__main__":
    main(sys.argv[1])
