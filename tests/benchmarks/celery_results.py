"""What a measured Celery app with results does: asks for one result after the other, and runs a canvas.

As a program, ``python -m tests.benchmarks.celery_results SETTINGS-AS-JSON`` is a worker in a process of its own.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celery import Celery, chain, chord, group
from celery.signals import worker_ready

from .celery_app import WORKER_ARGUMENTS
from .clients import WARM_UP, Timing
from .peers import Peer
from .processes import Waiter

TIMEOUT_SECONDS = 300.0
CHAIN = 50
"""The tasks of a chain."""


@dataclass(frozen=True)
class Run:
    """One measurement: the broker, where the results go, how many, and the file by which the worker says it is up."""

    peer: Peer
    backend: str
    queue: str
    count: int
    ready_path: str


def make_app(run: Run) -> Any:
    """The measured application, with the tasks ``bench.add`` and ``bench.total``."""
    if run.peer.url.startswith("opendata"):
        importlib.import_module("kombu_opendata")
    app = Celery("bench", set_as_current=False)
    app.conf.update(
        broker_url=run.peer.url,
        broker_transport_options=dict(run.peer.options),
        broker_connection_retry_on_startup=True,
        result_backend=run.backend,
        task_default_queue=run.queue,
    )

    @app.task(name="bench.add")
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="bench.total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return app


def round_trips(barrier: Waiter, run: Run) -> Timing:
    """``add.delay().get()``, one after the other; the warm-up ones come on top."""
    add = make_app(run).tasks["bench.add"]
    for number in range(WARM_UP):
        add.delay(number, 1).get(timeout=TIMEOUT_SECONDS)
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    for number in range(run.count):
        if add.delay(number, 1).get(timeout=TIMEOUT_SECONDS) != number + 1:
            raise RuntimeError("a wrong result")
    return Timing(run.count, start, time.monotonic(), time.process_time() - cpu)


def run_chord(barrier: Waiter, run: Run) -> Timing:
    """One chord, from its first message to its result; a small one warms up."""
    tasks = make_app(run).tasks
    add, total = tasks["bench.add"], tasks["bench.total"]
    chord([add.s(number, 1) for number in range(10)])(total.s()).get(timeout=TIMEOUT_SECONDS)
    header = [add.s(number, 1) for number in range(run.count)]
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    if chord(header)(total.s()).get(timeout=TIMEOUT_SECONDS) != run.count * (run.count + 1) // 2:
        raise RuntimeError("a wrong result")
    return Timing(run.count, start, time.monotonic(), time.process_time() - cpu)


def run_group(barrier: Waiter, run: Run) -> Timing:
    """One group, from its first message to its last result; a small one warms up."""
    add = make_app(run).tasks["bench.add"]
    group([add.s(number, 1) for number in range(10)])().get(timeout=TIMEOUT_SECONDS)
    tasks = group([add.s(number, 1) for number in range(run.count)])
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    if tasks().get(timeout=TIMEOUT_SECONDS) != list(range(1, run.count + 1)):
        raise RuntimeError("a wrong result")
    return Timing(run.count, start, time.monotonic(), time.process_time() - cpu)


def run_chains(barrier: Waiter, run: Run) -> Timing:
    """Chains of `CHAIN` tasks, one after the other, each from its first message to its last result."""
    add = make_app(run).tasks["bench.add"]
    chain(add.s(0, 1), add.s(1))().get(timeout=TIMEOUT_SECONDS)
    links = [add.s(0, 1), *(add.s(1) for _ in range(CHAIN - 1))]
    chains = run.count // CHAIN
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    for _ in range(chains):
        if chain(*links)().get(timeout=TIMEOUT_SECONDS) != CHAIN:
            raise RuntimeError("a wrong result")
    return Timing(chains * CHAIN, start, time.monotonic(), time.process_time() - cpu)


def worker_command(run: Run) -> list[str]:
    """The command of a worker for this run."""
    return [sys.executable, "-m", __name__, json.dumps(asdict(run))]


def main(settings: str) -> None:
    values = json.loads(settings)
    run = Run(**{**values, "peer": Peer(**values["peer"])})
    worker_ready.connect(lambda **_: Path(run.ready_path).touch(), weak=False)
    make_app(run).worker_main(list(WORKER_ARGUMENTS))


if __name__ == "__main__":
    main(sys.argv[1])
