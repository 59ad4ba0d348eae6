"""The whole way of a job: rows become tasks, workers run them, results and history come back, failures run again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from kombu_opendata.spark import export_history, submit_tasks

from .processes import children
from .workers import Worker

VALUE = "struct<square: long>"
QUEUE = "steps"


class StepsWorker(Worker):
    """One of two workers that share two cores, so it logs warnings only."""

    app = "outcomes"

    def __init__(self, url: str, folder: Path, name: str, concurrency: int) -> None:
        settings: dict[str, Any] = {
            "task_ignore_result": False, "result_backend": "opendata", "worker_prefetch_multiplier": 64,
        }  # fmt: skip
        options = "--loglevel=WARNING", f"--queues={QUEUE}", "--without-gossip"
        super().__init__(url, folder, name, *options, pool="prefork", concurrency=concurrency, **settings)


def steps(spark: Any, rows: int) -> Any:
    """Rows of which 5 % raise, some run into their time limit, and some kill the process that runs them."""
    end = F.when(F.col("id") % 20 == 3, "raised").when(F.col("id") % 5_000 == 7, "timed_out")
    end = end.when(F.col("id") % 10_000 == 11, "lost").otherwise("succeeded")
    return spark.range(rows, numPartitions=4).select(
        F.col("id").alias("n"), F.concat(F.lit("step-"), "id").alias("task_id"), end.alias("end")
    )


def round_trip(
    spark: Any, url: str, store: Path, folder: Path, rows: int, *, concurrency: int = 2, timeout: float = 900
) -> dict[str, float]:
    """Check that every row is accounted for, until all have succeeded; return the seconds of each part."""
    seconds, since = {}, time.monotonic()

    def took(part: str) -> None:
        nonlocal since
        seconds[part], since = time.monotonic() - since, time.monotonic()

    frame, repaired = steps(spark, rows), folder / "repaired"
    expected = {row.end: row["count"] for row in frame.groupBy("end").count().collect()}
    failed = rows - expected["succeeded"]
    with children() as started:
        for name in ("one", "two"):
            started.add(StepsWorker(url, folder, name, concurrency))
        took("start")
        arguments = ["n", "end", F.lit(str(repaired))]
        job = submit_tasks(frame, "farm.step", broker_url=url, queue=QUEUE, args=arguments, task_id="task_id")
        took("write")
        tasks = job.wait(timeout).tasks
        took("work")
        assert {end: getattr(tasks, end) for end in expected} == expected
        joined = frame.join(job.results(VALUE), "task_id", "left").selectExpr(
            "end", "state", "coalesce(value.square = n * n, false) has_value",
            "coalesce(error = concat('step ', n, ' is not ready'), false) has_error",
        )  # fmt: skip
        found = {tuple(row)[:-1]: row["count"] for row in joined.groupBy(*joined.columns).count().collect()}
        assert found == {(end, end, end == "succeeded", end == "raised"): n for end, n in expected.items()}
        took("results")
        assert job.failed().count() == failed
        took("failed")
        repaired.touch()
        assert job.retry().published == failed
        assert job.wait(timeout).tasks.succeeded == rows
        took("retry")
    assert job.results(VALUE).where("value.square >= 0 and state = 'succeeded'").count() == rows
    took("results of the retry")
    history = str(folder / "history")
    assert export_history(spark, str(store), history).rows == rows + failed
    exported = spark.read.parquet(history).groupBy("state").count().collect()
    assert {row.state: row["count"] for row in exported} == {**expected, "succeeded": rows}
    took("export")
    return seconds
