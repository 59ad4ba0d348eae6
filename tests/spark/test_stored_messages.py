"""Stored messages that a frame selects: their tasks run again, and they are moved, archived and purged."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from celery import Celery
from kombu.entity import Queue
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from kombu_opendata import QueueClient
from kombu_opendata.errors import NotFound, PreconditionFailed, QueueFull, RequestError
from kombu_opendata.spark import (
    archive_failed,
    find_job,
    move_messages,
    purge_messages,
    read_table,
    resubmit,
    submit_tasks,
)

from ..support.kombu_client import connected
from ..support.spark import taken

TASK = "proj.add"


@pytest.fixture
def first_id(spark: Any, broker_url: str) -> int:
    """The first of 40 tasks with a callback and a header, of which the first 15 are done."""
    link = Celery(set_as_current=False).signature("proj.then", args=(1,))
    frame = spark.range(0, 40, numPartitions=2)
    job = submit_tasks(
        frame, TASK, broker_url=broker_url, args=["id"], headers={"night": "21st"}, priority=5, link=link, queue="sums"
    )
    job.wait_routed(timeout=60)
    assert len(taken(broker_url, "sums", limit=15)) == 15
    return job.first_message_id


def test_tasks_run_again_as_a_job(spark: Any, broker_url: str, store_folder: Path, first_id: int) -> None:
    messages = read_table(spark, str(store_folder), "messages")
    done = messages.where(F.col("message_id") < first_id + 15)
    old = {row.message_id: row.task_id for row in done.collect()}

    queue = F.expr("concat('again-', message_id % 2)")
    job = resubmit(done.union(done), broker_url=broker_url, queue=queue, job_id="b")

    assert (job.rows, job.added) == (15, True)
    counts = job.wait_routed(timeout=60).queues
    assert {name: count.routed for name, count in counts.items()} == Counter(f"again-{id % 2}" for id in old)
    sent = [*taken(broker_url, "again-0"), *taken(broker_url, "again-1")]
    assert sorted(message.id for message in sent) == sorted(job.ids())
    assert sorted(message.headers["parent_id"] for message in sent) == sorted(old.values())
    for message in sent:
        args, kwargs, embed = json.loads(message.body)
        assert (old[first_id + args[0]], kwargs) == (message.headers["parent_id"], {})
        assert [callback["task"] for callback in embed["callbacks"]] == ["proj.then"]
        assert (message.headers["task"], message.headers["night"], message.headers["spark_job"]) == (TASK, "21st", "b")
        assert message.properties["priority"] == 5
    assert not resubmit(done, broker_url=broker_url, job_id="b").added
    with pytest.raises(PreconditionFailed, match="job 'b' was committed with another task"):
        submit_tasks(spark.range(15), TASK, broker_url=broker_url, job_id="b")
    submit_tasks(spark.range(15), TASK, broker_url=broker_url, job_id="c")
    with pytest.raises(PreconditionFailed, match="job 'c' was committed with another task"):
        resubmit(done, broker_url=broker_url, job_id="c")
    elsewhere = resubmit(done.limit(1), broker_url=broker_url)
    assert (elsewhere.rows, list(elsewhere.wait_routed(timeout=60).queues)) == (1, ["sums"])
    assert resubmit(done.limit(0), broker_url=broker_url).wait(timeout=60).rows == 0


def test_a_frame_that_has_more_rows_whenever_it_is_computed(
    spark: Any, broker_url: str, tmp_path: Path, first_id: int
) -> None:
    """As that of failed tasks while more of them fail."""
    file = tmp_path / "times"
    file.write_text("1")

    def grow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            times = int(file.read_text())
            file.write_text(str(times + 1))
            yield pa.RecordBatch.from_pydict({"message_id": list(range(first_id, first_id + times))})

    growing = spark.range(0, 1, 1, 1).mapInArrow(grow, "message_id long")
    assert resubmit(growing, broker_url=broker_url).rows == 1


def test_what_can_not_run_again(spark: Any, broker_url: str, store_folder: Path, first_id: int) -> None:
    """Nothing is sent then."""
    with connected(broker_url) as connection:
        connection.Producer().publish("no task", routing_key="plain", declare=[Queue("plain")])
    plain = read_table(spark, str(store_folder), "messages").where("task is null").first().message_id
    for id, reason in ((10**9, "is not stored any more"), (plain, "is not a task")):
        ids = spark.createDataFrame([(first_id,), (id,)], "message_id long")
        with pytest.raises(PySparkException, match=f"message {id} {reason}"):
            resubmit(ids, broker_url=broker_url, job_id="never")
    with pytest.raises(NotFound):
        find_job(spark, "never", broker_url=broker_url)
    with pytest.raises(RequestError, match="there is no column 'message_id': the frame has id"):
        resubmit(spark.range(3), broker_url=broker_url)
    for arguments, reason in (
        ({"job_id": ""}, "job_id is empty"),
        ({"job_id": 5}, "job_id is 5 and must be a text"),
        ({"queue": 5}, "queue is 5 and must be a text"),
    ):
        with pytest.raises(RequestError, match=reason):
            resubmit(ids, broker_url=broker_url, **arguments)
    pandas = importlib.import_module("pandas")
    for call in (resubmit, purge_messages, partial(move_messages, target="sums")):
        with pytest.raises(RequestError, match=r"df is a pandas.DataFrame"):
            call(pandas.DataFrame({"message_id": [1]}), broker_url=broker_url)
        with pytest.raises(RequestError, match=r"df is a streaming frame: .* use foreachBatch"):
            call(spark.readStream.format("rate").load(), broker_url=broker_url)
    with pytest.raises(RequestError, match="there is no column 'queue': the frame has message_id"):
        purge_messages(spark.range(3).withColumnRenamed("id", "message_id"), broker_url=broker_url)


def test_waiting_messages_move_to_another_queue(spark: Any, broker_url: str, store_folder: Path, first_id: int) -> None:
    backlog = read_table(spark, str(store_folder), "backlog").where("message_id % 2 = 0")
    with QueueClient(broker_url) as client:
        client.create("large")
    even = {id for id in range(first_id + 15, first_id + 40) if id % 2 == 0}
    assert move_messages(backlog, "large", broker_url=broker_url) == len(even)
    large = read_table(spark, str(store_folder), "backlog", queues=["large"])
    assert {row.message_id for row in large.collect()} == even
    assert move_messages(backlog.where("queue = 'sums'"), "large", broker_url=broker_url) == 0
    with connected(broker_url) as connection:
        small = Queue("small", queue_arguments={"x-max-length": 3, "x-overflow": "reject-publish"})
        small(connection.channel()).declare()
    with pytest.raises(QueueFull, match="'small' has reached its maximum length"):
        move_messages(large, "small", broker_url=broker_url)
    with pytest.raises(NotFound):
        move_messages(backlog, "nowhere", broker_url=broker_url)


def test_messages_are_archived_and_purged(spark: Any, broker_url: str, store_folder: Path, first_id: int) -> None:
    with QueueClient(broker_url) as client:
        for message in client.read("sums", qty=5):
            client.reject("sums", message)
    store = str(store_folder)
    failed = read_table(spark, store, "failed")
    assert archive_failed(failed.where(F.col("message_id") < first_id + 18), broker_url=broker_url) == 3
    assert failed.count() == 2

    some = spark.range(first_id + 10, first_id + 30).selectExpr("'sums' queue", "id message_id")
    collected = spark.sql("select string(null) queue, 1L message_id union all select 'sums', null")
    assert purge_messages(some.union(collected), broker_url=broker_url) == 20

    left = {row.message_id for row in read_table(spark, store, "entries").collect()}
    assert left == {*range(first_id, first_id + 10), *range(first_id + 30, first_id + 40)}
    with QueueClient(broker_url) as client:
        assert [state.id for state in client.iter_by_state("sums", "archived_failed")] == []
