"""Publish and consume beside staged messages: while these are indexed and compacted, at rest, and without any.

All ratios come from one run on one broker (ours only)::

    python -m tests.benchmarks.staged_backlog 200000

A *phase* is the empty queues, the time right after the staged rows came into their queue, or rest. In each phase two
processes publish to a queue, and a third consumes from it: ``backlog`` is the queue with the staged rows, ``other`` an
empty one. The broker's CPU is read by groups of its threads, before the first message and after the last one, so the
columns show whether its loop, SlateDB or others take the time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from kombu_opendata import QueueClient
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.staging.batch_writer import BatchWriter

from ..support.batches import envelope, headers
from . import clients
from .clients import Timing
from .peers import Peer, our_broker, server_pid
from .processes import Waiter, run_alone, run_together, thread_seconds, wait_at_rest
from .workloads import rate

BACKLOG, OTHER = "backlog", "other"
EMPTY, BUSY, REST = "empty", "busy", "at rest"
GROUPS = ("loop", "slatedb", "others")
PUBLISHERS = 2
_BATCH_ROWS = 50_000


class Sample(NamedTuple):
    """Messages a second, and the broker's CPU time per message in µs by group of threads."""

    rate: float
    cpu: dict[str, float]


class _Start:
    """A barrier that reads the broker's CPU when all processes are ready."""

    def __init__(self, barrier: Waiter, pid: int) -> None:
        self._barrier, self._pid = barrier, pid
        self.seconds = dict[str, float]()

    def wait(self) -> None:
        self._barrier.wait()
        self.seconds = thread_seconds(self._pid)


def _spend(
    barrier: Waiter, peer: Peer, function: Callable[..., Timing], name: str, count: int
) -> tuple[Timing, dict[str, float], dict[str, float]]:
    pid = server_pid(peer)
    start = _Start(barrier, pid)
    timing = function(start, peer, name, count)
    return timing, start.seconds, thread_seconds(pid)


def sample(peer: Peer, function: Callable[..., Timing], name: str, count: int, processes: int = 1) -> Sample:
    """Run a client's function in one or more processes."""
    spent = run_together(_spend, [(peer, function, name, count // processes)] * processes)
    timings = [timing for timing, _before, _after in spent]
    messages = sum(timing.messages for timing in timings)
    before = min((before for _timing, before, _after in spent), key=lambda seconds: sum(seconds.values()))
    after = max((after for _timing, _before, after in spent), key=lambda seconds: sum(seconds.values()))
    return Sample(rate(*timings), {name: (after[name] - before[name]) / messages * 1e6 for name in GROUPS})


def stage(url: str, rows: int) -> float:
    """Commit a job of rows for the queue with the backlog; return the seconds until all were routed."""
    start = time.monotonic()
    with StagingClient(url) as staging:
        target, job_id = staging.staging_target(), f"job-{uuid4().hex}"
        batches = []
        for partition, first in enumerate(range(0, rows, _BATCH_ROWS)):
            writer = BatchWriter(target, job_id, partition, 0)
            for _ in range(min(_BATCH_ROWS, rows - first)):
                about = {"task": "bench.add", "id": str(uuid4())}
                body = b'[[2, 2], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
                writer.add(envelope(body, "", BACKLOG, about), headers(BACKLOG, **about), routing_key=BACKLOG)
            batches.append(writer.close())
        start = time.monotonic()
        staging.commit_job(job_id, batches)
    with QueueClient(url) as client:
        client.wait_job(job_id, 600, until=lambda job: job.state != "routing")
    return time.monotonic() - start


class Run:
    """The samples of a run by phase and row, and the work of the broker between the phases."""

    def __init__(self, peer: Peer, count: int) -> None:
        self._peer, self._count = peer, count
        self.samples: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))

    def measure(self, phase: str) -> None:
        """Add one sample of each row; the queues keep their lengths, but for staged rows that are consumed."""
        for name in (BACKLOG, OTHER):
            published = sample(self._peer, clients.publish, name, self._count, PUBLISHERS)
            self.samples[f"{name}: publish"][phase].append(published)
            self.samples[f"{name}: consume"][phase].append(sample(self._peer, clients.consume, name, self._count))

    def show(self) -> None:
        for row, phases in self.samples.items():
            empty = _median(phases[EMPTY])
            for phase, samples in phases.items():
                median = _median(samples)
                cpu = "  ".join(f"{name} {median.cpu[name]:6.1f}" for name in GROUPS)
                total, total_empty = sum(median.cpu.values()), sum(empty.cpu.values())
                print(
                    f"{row:18} {phase:8} {median.rate:9,.0f}/s  {median.rate / empty.rate:5.2f} × empty"
                    f"   CPU (µs): {cpu}  {total / total_empty:5.2f} × empty"
                )


def _median(samples: list[Sample]) -> Sample:
    cpu = {name: statistics.median(each.cpu[name] for each in samples) for name in GROUPS}
    return Sample(statistics.median(each.rate for each in samples), cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure publish and consume beside staged messages.")
    parser.add_argument("rows", type=int)
    parser.add_argument("--messages", type=int, default=2000, help="messages of each sample")
    parser.add_argument("--rounds", type=int, default=3, help="samples of each row in each phase")
    parser.add_argument("--dir", type=Path, help="where the store is, by default in the temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder, our_broker(Path(folder) / "staged") as peer:
        run_alone(clients.declare, peer, BACKLOG, OTHER)
        with QueueClient(peer.url, name="keeper") as keeper:  # without a client the broker would end
            keeper.status()
            run, pid = Run(peer, given.messages), server_pid(peer)
            for _ in range(given.rounds):
                run.measure(EMPTY)
            before, began = thread_seconds(pid), time.monotonic()
            print(f"routed in {stage(peer.url, given.rows):.1f} s")
            _print_work("routing", before, thread_seconds(pid), began)
            for _ in range(given.rounds):
                run.measure(BUSY)
            before, began = thread_seconds(pid), time.monotonic()
            wait_at_rest(pid, seconds=1800.0)
            _print_work("the rest of the background work", before, thread_seconds(pid), began)
            for _ in range(given.rounds):
                run.measure(REST)
            run.show()


def _print_work(name: str, before: dict[str, float], after: dict[str, float], began: float) -> None:
    cpu = ", ".join(f"{group} {after[group] - before[group]:.2f} s" for group in GROUPS)
    print(f"{name}: CPU of {cpu} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
