"""What a Celery worker costs while it waits, and what a killed broker costs it (ours only).

As a program, ``python -m tests.benchmarks.celery_rows URL LEDGER ARGUMENTS…`` is a worker with a task that writes down
its number and the time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from celery import Celery

from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.messages import GetStatus
from kombu_opendata.url import parse

from .backlog import kilobytes
from .peers import broker_pid, our_broker
from .processes import BenchError, Waiter, run_alone, run_together, server, wait_until
from .results import Results
from .targets import OURS
from .workloads import PUBLISHERS, Sizes

WARM_UP = 200
HOUR_SECONDS = 3600
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
EVENTS = ("--task-events", "--heartbeat-interval=2")
IDLE_SECONDS = 30.0


def make_app(url: str, ledger: str) -> Any:
    """The measured application, with the task ``bench.mark``."""
    app = Celery("bench", broker=url, set_as_current=False)
    app.conf.update(broker_connection_retry_on_startup=True, task_ignore_result=True, worker_prefetch_multiplier=8)
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    @app.task(name="bench.mark")
    def mark(number: int) -> None:
        os.write(file, f"{number} {time.monotonic():.6f}\n".encode())

    return app


def send(barrier: Waiter, url: str, first: int, count: int, countdown: float | None = None) -> None:
    """Sends numbered tasks."""
    app = Celery("bench", broker=url, set_as_current=False)
    barrier.wait()
    for number in range(first, first + count):
        app.send_task("bench.mark", (number,), countdown=countdown)


class Bench:
    """A broker on a folder of its own, a worker on it, and the ledger of what the worker ran."""

    def __init__(self, url: str, folder: Path, worker: Any) -> None:
        self.url = url
        self.store = folder / "store"
        self.ledger = folder / "ledger.txt"
        self.worker = worker

    def runs(self) -> list[tuple[int, float]]:
        """Number and time of each run, in order."""
        lines = [line.split() for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []
        return [(int(number), float(at)) for number, at in lines]

    def count(self) -> int:
        return self.ledger.read_bytes().count(b"\n") if self.ledger.exists() else 0

    def wait_count(self, count: int) -> None:
        wait_until(lambda: self.count() >= count or self.worker.poll() is not None, f"{count} tasks", seconds=300.0)
        if self.worker.poll() is not None:
            raise BenchError("the worker exited; see its log with --keep")


class Watch:
    """One connection that asks for the broker's report again and again."""

    def __init__(self, url: str) -> None:
        self._connection = BrokerConnection(parse(url), Options(name="bench"))
        self._connection.connect()

    def report(self) -> dict[str, Any]:
        """What the broker says of the instance."""
        instance: dict[str, Any] = self._connection.call(GetStatus(0)).report["instances"]["default"]
        return instance

    def depth(self) -> tuple[int, int]:
        """The tasks that wait and those in hand."""
        queue = self.report()["queues"]["celery"]
        return queue["available"], queue["in_flight"]

    def wait_empty(self) -> None:
        wait_until(lambda: self.depth() == (0, 0), "the end of the tasks", seconds=300.0)


@contextmanager
def watching(url: str) -> Iterator[Watch]:
    watch = Watch(url)
    try:
        yield watch
    finally:
        watch._connection.close()


@contextmanager
def hearing(url: str) -> Iterator[list[float]]:
    """When each heartbeat of a worker came in, as a receiver of events sees them."""
    app = Celery("bench", broker=url, set_as_current=False)
    beats: list[float] = []
    with app.connection_for_read() as connection, ThreadPoolExecutor(1) as pool:
        handlers = {"worker-heartbeat": lambda event: beats.append(time.monotonic())}
        receiver = app.events.Receiver(connection, handlers=handlers)
        running = pool.submit(receiver.capture, None, None, False)
        try:
            yield beats
        finally:
            receiver.should_stop = True
            running.result()


@contextmanager
def bench(name: str, folder: Path, *arguments: str) -> Iterator[Bench]:
    """A broker, and a worker that has run a few tasks."""
    home = folder / name
    with our_broker(home) as peer:
        command = [sys.executable, "-m", __name__, peer.url, str(home / "ledger.txt"), *arguments]
        with server(command, log=str(home / "worker.log")) as worker:
            started = Bench(peer.url, home, worker)
            run_alone(send, peer.url, -WARM_UP, WARM_UP)
            started.wait_count(WARM_UP)
            yield started


def eta(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """The growth of a worker's memory while tasks that are due in an hour are sent to its queue."""
    count = sizes.eta
    with bench("eta", folder, "--pool=solo", *QUIET) as one:
        before = kilobytes(one.worker.pid, "VmRSS")
        each = count // PUBLISHERS
        run_together(send, [(one.url, n * each, each, HOUR_SECONDS) for n in range(PUBLISHERS)])
        with watching(one.url) as watch:
            waiting = watch.depth()
        if waiting != (each * PUBLISHERS, 0):
            raise BenchError(f"{waiting} where {each * PUBLISHERS} tasks should wait in the store")
        run_alone(send, one.url, count, WARM_UP)  # it works on while they wait
        one.wait_count(2 * WARM_UP)
        results.add("eta.memory", OURS, (kilobytes(one.worker.pid, "VmRSS") - before) * 1024 / 1e6)
    results.remarks.append(f"Tasks due in an hour: {each * PUBLISHERS:,}, sent to the queue of an idle solo worker.")
    step("tasks due in an hour")


def gap(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """The longest time without a task around a kill -9 of the broker; its clients start it again."""
    for number in range(1, sizes.rounds + 1):
        _gap_round(f"gap{number}", sizes.tasks, results, folder)
        step(f"kill of the broker, round {number}")


def _gap_round(name: str, count: int, results: Results, folder: Path) -> None:
    with bench(name, folder, "--pool=prefork", "--concurrency=2", "-O", "fair") as one, ThreadPoolExecutor(1) as pool:

        def kill() -> float:
            one.wait_count(WARM_UP + count // 3)
            pid = broker_pid(one.store)
            if pid is None:
                raise BenchError(f"no broker runs on {one.store}")
            os.kill(pid, signal.SIGKILL)
            return time.monotonic()

        killing = pool.submit(kill)
        run_alone(send, one.url, 0, count)
        killed_at = killing.result()
        with watching(one.url) as watch:
            watch.wait_empty()
        runs = [run for run in one.runs() if run[0] >= 0]
    times = [killed_at, *sorted(at for _, at in runs if at > killed_at)]
    if len(times) == 1:
        raise BenchError("all tasks had run when the broker was killed")
    ran = Counter(number for number, _ in runs)
    results.add("gap.time", OURS, max(b - a for a, b in pairwise(times)))
    results.add("gap.lost", OURS, count - len(ran))
    results.add("gap.twice", OURS, sum(times > 1 for times in ran.values()))


def idle(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """The commits of a store whose worker sends heartbeats and nothing else."""
    arguments = ("--pool=prefork", "--concurrency=2", *EVENTS)
    with bench("idle", folder, *arguments) as one, watching(one.url) as watch, hearing(one.url) as beats:
        watch.wait_empty()
        wait_until(lambda: len(beats) >= 3, "three heartbeats", seconds=60.0)
        first, began, heard = watch.report()["commits"], time.monotonic(), len(beats)
        time.sleep(IDLE_SECONDS)
        last, ended, heard = watch.report()["commits"], time.monotonic(), len(beats) - heard
    if heard < IDLE_SECONDS / 4:
        raise BenchError(f"only {heard} heartbeats in {IDLE_SECONDS:g} s")
    results.add("idle.commits", OURS, (last - first) * 60 / (ended - began))
    results.remarks.append(f"The idle worker sent {heard} heartbeats in {ended - began:.0f} s.")
    step("an idle worker")


MEASURES: dict[str, Callable[[Sizes, Results, Path, Callable[[str], None]], None]] = {
    "eta": eta,
    "gap": gap,
    "idle": idle,
}


def steps(name: str, sizes: Sizes) -> int:
    """How often a measure calls back."""
    return sizes.rounds if name == "gap" else 1


def main(url: str, ledger: str, *arguments: str) -> None:
    make_app(url, ledger).worker_main(["worker", "--loglevel=WARNING", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
