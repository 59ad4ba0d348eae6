"""Tasks of a job that did not succeed, as a real worker ended them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kombu.entity import Queue
from pyspark.sql import functions as F

from kombu_opendata import QueueClient
from kombu_opendata.spark import read_table, submit_tasks

from ..support.kombu_client import connected
from ..support.processes import Children, wait_until
from ..support.workers import Worker

#: task → state, type of the exception, part of its message, attempts
FAILED = {
    "farm.raises": ("raised", "ValueError", "it went wrong", 1),
    "farm.raises_late": ("raised", "ValueError", "it went wrong", 1),
    "farm.again": ("raised", "TimeoutError", "not yet", 2),
    "farm.unkept": ("raised", "ValueError", "not acknowledged", 1),
    "farm.rejects": ("rejected", "celery.exceptions.Reject", "not for me", 1),
    "farm.rejects_late": ("rejected", "celery.exceptions.Reject", "not for me", 1),
    "farm.dies": ("lost", "billiard.exceptions.WorkerLostError", "signal 9", 1),
}


class OutcomesWorker(Worker):
    app = "outcomes"


def test_tasks_that_did_not_succeed(
    spark: Any, started: Children, broker_url: str, store_folder: Path, tmp_path: Path
) -> None:
    """Each once, with its error; those that succeed at a retry, and tasks of other jobs, are left out."""
    tasks = spark.createDataFrame([(task,) for task in [*FAILED, "farm.fine", "farm.fine_late"]], "task string")
    ledger = F.lit(str(tmp_path / "ledger"))
    job = submit_tasks(tasks.coalesce(1), F.col("task"), broker_url=broker_url, args=[], job_id="outcomes")
    retried = submit_tasks(
        spark.range(2), "farm.stubborn", broker_url=broker_url, args=[ledger, F.lit(1), F.lit(0.01)], job_id="retried"
    )
    started.add(OutcomesWorker(broker_url, tmp_path, "outcomes", pool="prefork"))
    assert job.wait(timeout=120).failed == 2
    retried.wait(timeout=120)
    with QueueClient(broker_url) as client:

        def final_states() -> list[str]:
            return sorted(run.state for run in client.iter_attempts() if run.state != "retried")

        ended = ["lost", *["raised"] * 4, *["rejected"] * 2, *["succeeded"] * 4]
        wait_until(lambda: final_states() == ended, 120, lambda: repr(final_states()))

    rows = {row.task: row for row in job.failed().collect()}

    assert {
        task: (row.state, row.exception, text if text in row.error else row.error, row.attempts)
        for task, row in rows.items()
        for text in [FAILED[task][2]]
    } == FAILED
    ids = {row.task: row.task_id for row in job.messages("task", "task_id").collect()}
    assert {task: row.task_id for task, row in rows.items()} == {task: ids[task] for task in FAILED}
    assert {row.queue for row in rows.values()} == {"celery"}
    assert all(row.worker.startswith("outcomes@") and row.ended_at is not None for row in rows.values())
    assert "raise ValueError" in rows["farm.raises"].traceback
    assert rows["farm.again"].message_id >= job.first_message_id + job.rows
    assert job.failed().count() == len(FAILED)
    assert retried.failed().count() == 0
    runs = read_table(spark, str(store_folder), "attempts", columns=["task", "state"]).where("task = 'farm.stubborn'")
    assert sorted(row.state for row in runs.collect()) == ["retried", "retried", "succeeded", "succeeded"]


def test_a_task_id_that_is_the_number_of_another_message(spark: Any, broker_url: str, store_folder: Path) -> None:
    """That message is not a retry of the task."""
    first = submit_tasks(spark.range(1), "farm.fine", broker_url=broker_url, args=[]).first_message_id
    numbered = spark.range(first + 50, first + 150).selectExpr("string(id) own_id")
    job = submit_tasks(numbered, "farm.fine", broker_url=broker_url, args=[], task_id="own_id")
    job.wait_routed(timeout=60)
    with connected(broker_url) as connection:
        connection.Producer().publish("no task", routing_key="plain", declare=[Queue("plain")])
    plain = read_table(spark, str(store_folder), "messages").where("task is null").first().message_id
    assert job.first_message_id + job.rows <= plain < first + 150

    assert {row.queue for row in job.results().collect()} == {"celery"}
