"""What it costs a Celery worker to report what became of its tasks (ours only).

Two workers take turns on one broker, each on a queue that was filled before: one reports, one has the transport option
``task_outcomes=False``. A stall of the machine is longer than the difference, so a run's rate is the median of those of
its parts, and CPU time is measured, too. As a program, ``python -m tests.benchmarks.outcomes URL LEDGER REPORTS
ARGUMENTS…`` is one of the workers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from celery import Celery

from .celery_rows import QUIET, make_app, watching
from .peers import Peer, broker_pid, our_broker
from .processes import BenchError, Waiter, cpu_seconds, run_together, server, wait_at_rest, wait_until
from .results import Results
from .targets import OURS, WITHOUT
from .workloads import PUBLISHERS, Sizes

POOLS = {"solo": ("--pool=solo",), "prefork": ("--pool=prefork", "--concurrency=2", "-O", "fair")}
#: tasks at the beginning and the end that are not measured: processes start and end there
WARM_UP_SHARE = 0.1
#: parts of a run
PARTS = 20


class Turn(NamedTuple):
    """One run of a worker; its name is that of its queue and its ledger."""

    pool: str
    series: str
    name: str


def steps(sizes: Sizes) -> int:
    """How often `measure` calls back."""
    return 2 * sizes.rounds * len(POOLS)


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures workers with and without outcomes."""
    home = folder / "outcomes"
    turns: list[Turn] = []
    for number in range(sizes.rounds):
        for pool in POOLS:
            order = (OURS, WITHOUT) if number % 2 == 0 else (WITHOUT, OURS)
            turns += [Turn(pool, series, f"{pool}-{series}-{number}") for series in order]
    each = 2 * sizes.tasks // PUBLISHERS
    with our_broker(home) as peer:
        queues = [turn.name for turn in turns]
        run_together(_send, [(peer.url, queues, number * each, each) for number in range(PUBLISHERS)])
        pid = broker_pid(home / "store")
        if pid is None:
            raise BenchError("the broker has ended")
        wait_at_rest(pid)
        for turn in turns:
            _run(turn, each * PUBLISHERS, results, peer, pid, home / turn.name)
            step(f"outcomes, {turn.name}")
    for pool in POOLS:
        cpu = [results.median(f"outcomes.{pool}worker", series) or 0.0 for series in (OURS, WITHOUT)]
        results.remarks.append(
            "CPU time of a {} worker per task: {:.1f} µs with outcomes, {:.1f} µs without.".format(pool, *cpu)
        )


def _send(barrier: Waiter, url: str, queues: list[str], first: int, count: int) -> None:
    """Sends numbered tasks to each of the queues."""
    app = Celery("bench", broker=url, set_as_current=False)
    barrier.wait()
    for queue in queues:
        for number in range(first, first + count):
            app.send_task("bench.mark", (number,), queue=queue)


def _run(turn: Turn, count: int, results: Results, peer: Peer, broker: int, ledger: Path) -> None:
    before = cpu_seconds(broker)
    options = (*POOLS[turn.pool], *QUIET, "-Q", turn.name)
    command = [sys.executable, "-m", __name__, peer.url, str(ledger), str(turn.series == OURS), *options]
    aside = int(count * WARM_UP_SHARE)
    with server(command, log=str(ledger.with_suffix(".log"))) as worker, watching(peer.url) as watch:

        def wait_lines(wanted: int) -> tuple[int, float]:
            """How many tasks have run, of so many at least, and the worker's CPU time."""
            what = f"{wanted} tasks of {turn.name}"
            wait_until(lambda: _lines(ledger) >= wanted or worker.poll() is not None, what, seconds=300.0)
            return _lines(ledger), _tree_cpu_seconds(worker.pid)

        (first, began), (last, ended), _ = (wait_lines(wanted) for wanted in (aside, count - aside, count))
        wait_until(lambda: _is_done(watch.report(), turn.name), "the end of the tasks", seconds=300.0)
        results.add(f"outcomes.{turn.pool}cpu", turn.series, 1e6 * (cpu_seconds(broker) - before) / count)
    times = sorted(float(line.split()[1]) for line in ledger.read_text().splitlines())
    if len(times) != count:
        raise BenchError(f"{len(times)} runs of {count} tasks; see the worker's log with --keep")
    each = (count - 2 * aside) // PARTS
    marks = times[aside : count - aside : each]
    results.add(f"outcomes.{turn.pool}", turn.series, median(each / (b - a) for a, b in pairwise(marks)))
    results.add(f"outcomes.{turn.pool}worker", turn.series, 1e6 * (ended - began) / (last - first))


def _is_done(report: dict[str, Any], queue: str) -> bool:
    figures = report["queues"][queue]
    return (figures["available"], figures["in_flight"]) == (0, 0)


def _tree_cpu_seconds(pid: int) -> float:
    """CPU time of a process and its children so far."""
    found = 0.0
    with suppress(FileNotFoundError, ProcessLookupError):  # it exits just now
        found = cpu_seconds(pid)
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += sum(_tree_cpu_seconds(int(child)) for child in children.read_text().split())
    return found


def _lines(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def main(url: str, ledger: str, reports: str, *arguments: str) -> None:
    app = make_app(url, ledger)
    app.conf.broker_transport_options = {"task_outcomes": reports == "True"}
    app.worker_main(["worker", "--loglevel=WARNING", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
