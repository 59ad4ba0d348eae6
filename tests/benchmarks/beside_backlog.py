"""Publish and consume beside a million waiting messages, while these are indexed and compacted and at rest.

The messages that wait are a staged job, or were published. Two brokers of ours, one with a backlog and one without,
take turns, so other work on the machine slows both. A *phase* is the time right after the messages came into their
queue, or rest. In each phase two processes publish to a queue, and a third consumes from it: the queue with the
messages that wait, and an empty one of the same broker. RabbitMQ, with as many messages, takes part at rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from kombu_opendata import QueueClient
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.staging.batch_writer import BatchWriter

from . import clients
from .clients import Timing
from .peers import Peer, our_broker, server_pid, started
from .processes import Waiter, run_alone, run_together, thread_seconds, wait_at_rest, wait_until
from .results import Results
from .targets import EMPTY, OURS, RABBITMQ
from .workloads import Sizes, publish_together, rate, unconfirmed

BACKLOG, OTHER = "backlog", "other"
GROUPS = ("loop", "slatedb", "others")
PUBLISHERS = 2
_BATCH_ROWS = 50_000
_REST_SECONDS = 1800.0
Step = Callable[[str], None]


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


FILLS = {"staged": stage, "published": publish_backlog}


def measure(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure both kinds of backlog, each in a new store."""
    with ExitStack() as stack:
        rabbitmq = started(RABBITMQ, folder / "beside-rabbitmq", stack)
        if isinstance(rabbitmq, str):
            results.remarks.append(f"Beside a backlog: no RabbitMQ: {rabbitmq}")
        else:
            run_alone(clients.declare, rabbitmq, BACKLOG)
            publish_backlog(rabbitmq, sizes.peers_backlog)
            wait_at_rest(server_pid(rabbitmq), seconds=_REST_SECONDS)
        for kind, fill in FILLS.items():
            with ExitStack() as brokers:
                empty, full = (brokers.enter_context(our_broker(folder / f"{kind}-{name}")) for name in (EMPTY, OURS))
                for peer in (empty, full):
                    run_alone(clients.declare, peer, BACKLOG, OTHER)
                    # without a client the broker would end
                    brokers.enter_context(QueueClient(peer.url, name="keeper")).status()
                filled = fill(full, sizes.peers_backlog)
                series = {EMPTY: empty, OURS: full}
                for number in range(1, sizes.rounds + 1):
                    _round(f"beside.{kind}_busy", series, sizes, results)
                    step(f"beside {kind} messages, busy, round {number}")
                began = time.monotonic()
                wait_at_rest(server_pid(full), seconds=_REST_SECONDS)
                results.remarks.append(
                    f"Beside a backlog: {kind} messages were in their queue after {filled:.0f} s, and the broker was "
                    f"at rest {time.monotonic() - began:.0f} s after the last sample beside its work."
                )
                for number in range(1, sizes.rounds + 1):
                    _round(f"beside.{kind}_rest", series, sizes, results)
                    if not isinstance(rabbitmq, str):
                        _add(f"beside.{kind}_rest", RABBITMQ, rabbitmq, BACKLOG, sizes, results)
                    step(f"beside {kind} messages, at rest, round {number}")


def _round(key: str, series: dict[str, Peer], sizes: Sizes, results: Results) -> None:
    for queue in (BACKLOG, OTHER):
        for name, peer in series.items():
            _add(key, name, peer, queue, sizes, results)


def _add(key: str, series: str, peer: Peer, queue: str, sizes: Sizes, results: Results) -> None:
    """Publish and consume, so that the queue keeps its length."""
    count = 6 * sizes.backlog_sample_each
    for action, function, processes in (("publish", clients.publish, PUBLISHERS), ("consume", clients.consume, 1)):
        results.add(f"{key}_{queue}_{action}", series, sample(peer, function, queue, count, processes).rate)
