"""Publish and consume beside waiting messages, while these are indexed and compacted and at rest, and without any.

All ratios come from one run, on two brokers of ours, one with a backlog and one without, which are sampled in turns. So
other work on the machine slows both::

    python -m tests.benchmarks.staged_backlog 200000
    python -m tests.benchmarks.staged_backlog 200000 --published --rabbitmq

The messages that wait are a staged job, or were published. A *phase* is the time right after they came into their
queue, or rest. In each phase two processes publish to a queue, and a third consumes from it: ``backlog`` is the queue
with the messages that wait, ``other`` an empty one. The broker's CPU is read by groups of its threads, before the first
message and after the last one, so the columns show whether its loop, SlateDB or others take the time. With
``--rabbitmq``, RabbitMQ gets as many messages by publishing, and takes turns with ours at rest.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from kombu_opendata import QueueClient
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.staging.batch_writer import BatchWriter

from . import clients
from .clients import Timing
from .peers import Peer, our_broker, server_pid, started
from .processes import BenchError, Waiter, run_alone, run_together, thread_seconds, wait_at_rest, wait_until
from .targets import RABBITMQ
from .workloads import publish_together, rate, unconfirmed

BACKLOG, OTHER = "backlog", "other"
BUSY, REST, _AGAINST_RABBITMQ = "busy", "at rest", "rabbitmq"
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


def stage(peer: Peer, rows: int) -> float:
    """Commit a job of rows for the queue with the backlog; return the seconds until all were routed."""
    from ..support.batches import envelope, headers  # not where tests of the page import this module

    with StagingClient(peer.url) as staging:
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
    with QueueClient(peer.url) as client:
        client.wait_job(job_id, 600, until=lambda job: job.state != "routing")
    return time.monotonic() - start


def publish_backlog(peer: Peer, count: int) -> float:
    """Publish messages to the queue with the backlog; return the seconds until the broker has all of them."""
    start = time.monotonic()
    publish_together(unconfirmed(peer), BACKLOG, count // PUBLISHERS, PUBLISHERS)
    wait_until(lambda: run_alone(clients.depth, peer, BACKLOG) >= count // PUBLISHERS * PUBLISHERS, "it", seconds=600.0)
    return time.monotonic() - start


class Pair(NamedTuple):
    """Two samples of a row, one after the other: of the empty store or RabbitMQ, and of the store with the backlog."""

    empty: Sample
    full: Sample


class Run:
    """The samples of a run by row and phase. The queues keep their lengths, but for staged rows that are consumed."""

    def __init__(self, empty: Peer, full: Peer, count: int) -> None:
        self._empty, self._full, self._count = empty, full, count
        self._pairs: dict[tuple[str, str], list[Pair]] = defaultdict(list)

    def measure(self, phase: str) -> None:
        """Add one sample of each row."""
        for name in (BACKLOG, OTHER):
            empty, full = (_publish_and_consume(peer, name, self._count) for peer in (self._empty, self._full))
            for number, action in enumerate(("publish", "consume")):
                self._pairs[f"{name}: {action}", phase].append(Pair(empty[number], full[number]))

    def measure_rabbitmq(self, rabbitmq: Peer) -> None:
        """Add one sample of each row, of RabbitMQ with a backlog and of ours."""
        peers = (
            _publish_and_consume(rabbitmq, BACKLOG, self._count),
            _publish_and_consume(self._full, BACKLOG, self._count),
        )
        for number, action in enumerate(("publish", "consume")):
            self._pairs[f"{BACKLOG}: {action}", _AGAINST_RABBITMQ].append(Pair(peers[0][number], peers[1][number]))

    def show(self) -> None:
        for (row, phase), pairs in self._pairs.items():
            cpu = {name: statistics.median(pair.full.cpu[name] for pair in pairs) for name in GROUPS}
            rates = statistics.median(pair.full.rate / pair.empty.rate for pair in pairs)
            text = f"{row:18} {phase:8} {statistics.median(pair.full.rate for pair in pairs):9,.0f}/s  {rates:5.2f} ×"
            text += f"   CPU (µs): {'  '.join(f'{name} {cpu[name]:6.1f}' for name in GROUPS)}"
            if phase != _AGAINST_RABBITMQ:
                ratios = [sum(pair.full.cpu.values()) / sum(pair.empty.cpu.values()) for pair in pairs]
                text += f"  {statistics.median(ratios):5.2f} ×"
            print(text)


def _publish_and_consume(peer: Peer, name: str, count: int) -> tuple[Sample, Sample]:
    return sample(peer, clients.publish, name, count, PUBLISHERS), sample(peer, clients.consume, name, count)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure publish and consume beside waiting messages.")
    parser.add_argument("rows", type=int)
    parser.add_argument(
        "--published", action="store_true", help="publish the messages that wait, instead of a staged job"
    )
    parser.add_argument("--rabbitmq", action="store_true", help="also compare with RabbitMQ, with as many messages")
    parser.add_argument("--messages", type=int, default=6000, help="messages of each sample")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each row in each phase")
    parser.add_argument("--dir", type=Path, help="where the stores are, by default in the temporary folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder, ExitStack() as stack:
        empty, full = (stack.enter_context(our_broker(Path(folder) / name)) for name in ("empty", "full"))
        for peer in (empty, full):
            run_alone(clients.declare, peer, BACKLOG, OTHER)
            # without a client the broker would end
            stack.enter_context(QueueClient(peer.url, name="keeper")).status()
        run, pid = Run(empty, full, given.messages), server_pid(full)
        before, began = thread_seconds(pid), time.monotonic()
        fill = publish_backlog if given.published else stage
        print(f"filled in {fill(full, given.rows):.1f} s", flush=True)
        _print_work("filling", before, thread_seconds(pid), began)
        before, began = thread_seconds(pid), time.monotonic()
        for _ in range(given.rounds):
            run.measure(BUSY)
        _print_work("the busy phase", before, thread_seconds(pid), began)
        before, began = thread_seconds(pid), time.monotonic()
        wait_at_rest(pid, seconds=1800.0)
        _print_work("the rest of the background work", before, thread_seconds(pid), began)
        for _ in range(given.rounds):
            run.measure(REST)
        if given.rabbitmq:
            _measure_rabbitmq(run, given.rows, given.rounds, Path(folder), stack)
        run.show()


def _measure_rabbitmq(run: Run, rows: int, rounds: int, folder: Path, stack: ExitStack) -> None:
    peer = started(RABBITMQ, folder / "rabbitmq", stack)
    if isinstance(peer, str):
        raise BenchError(f"no RabbitMQ: {peer}")
    run_alone(clients.declare, peer, BACKLOG)
    publish_backlog(peer, rows)
    wait_at_rest(server_pid(peer), seconds=1800.0)
    for _ in range(rounds):
        run.measure_rabbitmq(peer)


def _print_work(name: str, before: dict[str, float], after: dict[str, float], began: float) -> None:
    cpu = ", ".join(f"{group} {after[group] - before[group]:.2f} s" for group in GROUPS)
    print(f"{name}: CPU of {cpu} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
