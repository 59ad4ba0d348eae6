"""What it costs a Celery worker to report what became of its tasks (ours only).

Two workers take turns on one broker: one reports, one has the transport option ``task_outcomes=False``. As a program,
``python -m tests.benchmarks.outcomes URL LEDGER REPORTS ARGUMENTS…`` is one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from .celery_rows import QUIET, make_app, send, watching
from .peers import Peer, broker_pid, our_broker
from .processes import BenchError, cpu_seconds, run_together, server, wait_at_rest, wait_until
from .results import Results
from .targets import OURS, WITHOUT
from .workloads import PUBLISHERS, Sizes

POOLS = {"solo": ("--pool=solo",), "prefork": ("--pool=prefork", "--concurrency=2", "-O", "fair")}
#: tasks at the beginning and the end that are not measured: processes start and end there
WARM_UP_SHARE = 0.1


def steps(sizes: Sizes) -> int:
    """How often `measure` calls back."""
    return 2 * sizes.rounds * len(POOLS)


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures workers with and without outcomes."""
    home = folder / "outcomes"
    with our_broker(home) as peer:
        for pool in POOLS:
            turns = [OURS, WITHOUT]
            for number in range(sizes.rounds):
                for series in turns:
                    _round(pool, series, sizes.tasks, results, peer, home / f"{pool}-{series}-{number}")
                    step(f"outcomes, {pool}, round {number + 1}")
                turns.reverse()


def _round(pool: str, series: str, count: int, results: Results, peer: Peer, ledger: Path) -> None:
    each = count // PUBLISHERS
    run_together(send, [(peer.url, number * each, each) for number in range(PUBLISHERS)])
    count = each * PUBLISHERS
    pid = broker_pid(ledger.parent / "store")
    if pid is None:
        raise BenchError("the broker has ended")
    wait_at_rest(pid)
    before = cpu_seconds(pid)
    command = [sys.executable, "-m", __name__, peer.url, str(ledger), str(series == OURS), *POOLS[pool], *QUIET]
    with server(command, log=str(ledger.with_suffix(".log"))) as worker, watching(peer.url) as watch:
        wait_until(
            lambda: _lines(ledger) >= count or worker.poll() is not None, f"{count} tasks of {pool}", seconds=300.0
        )
        watch.wait_empty()
        results.add(f"outcomes.{pool}cpu", series, 1e6 * (cpu_seconds(pid) - before) / count)
    times = sorted(float(line.split()[1]) for line in ledger.read_text().splitlines())
    if len(times) != count:
        raise BenchError(f"{len(times)} runs of {count} tasks; see the worker's log with --keep")
    aside = int(count * WARM_UP_SHARE)
    results.add(f"outcomes.{pool}", series, (count - 2 * aside) / (times[count - aside - 1] - times[aside]))


def _lines(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def main(url: str, ledger: str, reports: str, *arguments: str) -> None:
    app = make_app(url, ledger)
    app.conf.broker_transport_options = {"task_outcomes": reports == "True"}
    app.worker_main(["worker", "--loglevel=WARNING", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
