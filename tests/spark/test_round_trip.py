"""The whole way: rows become tasks, two workers run them, results and history come back, failures run again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from kombu_opendata.spark import export_history, submit_tasks

from ..support.processes import Children
from ..support.workers import Worker

pytestmark = pytest.mark.timeout(900)

#: `SPARK_ROWS=1000000 make test-long ARGS=tests/spark/test_round_trip.py` is the full size
ROWS = int(os.environ.get("SPARK_ROWS", "20000"))
WAIT_SECONDS = 300 + ROWS // 100


class OutcomesWorker(Worker):
    app = "outcomes"


def test_every_row_is_accounted_for(
    spark: Any, started: Children, broker_url: str, store_folder: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "task_ignore_result": False, "result_backend": "opendata", "worker_prefetch_multiplier": 64,
    }  # fmt: skip
    for name in ("one", "two"):
        started.add(OutcomesWorker(broker_url, tmp_path, name, pool="prefork", concurrency=2, **settings))
    end = F.when(F.col("id") % 20 == 3, "raised").when(F.col("id") % 5_000 == 7, "timed_out")
    end = end.when(F.col("id") % 10_000 == 11, "lost").otherwise("succeeded")
    rows = spark.range(ROWS, numPartitions=4).select(
        F.col("id").alias("n"), F.concat(F.lit("step-"), "id").alias("task_id"), end.alias("end")
    )
    expected = {row.end: row["count"] for row in rows.groupBy("end").count().collect()}
    repaired = tmp_path / "repaired"
    job = submit_tasks(
        rows, "farm.step", broker_url=broker_url, args=["n", "end", F.lit(str(repaired))], task_id="task_id"
    )

    tasks = job.wait(timeout=WAIT_SECONDS).tasks

    assert {end: getattr(tasks, end) for end in expected} == expected
    joined = rows.join(job.results("struct<square: long>"), "task_id", "left").cache()
    states = joined.groupBy("end", "state").count().collect()
    assert {(row.end, row.state): row["count"] for row in states} == {(end, end): n for end, n in expected.items()}
    assert joined.where("end = 'succeeded' and value.square = n * n").count() == expected["succeeded"]
    assert joined.where("end = 'raised' and error = concat('step ', n, ' is not ready')").count() == expected["raised"]
    assert job.failed().count() == ROWS - expected["succeeded"]

    repaired.touch()
    assert job.retry().published == ROWS - expected["succeeded"]
    assert job.wait(timeout=WAIT_SECONDS).tasks.succeeded == ROWS
    assert job.results("struct<square: long>").where("value.square >= 0 and state = 'succeeded'").count() == ROWS

    history = str(tmp_path / "history")
    assert export_history(spark, str(store_folder), history).rows == 2 * ROWS - expected["succeeded"]
    exported = spark.read.parquet(history).groupBy("state").count().collect()
    assert {row.state: row["count"] for row in exported} == {**expected, "succeeded": ROWS}
