"""One job of a million tasks from its frame to its history; then, beside it, one of ten million rows (ours only)."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..support.spark_round_trip import round_trip
from .peers import Peer, our_broker, server_pid
from .processes import Waiter, memory_mb, run_together, thread_seconds
from .results import Results
from .spark_rows import TASK, WARM_UP, frame, session_of, wait_routed
from .targets import OURS
from .workloads import Sizes

_DEADLINE_SECONDS = 3 * 3600.0
_PARTITIONS = 16


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measure both jobs once."""
    step(f"Spark: {sizes.spark_rows:,} rows, {sizes.spark_tasks:,} tasks")
    home = folder / "spark_job"
    with our_broker(home) as peer:
        arguments = peer, home, sizes.spark_rows, sizes.spark_tasks
        found, seconds = run_together(both_jobs, [arguments], deadline_seconds=_DEADLINE_SECONDS)[0]
    for key, value in found.items():
        results.add(f"spark_job.{key}", OURS, value)
    parts = ", ".join(f"{part} {value:.1f} s" for part, value in seconds.items())
    results.remarks.append(
        f"Spark with local[2]: {sizes.spark_rows:,} rows in one job; then {sizes.spark_tasks:,} tasks with two prefork "
        f"workers, of which 5 % raise, and some time out or are lost: {parts}."
    )


def both_jobs(
    _barrier: Waiter, peer: Peer, home: Path, rows: int, tasks: int
) -> tuple[dict[str, float], dict[str, float]]:
    """The numbers of the rows of the table, and the seconds of all parts."""
    with tempfile.TemporaryDirectory() as scratch, session_of(Path(scratch)) as session:
        trip = round_trip(
            session, peer.url, home / "store", Path(scratch), tasks, concurrency=1, timeout=_DEADLINE_SECONDS
        )
        print({part: round(value, 1) for part, value in trip.items()}, flush=True)
        found = {
            "work": tasks / (trip["write"] + trip["work"]),
            "results": tasks / trip["results"],
            "export": (tasks + tasks // 20) / trip["export"],
        }
        more, seconds = large_job(session, peer, rows)
    return found | more, trip | seconds


def large_job(session: Any, peer: Peer, rows: int) -> tuple[dict[str, float], dict[str, float]]:
    """The numbers of a job with many rows, and the seconds of its parts."""
    from kombu_opendata.spark import submit_tasks

    submit_tasks(frame(session, WARM_UP), TASK, broker_url=peer.url, queue="warm-up").wait_routed(600)
    broker = server_pid(peer)
    Path(f"/proc/{broker}/clear_refs").write_text("5")  # the highest memory is that from now on
    memory, driver, cpu = memory_mb(broker), memory_mb(os.getpid()), thread_seconds(broker)
    start = time.monotonic()
    job = submit_tasks(frame(session, rows, _PARTITIONS), TASK, broker_url=peer.url, queue="rows")
    seconds = {"all rows written": time.monotonic() - start}
    print(seconds, flush=True)
    wait_routed(job)
    seconds["all rows routed"] = time.monotonic() - start
    for name, used in thread_seconds(broker).items():
        seconds[f"CPU of the broker's {name}"] = used - cpu[name]
    found = {
        "write": rows / seconds["all rows written"],
        "route": rows / seconds["all rows routed"],
        "broker": memory_mb(broker, "VmHWM") - memory,
        "driver": memory_mb(os.getpid()) - driver,
    }
    return found, seconds
