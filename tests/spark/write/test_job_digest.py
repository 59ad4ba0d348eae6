"""A known job id with another job is an error, by two drivers at a time too; the same job is returned."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from kombu.entity import Queue
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import PreconditionFailed
from kombu_opendata.protocol.messages import JobInfo
from kombu_opendata.spark import find_job, register, submit_tasks
from kombu_opendata.spark.encode.plan import ColumnNames, JobPlan
from kombu_opendata.spark.stored_messages import RESUBMISSION
from kombu_opendata.spark.write.job_digest import check_same, digest_of, with_rows

from ...support.batches import stage
from ...support.kombu_client import connected
from ...support.spark import taken

TASK = "proj.add"


# ---------------------------------------------------------------------- without Spark
def plan(*, source: str = "id", constant: Any = 5, task: str = TASK, queue: str = "", **options: Any) -> JobPlan:
    columns = ColumnNames(args=("args[0]", "args[1]"), constants={"args[1]": constant})
    return JobPlan(columns, task, queue, options, sources={"args[0]": source})


def job(digest: str, rows: int = 3) -> JobInfo:
    return JobInfo("day", state="routed", rows=rows, digest=digest)


@pytest.mark.parametrize(
    ("other", "rows", "what"),
    [
        (plan(task="proj.mul"), 3, "another task:"),
        (plan(queue="slow"), 3, "another queue:"),
        (plan(source="(id + 1)"), 3, "other arguments:"),
        (plan(constant=6), 3, "other arguments:"),
        (plan(serializer="msgpack"), 3, "other options:"),
        (plan(), 4, "3 rows, not 4:"),
        (plan(task="proj.mul", constant=6), 4, "another task and other arguments and 3 rows, not 4:"),
    ],
)
def test_the_error_names_the_differences(other: JobPlan, rows: int, what: str) -> None:
    known = job(with_rows(digest_of(plan()), 3))
    check_same(known, digest_of(plan()), 3)
    with pytest.raises(PreconditionFailed) as caught:
        check_same(known, digest_of(other), rows)
    assert str(caught.value).startswith(f"job 'day' was committed with {what} change job_id, or")


def test_what_does_not_make_another_job() -> None:
    digest = digest_of(plan())
    assert digest == digest_of(plan(countdown=5, eta=dt.datetime(2026, 1, 2), expires=60))
    check_same(job(""), digest)  # of an older version
    check_same(job("9-of-a-later-version-3"), digest, 3)
    with pytest.raises(PreconditionFailed, match="3 rows, not 4"):
        check_same(job(""), digest, 4)
    assert len(with_rows(digest, 10**12)) <= 64


def test_a_resubmission_is_another_job() -> None:
    known = job(with_rows(RESUBMISSION, 3))
    check_same(known, RESUBMISSION)
    with pytest.raises(PreconditionFailed, match="'day' was committed with another task"):
        check_same(known, digest_of(plan()), 3)


CONSTANT = {
    "set": {"b", "a", "c"},
    "time": dt.datetime(2026, 1, 2),
    "price": Decimal("1.50"),
    5: b"x",
    "object": object(),
}


def test_a_digest_is_the_same_in_each_process() -> None:
    program = (
        "from tests.spark.write.test_job_digest import CONSTANT, digest_of, plan\n"
        "print(digest_of(plan(constant=CONSTANT, b=1, a=2)))"
    )
    for seed in ("1", "2"):
        process = subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=120
        )
        assert process.stdout.strip() == digest_of(plan(constant=CONSTANT, a=2, b=1)), process.stderr


# ---------------------------------------------------------------------- with Spark
def test_a_job_id_with_another_job(spark: Any, broker_url: str, caplog: pytest.LogCaptureFixture) -> None:
    def submit(rows: int = 3, task: str = TASK, **arguments: Any) -> Any:
        arguments = {"args": ["id", F.col("id") + 1], "job_id": "day", **arguments}
        return submit_tasks(spark.range(rows), task, broker_url=broker_url, **arguments)

    first = submit()
    assert first.added
    assert not submit(countdown=5).added
    assert "job 'day' was committed before, with 3 tasks: nothing is sent" in caplog.text
    others: list[tuple[dict[str, Any], str]] = [
        ({"task": "proj.mul"}, "another task"),
        ({"queue": "slow"}, "another queue"),
        ({"args": ["id", F.col("id") + 2]}, "other arguments"),
        ({"rows": 77}, "3 rows, not 77"),
    ]
    for arguments, what in others:
        with pytest.raises(PreconditionFailed, match=f"'day' was committed with {what}: change job_id") as caught:
            submit(**arguments)
        assert "\n" not in str(caught.value)
        again = submit(**arguments, if_exists="return")
        assert (again.added, again.rows, again.first_message_id) == (False, 3, first.first_message_id)
    first.wait_routed(60)
    assert len(taken(broker_url)) == 3

    register(spark)
    writer = spark.range(3).write.format("opendata").mode("append").options(broker_url=broker_url, job_id="day")
    with pytest.raises(PySparkException, match="'day' was committed with another task"):
        writer.option("task", "proj.mul").save()
    writer.options(task="proj.mul", if_exists="return").save()
    assert find_job(spark, "day", broker_url=broker_url).rows == 3


@pytest.mark.parametrize("other", [None, TASK])
def test_two_drivers_with_one_job_id(spark: Any, broker_url: str, other: str | None) -> None:
    """Another driver commits while the rows of this one are written."""

    def commit_first(batches: Any) -> Any:
        yield from batches
        with StagingClient(broker_url) as client:
            batches = stage(client.staging_target(), "race", [[b"1", b"2", b"3"]], routing_key="celery")
            digest = digest_of(JobPlan(ColumnNames(args=("args[0]",)), other or "proj.mul", sources={"args[0]": "id"}))
            client.commit_job("race", batches, digest=with_rows(digest, 3))

    with connected(broker_url) as connection:
        Queue("celery")(connection.default_channel).declare()
    frame = spark.range(0, 3, 1, 1).mapInArrow(commit_first, "id long")
    call: dict[str, Any] = {"broker_url": broker_url, "args": ["id"], "job_id": "race"}
    if other == TASK:
        assert not submit_tasks(frame, TASK, **call).added
    else:
        with pytest.raises(PreconditionFailed, match="job 'race' was committed with another task: change job_id"):
            submit_tasks(frame, TASK, **call)
    job = find_job(spark, "race", broker_url=broker_url)
    job.wait_routed(60)
    assert (job.rows, len(taken(broker_url))) == (3, 3)
