"""How many requests a broker makes to its bucket, and what they cost: ``python -m tests.benchmarks.bucket_requests``.

The numbers are from the S3 server's own log. Each request takes 20 ms, as in a cloud's own region.
"""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.messages import Consume, Outcome, Publish, Qos
from kombu_opendata.storage.engine_settings import EngineSettings

from ..support.bucket_broker import bucket_broker
from ..support.processes import children
from ..support.s3 import S3, s3_server
from .buckets import connected

DELAY_SECONDS = 0.02
#: list prices of S3 Standard in us-east-1, dollars for each 1,000 requests; deletions are free
WRITE_DOLLARS, READ_DOLLARS = 0.005, 0.0004
MONTH_HOURS = 730
_PRODUCERS = 4
_BODY = bytes(200)


class Load(NamedTuple):
    """Messages that are published, delivered and acknowledged, one by one; a rate of 0 means as fast as possible."""

    name: str
    rate: float
    seconds: float


LOADS = (Load("1 message a second", 1, 180), Load("100 messages a second", 100, 90), Load("as fast as it can", 0, 15))


class Counted(NamedTuple):
    """Requests by their price, and the messages and seconds to which they belong."""

    writes: int
    reads: int
    free: int
    messages: int
    seconds: float

    def row(self, name: str) -> str:
        """A row of the table."""
        hours = self.seconds / 3600
        dollars = (WRITE_DOLLARS * self.writes + READ_DOLLARS * self.reads) / 1000
        cells = [name, f"{self.writes / hours:,.0f}", f"{self.reads / hours:,.0f}"]
        each = f"{1000 * (self.writes + self.reads) / self.messages:,.0f}" if self.messages else "–"
        of_million = f"${1e6 * dollars / self.messages:,.2f}" if self.messages else "–"
        return "| " + " | ".join([*cells, each, of_million, f"${dollars / hours * MONTH_HOURS:,.2f}"]) + " |"


def count(s3: S3, load: Callable[[], int]) -> Counted:
    """Run a load and count the requests that the server saw meanwhile."""
    since, began = len(s3.log()), time.monotonic()
    messages = load()
    seconds = time.monotonic() - began
    kinds: Counter[str] = Counter()
    for method, path in s3.log()[since:]:
        is_deletion = method == "DELETE" or (method == "POST" and path.partition("?")[2].startswith("delete"))
        is_write = method in ("PUT", "POST") or "list-type" in path
        kinds["free" if is_deletion else "writes" if is_write else "reads"] += 1
    return Counted(kinds["writes"], kinds["reads"], kinds["free"], messages, seconds)


def run_load(url: str, load: Load) -> int:
    """Publish at the rate, consume and acknowledge; returns how many messages."""
    with ExitStack() as stack:
        over, done = threading.Event(), threading.Event()
        taken: list[int] = []
        producers = 1 if load.rate == 1 else _PRODUCERS
        connections = [connected(url, stack) for _ in range(producers)]
        consuming = connected(url, stack)
        threads = [
            threading.Thread(target=_produce, args=(one, load.rate / producers, over, taken)) for one in connections
        ]
        consumer = threading.Thread(target=_consume, args=(consuming, taken, over, done))
        for thread in (*threads, consumer):
            thread.start()
        time.sleep(load.seconds)
        over.set()
        for thread in threads:
            thread.join()
        consumer.join()
        return len(taken)


def _produce(connection: BrokerConnection, rate: float, over: threading.Event, taken: list[int]) -> None:
    failures: list[Any] = []
    due = time.monotonic()
    while not over.wait(max(0.0, due - time.monotonic())):
        if rate:
            connection.io.publish(Publish(0, 0, "", "q", _BODY, {}, 0, 1))
            due += 1 / rate
        else:
            connection.pipeline.publish(Publish(0, 0, "", "q", _BODY, {}, 0, 1), failures)
        taken.append(1)
    connection.pipeline.flush()


def _consume(connection: BrokerConnection, taken: list[int], over: threading.Event, done: threading.Event) -> None:
    connection.call(Qos(0, 1, 100))
    connection.consume(Consume(0, 1, "tag", "q", False, False, {}))
    count = 0
    while not over.is_set() or count < len(taken):
        try:
            if not connection.events:
                connection.drain(0.5)
        except TimeoutError:
            continue
        while connection.events:
            delivery: Any = connection.events.popleft()
            connection.settle(1, Outcome.ACK, [delivery[2:5]])
            count += 1


def _rest(seconds: float) -> int:
    time.sleep(seconds)
    return 0


@click.command()
@click.option("--quick", is_flag=True, help="Short loads: shows that it works.")
def main(quick: bool) -> None:
    """Count the requests to a bucket, and print a table in Markdown."""
    loads = [load._replace(seconds=8) for load in LOADS] if quick else LOADS
    heads = ("load", "writes and lists an hour", "reads an hour", "requests per 1,000 messages", "a million messages")
    print("| " + " | ".join([*heads, "a month"]) + " |")
    print("|" + 6 * "---|")
    with tempfile.TemporaryDirectory() as folder, children() as processes, s3_server(processes, Path(folder)) as s3:
        s3.proxy.delay_seconds = DELAY_SECONDS
        usual = EngineSettings()
        with bucket_broker("idle", dataclasses.replace(usual, idle_seconds=5)):
            time.sleep(15 if quick else 60)  # until it has noticed that nobody writes
            print(count(s3, partial(_rest, 10 if quick else 240)).row("idle for five minutes"), flush=True)
        for load in loads:
            with bucket_broker(f"load{load.rate}", usual) as (_server, port):
                url = f"opendata://127.0.0.1:{port}"
                run_load(url, load._replace(seconds=2))
                print(count(s3, partial(run_load, url, load)).row(load.name), flush=True)


if __name__ == "__main__":
    main()
