"""What it costs a Celery worker to report what became of its tasks (ours only).

Two workers on one broker have a queue each, which was filled before: one reports, one has the transport option
``task_outcomes=False``. A machine's pace changes by much more than the difference, within seconds. So both are started,
and take turns of a tenth of a second: the other one is stopped by a signal meanwhile. As a program, ``python -m
tests.benchmarks.outcomes URL LEDGER REPORTS ARGUMENTS…`` is one of the workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from celery import Celery

from .celery_rows import QUIET, make_app
from .peers import Peer, broker_pid, our_broker
from .processes import (
    BenchError,
    Waiter,
    cpu_seconds,
    run_together,
    server,
    tree_cpu_seconds,
    wait_at_rest,
    wait_until,
)
from .results import Results
from .targets import OURS, WITHOUT
from .workloads import PUBLISHERS, Sizes

POOLS = {"solo": ("--pool=solo",), "prefork": ("--pool=prefork", "--concurrency=2", "-O", "fair")}
_SERIES = (OURS, WITHOUT)
#: a turn, and how long a worker runs before its turn is measured
_TURN_SECONDS, _ROLL_SECONDS = 0.1, 0.02
#: tasks at the beginning and the end that are not measured: processes start and end there
_WARM_UP_SHARE = 0.05


class Runner:
    """One of the workers, which is stopped but for its turns."""

    def __init__(self, process: subprocess.Popen[bytes], series: str, home: Path, broker: int) -> None:
        self._process, self._ledger, self._broker = process, home / series, broker
        self.series = series

    def wait_lines(self, count: int) -> None:
        """Wait until so many tasks have run."""
        what = f"{count} tasks of {self._ledger.name}"
        wait_until(lambda: self.lines() >= count or self._process.poll() is not None, what, seconds=300.0)
        if self._process.poll() is not None:
            raise BenchError(f"the worker of {self._ledger} has ended; see its log with --keep")

    def lines(self) -> int:
        """How many tasks have run."""
        return self._ledger.read_bytes().count(b"\n") if self._ledger.exists() else 0

    def signal(self, number: int) -> None:
        """Stop the worker and its pool, or let them go on."""
        os.killpg(self._process.pid, number)

    def turn(self) -> list[float]:
        """Run for a moment; returns what that was: tasks, seconds, CPU seconds of the worker, and of the broker."""
        self.signal(signal.SIGCONT)
        time.sleep(_ROLL_SECONDS)
        before = self._look()
        time.sleep(_TURN_SECONDS)
        after = self._look()
        self.signal(signal.SIGSTOP)
        return [new - old for old, new in zip(before, after, strict=True)]

    def _look(self) -> tuple[float, ...]:
        lines, now = self.lines(), time.perf_counter()
        return lines, now, tree_cpu_seconds(self._process.pid), cpu_seconds(self._broker)


def steps(sizes: Sizes) -> int:
    """How often `measure` calls back."""
    return (1 + sizes.rounds) * len(POOLS)


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures workers with and without outcomes."""
    count = 4 * sizes.tasks * sizes.rounds // PUBLISHERS * PUBLISHERS
    for pool in POOLS:
        home = folder / f"outcomes-{pool}"
        with our_broker(home) as peer:
            run_together(_send, [(peer.url, count // PUBLISHERS)] * PUBLISHERS)
            pid = broker_pid(home / "store")
            if pid is None:
                raise BenchError("the broker has ended")
            wait_at_rest(pid)
            step(f"tasks for {pool} workers")
            with _worker(pool, OURS, peer, home) as first, _worker(pool, WITHOUT, peer, home) as second:
                runners = [
                    Runner(process, series, home, pid) for process, series in zip((first, second), _SERIES, strict=True)
                ]
                _take_turns(pool, runners, count, sizes.rounds, results, step)
        cpu = [results.median(f"outcomes.{pool}worker", series) or 0.0 for series in _SERIES]
        results.remarks.append(
            "CPU time of a {} worker per task: {:.1f} µs with outcomes, {:.1f} µs without.".format(pool, *cpu)
        )


def _send(barrier: Waiter, url: str, count: int) -> None:
    """Sends tasks to both queues."""
    app = Celery("bench", broker=url, set_as_current=False)
    barrier.wait()
    for number in range(count):
        for series in _SERIES:
            app.send_task("bench.mark", (number,), queue=series)


def _worker(pool: str, series: str, peer: Peer, home: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    options = (*POOLS[pool], *QUIET, "-Q", series, f"--hostname={series}@bench")
    command = [sys.executable, "-m", __name__, peer.url, str(home / series), str(series == OURS), *options]
    return server(command, log=str(home / f"{series}.log"))


def _take_turns(
    pool: str, runners: list[Runner], count: int, rounds: int, results: Results, step: Callable[[str], None]
) -> None:
    """Let the workers take turns, and add a sample of each for every round.

    The rounds take the turns one after another, so that each has its share of the machine's fast and slow times.
    """
    aside = int(count * _WARM_UP_SHARE)
    sums = [{runner.series: [0.0] * 4 for runner in runners} for _ in range(rounds)]
    turn = 0
    try:
        for runner in runners:
            runner.wait_lines(aside)
            runner.signal(signal.SIGSTOP)
        begin = max(runner.lines() for runner in runners)
        for number in range(rounds):
            until = begin + (count - aside - begin) * (number + 1) // rounds
            while max(runner.lines() for runner in runners) < until:
                of_round = sums[turn % rounds]
                for runner in runners:
                    known = of_round[runner.series]
                    of_round[runner.series] = [old + new for old, new in zip(known, runner.turn(), strict=True)]
                runners.reverse()
                turn += 1
            step(f"outcomes, {pool}")
    finally:
        for runner in runners:
            with suppress(ProcessLookupError):
                runner.signal(signal.SIGCONT)
    for of_round in sums:
        for series, of_series in of_round.items():
            _add(pool, series, of_series, results)


def _add(pool: str, series: str, sums: list[float], results: Results) -> None:
    tasks, seconds, worker, broker = sums
    results.add(f"outcomes.{pool}", series, tasks / seconds)
    results.add(f"outcomes.{pool}worker", series, 1e6 * worker / tasks)
    results.add(f"outcomes.{pool}cpu", series, 1e6 * broker / tasks)


def main(url: str, ledger: str, reports: str, *arguments: str) -> None:
    app = make_app(url, ledger)
    app.conf.broker_transport_options = {"task_outcomes": reports == "True"}
    app.worker_main(["worker", "--loglevel=WARNING", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
