"""What a dry run returns is what is then sent; and it leaves no trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from kombu_opendata.errors import NotFound, PreconditionFailed, RequestError
from kombu_opendata.spark import DryRun, find_job, submit_tasks

from ...support.spark import taken


def test_the_messages_are_those_that_are_sent(spark: Any, broker_url: str, store_folder: Path) -> None:
    df = spark.range(0, 5000, 1, 2).select("id", F.when(F.expr("id <> 3"), 5).otherwise(900).alias("weight"))
    arguments: dict[str, Any] = {
        "broker_url": broker_url, "args": ["id"], "kwargs": {"x": [1, 2]}, "priority": F.col("weight"), "job_id": "day",
        "headers": {"tenant": "t"}, "properties": {"reply_to": "results"}, "queue": "sums", "bad_rows": "collect",
    }  # fmt: skip

    dry = submit_tasks(df, "proj.add", dry_run=True, **arguments)

    assert isinstance(dry, DryRun)
    with pytest.raises(NotFound):
        find_job(spark, "day", broker_url=broker_url)
    assert taken(broker_url, "sums") == []
    assert not list(store_folder.rglob("*.ba*"))
    assert (dry.rows, dry.job_id) == (5000, "day")
    assert [row.row for row in dry.bad_rows] == [3]
    assert dry.checks[1:] == [
        "the broker has no job of this id, so the tasks would be sent",
        "999 of 1,000 rows can be sent",
    ]
    assert dry.core_seconds > 0

    job = submit_tasks(df, "proj.add", **arguments)
    job.wait_routed(60)
    assert dry.bytes == pytest.approx(job.status().bytes, rel=0.5)
    sent = {message.id: message for message in taken(broker_url, "sums")}
    assert len(dry.messages) == 10
    for message in dry.messages:
        real = sent[message.headers["id"]]
        same = real.headers.keys() - {"origin"}
        assert {name: message.headers[name] for name in same} == {name: real.headers[name] for name in same}
        assert (message.properties, message.queue) == (real.properties, "sums")
        args, kwargs, _embed = message.body
        assert (args, kwargs) == real.arguments

    again = submit_tasks(df, "proj.add", dry_run=True, **arguments)
    assert again.checks[1] == "job 'day' was committed before, so nothing would be sent"
    with pytest.raises(PreconditionFailed, match="another task"):
        submit_tasks(df, "proj.mul", dry_run=True, **arguments)


def test_what_a_dry_run_refuses(spark: Any, broker_url: str) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"args": ["no"]}, "there is no column 'no'"),
        ({"task_id": F.lit("x")}, "3 rows have the task id 'x'"),
        ({"dry_run": "yes"}, "dry_run is 'yes' and must be True or False"),
    ]
    for arguments, what in refused:
        call: dict[str, Any] = {"broker_url": broker_url, "dry_run": True, **arguments}
        with pytest.raises(RequestError, match=what):
            submit_tasks(spark.range(3), "proj.add", **call)
    route: dict[str, Any] = {"exchange": "shop", "exchange_type": "topic", "routing_key": "a.b"}
    routed = submit_tasks(spark.range(0, 3, 1, 2), "proj.add", broker_url=broker_url, dry_run=True, **route)
    assert routed.rows == 3
    assert [(message.exchange, message.queue) for message in routed.messages] == [("shop", "")] * 3
    empty = submit_tasks(spark.range(0), "proj.add", broker_url=broker_url, dry_run=True)
    assert (empty.rows, empty.messages, empty.bytes, empty.bad_rows) == (0, [], 0, [])
