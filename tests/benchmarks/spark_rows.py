"""A frame of a million rows as tasks, and the store read back as a frame, on two cores (ours only).

What it is compared with, ``apply_async`` by two processes, is measured on a slice of the rows. One job of another size
is measured with memory by the first command, and from the frame to the results of its tasks by the second one::

    python -m tests.benchmarks.spark_rows 10000000 --partitions 4 --consume 200000
    python -m tests.benchmarks.spark_rows 1000000 --work
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from .clients import Timing
from .peers import Peer, our_broker, server_pid
from .processes import (
    BenchError,
    Waiter,
    cpu_seconds,
    memory_mb,
    run_alone,
    run_together,
    tree_cpu_seconds,
    tree_of,
    wait_at_rest,
)
from .results import Results
from .targets import OURS, TWO
from .workloads import Sizes, rate

TASK = "bench.row"
SENDERS = 2
WARM_UP = 20_000
PADDING = "x" * 180
"""With the other arguments, about 300 bytes of JSON."""

_ROUNDS = 3
_SLICE = 2000
"""The rows that each of the two processes sends beside one job."""
_JOB_SECONDS = 7200.0


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
@contextmanager
def session_of(scratch: Path) -> Iterator[Any]:
    """Start a session with two cores, and stop it on the way out."""
    from ..support.spark import new_session

    session = new_session(scratch, "local[2]")
    try:
        yield session
    finally:
        session.stop()


def frame(session: Any, rows: int, partitions: int = 4) -> Any:
    """The rows, in a number of partitions."""
    from pyspark.sql import functions as F

    number = F.col("id")
    return session.range(0, rows, numPartitions=partitions).select(
        number,
        F.format_string("customer-%08d", number % 9973).alias("customer"),
        (number * 0.25).alias("amount"),
        (number % 3 == 0).alias("active"),
        F.lit(PADDING).alias("note"),
        F.concat(F.lit("order/"), number.cast("string"), F.lit("/2026-11-21")).alias("reference"),
    )


def varied(rows: Any) -> Any:
    """The rows with a note of as many hexadecimal digits, which compress to half of their bytes."""
    from pyspark.sql import functions as F

    digits = F.concat(*(F.sha2(F.concat("reference", F.lit(str(part))), 256) for part in range(3)))
    return rows.withColumn("note", F.substring(digits, 1, len(PADDING)))


def wait_routed(job: Any, queue: str = "rows") -> Any:
    """The state of a job whose rows are all in their queue."""
    state = job.wait_routed(3600)
    if state.queues[queue].routed != job.rows:
        raise BenchError(f"not all of the {job.rows} rows came into the queue")
    return state


def spark(barrier: Waiter, peer: Peer, home: Path, rows: int) -> dict[str, float]:
    """One round: rows written a second, staged bytes a row, µs a row read, and reads of a part against all."""
    from kombu_opendata.spark import read_table, submit_tasks

    url = peer.url
    with tempfile.TemporaryDirectory() as scratch, session_of(Path(scratch)) as session:
        warm_up = submit_tasks(varied(frame(session, WARM_UP)), TASK, broker_url=url, queue="warm-up")
        warm_up_bytes = wait_routed(warm_up, "warm-up").bytes
        start = time.monotonic()
        job = submit_tasks(frame(session, rows), TASK, broker_url=url, queue="rows")
        found = {"write": rows / (time.monotonic() - start), "bytes": warm_up_bytes / WARM_UP}
        wait_routed(job)
        wait_at_rest(server_pid(peer))
        first = job.first_message_id

        def seconds(**how: Any) -> float:
            start = time.monotonic()
            read_table(session, str(home / "store"), "messages", **how).write.format("noop").mode("append").save()
            return time.monotonic() - start

        seconds(last_id=first)  # Spark's Python processes start
        whole = min(seconds(), seconds())
        found["read"] = whole / (rows + WARM_UP) * 1e6
        found["read_columns"] = seconds(columns=["message_id", "task"]) / whole
        found["read_id"] = seconds(first_id=first, last_id=first) / whole
        found["read_partitions"] = seconds(partitions=8) / seconds(partitions=2)
        return found


# ---------------------------------------------------------------------- one job, with memory
def memory_of_driver() -> dict[str, float]:
    """The resident MB of the driver's Python, and of its JVM, whose heap grows up to its limit before it is freed."""
    names = {pid: Path(f"/proc/{pid}/comm") for pid in tree_of(os.getpid())[1:]}
    java = [pid for pid, name in names.items() if name.exists() and name.read_text() == "java\n"]
    return {"driver": memory_mb(os.getpid()), "JVM": sum(map(memory_mb, java))}


def one_job(
    _barrier: Waiter, peer: Peer, rows: int, partitions: int, consume: int, is_varied: bool
) -> dict[str, float]:
    """The seconds, bytes a row and growth in MB of one job, and how fast some of its messages are handled."""
    from kombu_opendata.protocol.messages import Consume
    from kombu_opendata.spark import submit_tasks

    from ..support.batches import Sink

    url = peer.url
    with tempfile.TemporaryDirectory() as scratch, session_of(Path(scratch)) as session:
        submit_tasks(frame(session, WARM_UP), TASK, broker_url=url, queue="warm-up").wait_routed(60)
        broker = server_pid(peer)
        before, ours = memory_mb(broker), memory_of_driver()
        cpu, cpu_before = cpu_seconds(broker), tree_cpu_seconds(os.getpid())
        start = time.monotonic()
        data = frame(session, rows, partitions)
        job = submit_tasks(varied(data) if is_varied else data, TASK, broker_url=url, queue="rows")
        written = time.monotonic()
        routed_job = wait_routed(job)
        routed = time.monotonic()
        found = {
            "write (s)": written - start,
            "route (s)": routed - written,
            "Spark CPU (µs a row)": (tree_cpu_seconds(os.getpid()) - cpu_before) / rows * 1e6,
            "broker CPU (µs a row)": (cpu_seconds(broker) - cpu) / rows * 1e6,
            "staged (bytes a row)": routed_job.bytes / rows,
            "broker grew (MB)": memory_mb(broker, "VmHWM") - before,
        }
        found |= {f"{name} grew (MB)": mb - ours[name] for name, mb in memory_of_driver().items()}
        if consume:
            sink = Sink(url)
            sink.connection.consume(Consume(0, 1, "sink", "rows", False, False, {}))
            start, cpu = time.monotonic(), cpu_seconds(broker)
            sink.take(consume, 600)
            found["consume (messages/s)"] = sink.got.total() / (time.monotonic() - start)
            found["broker CPU (µs a message)"] = (cpu_seconds(broker) - cpu) / sink.got.total() * 1e6
            sink.close()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one job of Spark.")
    parser.add_argument("rows", type=int)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--consume", type=int, default=0, help="messages to consume and acknowledge afterwards")
    parser.add_argument("--varied", action="store_true", help="rows that compress less")
    parser.add_argument("--dir", type=Path, help="where the store is, by default in the temporary folder")
    given = parser.parse_args()
    arguments = given.rows, given.partitions, given.consume, given.varied
    with tempfile.TemporaryDirectory(dir=given.dir) as folder, our_broker(Path(folder) / "spark") as peer:
        sent = rate(*run_together(send, [(peer.url, _SLICE)] * SENDERS))
        found = run_together(one_job, [(peer, *arguments)], deadline_seconds=_JOB_SECONDS)[0]
        found |= {"apply_async (tasks/s)": sent, "write, over apply_async": given.rows / found["write (s)"] / sent}
        for name, value in found.items():
            print(f"{name:26}{value:12,.1f}")


if __name__ == "__main__":
    main()
