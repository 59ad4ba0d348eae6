"""Rows of Celery that are ours only: the gap that a killed broker makes, and the cost of a call in the caller."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from kombu_opendata import QueueClient

from . import celery_app
from .celery_app import LEDGER, Run
from .peers import Peer, our_broker, server_pid
from .processes import BenchError, run_alone, wait_until
from .results import Results
from .targets import OURS
from .workloads import Sizes, unconfirmed

WARM_UP = 200
Step = Callable[[str], None]


def _report(client: QueueClient) -> dict[str, Any]:
    """The broker's report of its instance."""
    report: dict[str, Any] = client.status()["instances"]["default"]
    return report


def _depth(client: QueueClient, run: Run) -> tuple[int, int]:
    """The ready tasks and those in flight."""
    queue = _report(client)["queues"][run.queue]
    return queue["available"], queue["in_flight"]


def _wait_empty(client: QueueClient, run: Run) -> None:
    wait_until(lambda: _depth(client, run) == (0, 0), "the end of the tasks", seconds=300.0)


@contextmanager
def _bench(name: str, folder: Path, *arguments: str) -> Iterator[tuple[Run, Any]]:
    """Give a broker, and a worker on it that has run a few tasks."""
    home = folder / name
    with our_broker(home) as peer:
        run = Run(peer, "celery", WARM_UP, str(home / "ledger.txt"), LEDGER)
        with celery_app.worker(run, home / "worker.log", "--prefetch-multiplier=8", *arguments) as worker:
            run_alone(celery_app.send, run, -WARM_UP)
            celery_app.wait_lines(run, worker, WARM_UP)
            yield run, worker


def gap(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure the longest time without a task around a kill -9 of the broker, which its clients start again."""
    for number in range(1, sizes.rounds + 1):
        _gap_round(f"gap{number}", sizes.tasks, results, folder)
        step(f"kill of the broker, round {number}")


def added(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure the caller's CPU for a call without waiting, beyond that of Kombu's transport in memory."""
    with our_broker(folder / "added") as peer:
        runs = [Run(each, "added", sizes.tasks, "") for each in (unconfirmed(peer), Peer(OURS, "memory://"))]
        for number in range(1, 3 * sizes.rounds + 1):
            ours, memory = (run_alone(celery_app.cpu_of_calls, run) for run in runs)
            results.add("added.cpu", OURS, ours - memory)
            step(f"cost of a call, round {number}")


def _gap_round(name: str, count: int, results: Results, folder: Path) -> None:
    options = ("--pool=prefork", "--concurrency=2", "-O", "fair")
    with _bench(name, folder, *options) as (run, worker), ThreadPoolExecutor(1) as pool:

        def kill() -> float:
            celery_app.wait_lines(run, worker, WARM_UP + count // 3)
            os.kill(server_pid(run.peer), signal.SIGKILL)
            return time.monotonic()

        killing = pool.submit(kill)
        run_alone(celery_app.send, replace(run, tasks=count))
        killed_at = killing.result()
        with QueueClient(run.peer.url) as client:
            _wait_empty(client, run)
        runs = [(number, at) for number, at in run.lines() if number >= 0]
    times = [killed_at, *sorted(at for _, at in runs if at > killed_at)]
    if len(times) == 1:
        raise BenchError("all tasks had run when the broker was killed")
    ran = Counter(number for number, _ in runs)
    results.add("gap.time", OURS, max(b - a for a, b in pairwise(times)))
    results.add("gap.lost", OURS, count - len(ran))
    results.add("gap.twice", OURS, sum(times > 1 for times in ran.values()))
