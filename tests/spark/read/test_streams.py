"""Streams of a store's new rows into a sink, each row once: over restarts, a killed driver and a killed broker."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kombu.entity import Queue
from pyspark.errors import PySparkException
from pyspark.sql.types import LongType, StructField, StructType

from kombu_opendata.errors import RequestError
from kombu_opendata.spark import register, submit_tasks
from kombu_opendata.spark.source import OpenDataSource

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import connected, send, take
from ...support.processes import Child, Children, wait_until
from ...support.spark import PROJECT


def run(spark: Any, store: Path, table: str, folder: Path, **options: Any) -> list[int]:
    """Write what is new to the sink, in the query of the checkpoint in ``folder``; return the sizes of the batches."""
    register(spark)
    reader = spark.readStream.format("opendata").options(store=str(store), table=table, **options)
    writer = reader.load().writeStream.format("parquet").option("path", str(folder / "rows"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def in_sink(spark: Any, folder: Path, column: str) -> Counter[Any]:
    return Counter(row[0] for row in spark.read.parquet(str(folder / "rows")).select(column).collect())


def test_messages_and_attempts_with_and_without_a_broker(
    spark: Any, broker_url: str, store_folder: Path, tmp_path: Path
) -> None:
    """The last rows are in the journal of a broker that was killed; in the end, the broker stores them in tables."""
    with connected(broker_url) as connection:
        channel = connection.channel()
        Queue("q")(channel).declare()
        send(channel, "q", *(f"a{number}" for number in range(30)))
        EmbeddedBroker(store_folder).wait_queue("q", 30, 0)
        assert run(spark, store_folder, "messages", tmp_path / "messages", maxRowsPerTrigger=20) == [20, 10]
        job = submit_tasks(spark.range(400), "proj.b", broker_url=broker_url, queue="q", kwargs=["id"])
        job.wait_routed(timeout=60)
        send(channel, "q", "last", headers={"task": "proj.c", "id": "c"})
        for message in take(channel, "q"):
            channel.basic_ack(message.delivery_tag)
        EmbeddedBroker(store_folder).wait_queue("q", 0, 0)
        EmbeddedBroker(store_folder).kill()
        run(spark, store_folder, "messages", tmp_path / "messages", maxRowsPerTrigger=1000)
        run(spark, store_folder, "attempts", tmp_path / "attempts", maxRowsPerTrigger=300)
        send(channel, "q", "after")  # starts another broker
        EmbeddedBroker(store_folder).terminate()
    run(spark, store_folder, "messages", tmp_path / "messages")
    run(spark, store_folder, "attempts", tmp_path / "attempts")

    assert sorted(in_sink(spark, tmp_path / "messages", "message_id").values()) == [1] * 432
    assert in_sink(spark, tmp_path / "messages", "task") == {None: 31, "proj.b": 400, "proj.c": 1}
    assert in_sink(spark, tmp_path / "attempts", "attempt_id") == Counter(range(431))


def test_a_driver_that_is_killed(
    spark: Any, started: Children, broker_url: str, store_folder: Path, tmp_path: Path
) -> None:
    with connected(broker_url) as connection:
        channel = connection.channel()
        Queue("q")(channel).declare()
        send(channel, "q", *map(str, range(400)))
        EmbeddedBroker(store_folder).wait_queue("q", 400, 0)
    command = [sys.executable, "-m", "tests.support.apps.spark_programs", "read_stream", broker_url, str(tmp_path)]
    child = Child(command, tmp_path / "log", cwd=PROJECT)
    started.add(child)
    batches = tmp_path / "checkpoint" / "offsets" / "3"
    wait_until(lambda: batches.exists() or child.ended, 300, lambda: child.log.read_text())
    os.killpg(child.pid, signal.SIGKILL)
    child.process.wait()
    run(spark, store_folder, "messages", tmp_path)

    assert sorted(in_sink(spark, tmp_path, "message_id").values()) == [1] * 400


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"table": "queues"}, "the table queues can't be a stream, as its rows change"),
        ({"table": "results"}, "the table results can't be a stream, as it has no order"),
        ({"table": "messages", "first_id": "5"}, "a stream has no bound 'first_id': use where"),
        ({"table": "attempts", "maxRowsPerTrigger": "many"}, "maxRowsPerTrigger is 'many', not a number"),
        ({"table": "attempts", "failOnDataLoss": "maybe"}, "failOnDataLoss is 'maybe' and must be 'true' or 'false'"),
        ({"table": "attempts", "startingOffsets": "5"}, "startingOffsets is '5' and must be 'earliest' or 'latest'"),
    ],
)
def test_wrong_streams(tmp_path: Path, options: dict[str, str], what: str) -> None:
    schema = StructType([StructField("message_id", LongType())])
    reader: Any = OpenDataSource({"store": str(tmp_path), **options}).streamReader(schema)
    for call in (reader.initialOffset, lambda: reader.latestOffset({}, None), lambda: reader.partitions({}, {})):
        with pytest.raises(RequestError, match=what):
            call()


def test_a_refused_stream_and_a_stream_of_nothing(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="the table queues can't be a stream"):
        run(spark, tmp_path, "queues", tmp_path)
    with pytest.raises(PySparkException, match="there is no store at"):
        run(spark, tmp_path, "attempts", tmp_path)


def test_options_of_streams_are_refused_elsewhere(spark: Any, tmp_path: Path) -> None:
    register(spark)
    reader = spark.read.format("opendata").options(store=str(tmp_path), table="messages", maxRowsPerTrigger=5)
    with pytest.raises(PySparkException, match="maxRowsPerTrigger is for streams"):
        reader.load().collect()
    stream = spark.readStream.format("opendata").options(store=str(tmp_path), table="messages", maxrows=5)
    with pytest.raises(PySparkException, match="unknown option 'maxrows': do you mean 'maxRowsPerTrigger'"):
        stream.load()
