"""The requests of a broker to its bucket, and their prices: ``python -m tests.benchmarks.bucket_requests``.

The numbers are from the S3 server's own log. Each request takes 20 ms, as in a cloud's own region.
"""

from __future__ import annotations

import dataclasses
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol.messages import Publish, Qos
from kombu_opendata.storage.engine_settings import EngineSettings

from ..support.bucket_broker import bucket_broker
from ..support.processes import children
from ..support.s3 import S3, s3_server
from .buckets import BODY, CONSUME, connected, settle_arrived

DELAY_SECONDS = 0.02
#: list prices of S3 Standard in us-east-1, dollars for each 1,000 requests; deletions are free
WRITE_DOLLARS, READ_DOLLARS = 0.005, 0.0004
MONTH_HOURS = 730
_PRODUCERS = 4


class Load(NamedTuple):
    """Messages that are published, delivered and acknowledged, one by one; a rate of 0 means as fast as possible."""

    name: str
    rate: float
    seconds: float


LOADS = (Load("1 message a second", 1, 180), Load("100 messages a second", 100, 90), Load("as fast as it can", 0, 15))


def row(s3: S3, name: str, load: Callable[[], int]) -> str:
    """Run a load, count the requests that the server gets during it, and return a row of the table."""
    since, began = len(s3.log()), time.monotonic()
    messages = load()
    hours = (time.monotonic() - began) / 3600
    kinds: Counter[str] = Counter()
    for method, path in s3.log()[since:]:
        is_deletion = method == "DELETE" or (method == "POST" and path.partition("?")[2].startswith("delete"))
        is_write = method in ("PUT", "POST") or "list-type" in path
        kinds["free" if is_deletion else "writes" if is_write else "reads"] += 1
    writes, reads = kinds["writes"], kinds["reads"]
    dollars = (WRITE_DOLLARS * writes + READ_DOLLARS * reads) / 1000
    each = f"{1000 * (writes + reads) / messages:,.0f}" if messages else "–"
    of_million = f"${1e6 * dollars / messages:,.2f}" if messages else "–"
    cells = (name, f"{writes / hours:,.0f}", f"{reads / hours:,.0f}", each, of_million)
    return f"| {' | '.join(cells)} | ${dollars / hours * MONTH_HOURS:,.2f} |"


def run_load(url: str, load: Load) -> int:
    """Publish at the rate, consume and acknowledge; return the number of messages."""
    producers = 1 if load.rate == 1 else _PRODUCERS
    over, sent = threading.Event(), list[int]()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(producers + 1))
        for connection in [connected(url, stack) for _ in range(producers)]:
            pool.submit(_produce, connection, load.rate / producers, over, sent)
        consuming = pool.submit(_consume, connected(url, stack), sent, over)
        time.sleep(load.seconds)
        over.set()
        consuming.result()
    return len(sent)


def _produce(connection: BrokerConnection, rate: float, over: threading.Event, sent: list[int]) -> None:
    failures: list[Any] = []
    due = time.monotonic()
    while not over.wait(max(0.0, due - time.monotonic())):
        if rate:
            connection.io.publish(Publish(0, 0, "", "q", BODY, {}, 0, 1))
            due += 1 / rate
        else:
            connection.pipeline.publish(Publish(0, 0, "", "q", BODY, {}, 0, 1), failures)
        sent.append(1)
    connection.pipeline.flush()


def _consume(connection: BrokerConnection, sent: list[int], over: threading.Event) -> None:
    connection.call(Qos(0, 1, 100))
    connection.consume(CONSUME)
    count = 0
    while not over.is_set() or count < len(sent):
        count += settle_arrived(connection, 0.5)


def _rest(seconds: float) -> int:
    time.sleep(seconds)
    return 0


@click.command()
@click.option("--quick", is_flag=True, help="Use short loads, to check that it works.")
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
            time.sleep(15 if quick else 60)  # until it has noticed that no client writes
            print(row(s3, "idle for five minutes", partial(_rest, 10 if quick else 240)), flush=True)
        for load in loads:
            with bucket_broker(f"load{load.rate}", usual) as (_server, port):
                url = f"opendata://127.0.0.1:{port}"
                run_load(url, load._replace(seconds=2))
                print(row(s3, load.name, partial(run_load, url, load)), flush=True)


if __name__ == "__main__":
    main()
