"""Results of a job's tasks, as a real worker stored them, and rows that are joined to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from kombu_opendata.errors import RequestError
from kombu_opendata.spark import map_tasks, submit_tasks

from ..support.processes import Children
from ..support.workers import Worker

#: task → state, JSON of its value, part of its error
EXPECTED = {
    "farm.fine": ("succeeded", '"fine"', None),
    "farm.raises": ("raised", None, "it went wrong"),
    "farm.again": ("raised", None, "not yet"),
    "farm.ignores": ("ignored", None, None),
    "farm.rejects": ("rejected", None, "not for me"),
    "farm.dies": ("lost", None, "signal 9"),
}


class OutcomesWorker(Worker):
    app = "outcomes"


def test_each_task_has_a_row_with_its_result(
    spark: Any, started: Children, broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = spark.createDataFrame([(task,) for task in EXPECTED], "task string")
    job = submit_tasks(tasks.coalesce(1), F.col("task"), broker_url=broker_url, args=[])
    sums = submit_tasks(spark.range(3), "farm.add", broker_url=broker_url, args=["id", F.lit(1)])
    job.wait_routed(timeout=60)
    assert {row.state for row in job.results().collect()} == {"waiting"}
    files = tmp_path / "results"
    settings: dict[str, Any] = {"task_ignore_result": False, "result_backend": "opendata"}
    started.add(OutcomesWorker(broker_url, tmp_path, "outcomes", pool="prefork", **settings))
    job.wait(timeout=120)
    sums.wait(timeout=120)

    rows = {row.task: row for row in job.results().collect()}

    assert {
        task: (row.state, row.value, text if text and text in row.error else row.error)
        for task, row in rows.items()
        for text in [EXPECTED[task][2]]
    } == EXPECTED
    assert rows["farm.fine"].attempts == 1
    assert rows["farm.fine"].runtime_ms > 0
    assert rows["farm.fine"].worker.startswith("outcomes@")
    assert rows["farm.again"].attempts == 2
    assert "raise ValueError" in rows["farm.raises"].traceback
    assert {row.task_id for row in rows.values()} == set(job.ids())
    assert {row.reason for row in rows.values()} == {None}

    assert sorted(row.value for row in sums.results("long").collect()) == [1, 2, 3]
    unfit = {row.task: row for row in job.results("array<int>").collect()}["farm.fine"]
    assert (unfit.value, unfit.reason, unfit.state) == (
        None, 'the result does not fit array<int>: "fine"', "succeeded"
    )  # fmt: skip
    spaced = StructType([StructField("a b", LongType())])
    assert {row.value for row in sums.results(spaced).collect()} == {None}
    app = Celery(broker=broker_url, backend=f"file://{files}", set_as_current=False)
    files.mkdir()
    elsewhere = list(sums.ids())
    app.backend.store_result(elsewhere[0], {"sum": 7}, "SUCCESS")
    app.backend.store_result(elsewhere[1], ValueError("elsewhere"), "FAILURE")
    found = {row.task_id: row for row in sums.results("struct<sum: int>", app=app).collect()}
    assert [found[id].value and found[id].value.sum for id in elsewhere] == [7, None, None]
    assert [found[id].error for id in elsewhere] == [None, "elsewhere", None]
    assert [found[id].reason and found[id].reason[:19] for id in elsewhere] == [None, None, "no result is stored"]


def test_rows_are_joined_to_their_results_whenever_they_are_computed(
    spark: Any, started: Children, broker_url: str, tmp_path: Path
) -> None:
    """Also if each computation of the frame gives other rows in another order."""
    settings: dict[str, Any] = {"task_ignore_result": False, "result_backend": "opendata"}
    started.add(OutcomesWorker(broker_url, tmp_path, "outcomes", **settings))
    frame = spark.range(20).select(F.col("id").alias("x"), (F.rand() * 1000).cast("int").alias("y")).orderBy(F.rand())

    rows = map_tasks(frame, "farm.add", broker_url=broker_url, schema="long", timeout=120)

    for _ in range(2):
        assert sorted(row.x for row in rows.collect()) == list(range(20))
        assert all(row.result.value == row.x + row.y and row.result.state == "succeeded" for row in rows.collect())
    assert rows.columns == ["x", "y", "result"]

    named = frame.selectExpr("x", "x + 1 y", "concat('sum-', x) id")
    for _ in range(2):
        rows = map_tasks(
            named, "farm.add", broker_url=broker_url, args=["x", "y"], task_id="id", job_id="sums", timeout=120
        )
        assert {row.id: row.result.value for row in rows.collect()} == {f"sum-{x}": str(2 * x + 1) for x in range(20)}


def test_arguments_that_can_not_be_joined(spark: Any, broker_url: str) -> None:
    with pytest.raises(RequestError, match="job_id is given without task_id"):
        map_tasks(spark.range(1), "farm.add", broker_url=broker_url, job_id="sums")
    with pytest.raises(RequestError, match="there is no column 'order': the frame has id"):
        map_tasks(spark.range(1), "farm.add", broker_url=broker_url, task_id="order")
    with pytest.raises(RequestError, match="task_id is 7 and must be a text"):
        map_tasks(spark.range(1), "farm.add", broker_url=broker_url, task_id=7)  # type: ignore[arg-type]
    for name in ("result", "Result"):
        with pytest.raises(RequestError, match="the frame has a column 'result'"):
            map_tasks(spark.range(1).withColumnRenamed("id", name), "farm.add", broker_url=broker_url)
