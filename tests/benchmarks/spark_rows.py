"""A frame of a million rows as tasks, and the store read back as a frame, on two cores (ours only).

What it is compared with, ``apply_async`` by two processes, is measured on a slice of the rows.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery

from .clients import Timing
from .peers import Peer, our_broker, server_pid
from .processes import BenchError, Waiter, run_alone, run_together, wait_at_rest
from .results import Results
from .targets import OURS, TWO
from .workloads import Sizes, rate

TASK = "bench.row"
SENDERS = 2
WARM_UP = 20_000
PADDING = "x" * 180
"""With the other arguments, about 300 bytes of JSON."""

_ROUNDS = 3


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measure everything about Spark."""
    texts = []
    for number in range(min(sizes.rounds, _ROUNDS)):
        home = folder / f"spark{number}"
        with our_broker(home) as peer:
            found = run_alone(spark, peer, home, sizes.spark)
            for key, value in found.items():
                results.add(f"spark.{key}", OURS, value)
            texts.append(f"{sizes.spark / found['write']:.1f} s")
            step("Spark")
        with our_broker(folder / f"spark{number}-peer") as peer:
            results.add("spark.write", TWO, rate(*run_together(send, [(peer.url, sizes.spark_slice)] * SENDERS)))
            step("apply_async by two processes")
    each = ", ".join(f"{value:,.0f}" for value in results.of("spark.write", TWO))
    results.remarks.append(
        f"Spark with local[2] wrote and committed {sizes.spark:,} rows in {', '.join(texts)}. Two processes sent only "
        f"{SENDERS * sizes.spark_slice:,} of them each round, at {each} tasks/s; that is not measured for all rows."
    )


# ---------------------------------------------------------------------- the peer
def row(number: int) -> dict[str, Any]:
    """The keyword arguments of a row, as the frame has them."""
    return {
        "id": number,
        "customer": f"customer-{number % 9973:08d}",
        "amount": number * 0.25,
        "active": number % 3 == 0,
        "note": PADDING,
        "reference": f"order/{number}/2026-11-21",
    }


def send(barrier: Waiter, url: str, count: int) -> Timing:
    """Send rows one by one, the first outside of what is measured: it opens the connection."""
    app = Celery("bench", broker=url, set_as_current=False)
    app.send_task(TASK, kwargs=row(0))
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    for number in range(count):
        app.send_task(TASK, kwargs=row(number))
    return Timing(count, start, time.monotonic(), time.process_time() - cpu)


# ---------------------------------------------------------------------- Spark
def frame(session: Any, rows: int) -> Any:
    """The rows, in four partitions."""
    from pyspark.sql import functions as F

    number = F.col("id")
    return session.range(0, rows, numPartitions=4).select(
        number,
        F.format_string("customer-%08d", number % 9973).alias("customer"),
        (number * 0.25).alias("amount"),
        (number % 3 == 0).alias("active"),
        F.lit(PADDING).alias("note"),
        F.concat(F.lit("order/"), number.cast("string"), F.lit("/2026-11-21")).alias("reference"),
    )


def spark(barrier: Waiter, peer: Peer, home: Path, rows: int) -> dict[str, float]:
    """One round: rows written a second, and µs a row read."""
    from kombu_opendata.spark import read_table, submit_tasks

    from ..support.spark import new_session

    url = peer.url
    with tempfile.TemporaryDirectory() as scratch:
        session = new_session(Path(scratch), "local[2]")
        try:
            submit_tasks(frame(session, WARM_UP), TASK, broker_url=url, queue="warm-up").wait_routed(60)
            start = time.monotonic()
            job = submit_tasks(frame(session, rows), TASK, broker_url=url, queue="rows")
            found = {"write": rows / (time.monotonic() - start)}
            if job.wait_routed(600).queues["rows"].routed != rows:
                raise BenchError(f"not all of the {rows} rows came into the queue")
            wait_at_rest(server_pid(peer))
            start = time.monotonic()
            frames = read_table(session, str(home / "store"), "messages")
            frames.write.format("noop").mode("overwrite").save()
            found["read"] = (time.monotonic() - start) / (rows + WARM_UP) * 1e6
            return found
        finally:
            session.stop()
