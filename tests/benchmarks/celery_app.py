"""What a measured Celery producer and worker do: an app with one trivial task that counts itself.

As a program, ``python -m tests.benchmarks.celery_app SETTINGS-AS-JSON`` is a solo worker in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celery import Celery

from .clients import Timing
from .peers import Peer
from .processes import Waiter

WORKER_ARGUMENTS = (
    *("worker", "-P", "solo", "-c", "1", "--prefetch-multiplier", "8", "-l", "WARNING"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
)


@dataclass(frozen=True)
class Run:
    """One Celery measurement: where to, how many tasks, and the file the worker writes its times to."""

    peer: Peer
    queue: str
    tasks: int
    result_path: str


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
    )
    counter = Counter(run)

    @app.task(name="bench.tick")
    def tick(number: int) -> None:
        counter.add(number)

    return app


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
    return Timing(run.tasks - 1, start, time.monotonic(), time.process_time() - cpu)


def worker_command(run: Run) -> list[str]:
    """The command of a worker for this run."""
    return [sys.executable, "-m", __name__, json.dumps(asdict(run))]


def main(settings: str) -> None:
    values = json.loads(settings)
    run = Run(**{**values, "peer": Peer(**values["peer"])})
    make_app(run).worker_main(list(WORKER_ARGUMENTS))


if __name__ == "__main__":
    main(sys.argv[1])
