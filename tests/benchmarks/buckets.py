"""The cost of durability: a broker with and without fsync, and one on an S3-compatible server (ours only).

A proxy before the server makes each request take a given time, and requests run side by side. One producer waits for
each confirmation, or 64 with a connection each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.messages import Consume, DeclareQueue, Outcome, Publish, Qos
from kombu_opendata.url import parse

from ..support.processes import children
from ..support.s3 import BUCKET, S3, s3_server
from ..support.served import ServedBroker
from . import clients
from .peers import broker_with
from .processes import Waiter, run_alone, run_together
from .results import Results
from .targets import ONE, OURS
from .workloads import PUBLISHERS, Sizes, publish_together, rate

DELAYS_MS, S3_DELAYS_MS = (5, 50, 500), (5, 20, 50)
PRODUCERS = 64
_PROCESSES = 4
_SECONDS = {5: 5.0, 50: 8.0, 500: 12.0}
_PREFETCH = 100
_MESSAGES = 5_000
BODY = bytes(200)
CONSUME = Consume(0, 1, "tag", "q", False, False, {})
Step = Callable[[str], None]


def measure(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure publishes for each delay, and consuming at 50 ms."""
    for delay_ms in DELAYS_MS:
        with served(folder / f"bucket-{delay_ms}") as (s3, url):
            s3.proxy.delay_seconds = delay_ms / 1000
            since = len(s3.proxy.log)
            alone = run_alone(publish, url, 1, _SECONDS[delay_ms])
            written = median(request.seconds for request in s3.proxy.log[since:] if request.is_commit)
            results.add(f"buckets.publish{delay_ms}", OURS, median(alone) / written)
            results.remarks.append(
                f"Bucket, {delay_ms} ms a request: a write took {1000 * written:.1f} ms in proxy and server, "
                f"and a publish {1000 * median(alone):.1f} ms (medians)."
            )
            results.add(f"buckets.many{delay_ms}", ONE, len(alone) / _SECONDS[delay_ms])
            arguments = [(url, PRODUCERS // _PROCESSES, _SECONDS[delay_ms])] * _PROCESSES
            together = run_together(publish, arguments)
            results.add(f"buckets.many{delay_ms}", OURS, sum(map(len, together)) / _SECONDS[delay_ms])
        step(f"bucket, {delay_ms} ms a request")
    with served(folder / "bucket-consume") as (s3, url):
        run_alone(fill, url, _MESSAGES)
        s3.proxy.delay_seconds = 0.05
        since = len(s3.proxy.log)
        seconds = run_alone(consume, url, _MESSAGES)
        counts = s3.proxy.counts(since)
        results.add("buckets.consume", OURS, _MESSAGES / seconds)
        paid = sum(count for name, count in counts.items() if name.startswith("PUT") or name == "GET list")
        results.add("buckets.puts", OURS, 1000 * paid / _MESSAGES)
    step("consuming from a bucket")


def measure_s3(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure rates for each delay of a request."""
    seconds, messages = sizes.s3_seconds, sizes.publish
    for delay_ms in S3_DELAYS_MS:
        with served(folder / f"s3-{delay_ms}") as (s3, url):
            s3.proxy.delay_seconds = delay_ms / 1000
            for key, producers in (("one", 1), ("eight", PUBLISHERS)):
                results.add(f"s3.{key}{delay_ms}", OURS, len(run_alone(publish, url, producers, seconds)) / seconds)
        with served(folder / f"s3-{delay_ms}-consume") as (s3, url):
            run_alone(fill, url, messages)
            s3.proxy.delay_seconds = delay_ms / 1000
            results.add(f"s3.consume{delay_ms}", OURS, messages / run_alone(consume, url, messages))
        step(f"S3, {delay_ms} ms a request")


def measure_sync(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure publishes with fsync and without."""
    with broker_with(folder / "sync-on") as on, broker_with(folder / "sync-off", "--no-sync") as off:
        turns = [("on", on), ("off", off)]
        for _, peer in turns:
            run_alone(clients.declare, peer, "bench-sync")
        for _ in range(sizes.rounds):
            for key, peer in turns:
                alone = run_alone(clients.publish, peer, "bench-sync", sizes.publish)
                results.add(f"sync.{key}", OURS, rate(alone))
                results.add(f"sync.{key}8", OURS, rate(*publish_together(peer, "bench-sync", sizes.publish_each)))
                step(f"publishes, fsync {key}")
            turns.reverse()


@contextmanager
def served(folder: Path) -> Iterator[tuple[S3, str]]:
    """Give a server with a new bucket, and the URL of a broker on it."""
    folder.mkdir()
    with children() as processes, s3_server(processes, folder) as s3:
        broker = ServedBroker(folder, "--store", f"s3://{BUCKET}/bench", "--listen", "tcp:127.0.0.1:0")
        processes.add(broker)
        yield s3, f"opendata://127.0.0.1:{broker.port}"
        s3.proxy.delay_seconds = 0
        broker.terminate()


# ------------------------------------------------------------ the clients
def publish(barrier: Waiter, url: str, producers: int, seconds: float) -> list[float]:
    """Publish one by one from some threads; return the seconds of each publish."""
    with ExitStack() as stack:
        connections = [connected(url, stack) for _ in range(producers)]
        pool = stack.enter_context(ThreadPoolExecutor(producers))
        barrier.wait()
        until = time.monotonic() + seconds
        found = pool.map(lambda connection: _publish_until(connection, until), connections)
        return [one for taken in found for one in taken]


def connected(url: str, stack: ExitStack) -> BrokerConnection:
    connection = BrokerConnection(parse(url), Options())
    connection.connect()
    stack.callback(connection.close)
    connection.call(DeclareQueue(0, "q", True, False, False, {}, False))
    return connection


def _publish_until(connection: BrokerConnection, until: float) -> list[float]:
    taken = []
    while (began := time.monotonic()) < until:
        connection.io.publish(Publish(0, 0, "", "q", BODY, {}, 0, 1))
        taken.append(time.monotonic() - began)
    return taken


def fill(barrier: Waiter, url: str, messages: int) -> None:
    """Put messages into the queue."""
    with ExitStack() as stack:
        connection = connected(url, stack)
        failures: list[Any] = []
        for _ in range(messages):
            connection.pipeline.publish(Publish(0, 0, "", "q", BODY, {}, 0, 1), failures)
        connection.pipeline.flush()


def consume(barrier: Waiter, url: str, messages: int) -> float:
    """Consume and acknowledge messages one by one; return the seconds."""
    with ExitStack() as stack:
        connection = connected(url, stack)
        connection.call(Qos(0, 1, _PREFETCH))
        began, done = time.monotonic(), 0
        connection.consume(CONSUME)
        while done < messages:
            done += settle_arrived(connection, 60)
        return time.monotonic() - began


def settle_arrived(connection: BrokerConnection, seconds: float) -> int:
    """Wait for a delivery, acknowledge all that have arrived, one by one, and return their number."""
    with suppress(TimeoutError):
        if not connection.events:
            connection.drain(seconds)
    count = 0
    while connection.events:
        delivery: Any = connection.events.popleft()
        connection.settle(1, Outcome.ACK, [delivery.lease])
        count += 1
    return count
