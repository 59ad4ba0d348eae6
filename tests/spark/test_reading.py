"""What Spark reads of a store is what is in it: compared with lists that plain code made."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kombu.entity import Queue
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from kombu_opendata.errors import RequestError, StoreError
from kombu_opendata.spark import read_table, register, submit_tasks
from kombu_opendata.spark.filters import Bounds
from kombu_opendata.spark.tables import TABLES, schema_of

from ..support.broker import EmbeddedBroker
from ..support.kombu_client import connected

LARGE = "x" * 100_000


class Known:
    """A store with some messages, and what was put into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bodies: dict[int, str] = {}


@pytest.fixture(scope="module")
def known(spark: Any, module_store_folder: Path) -> Known:
    """By Kombu: 600 in ``a`` (1 large), 30 in ``b``, half of them with headers; by Spark: 400 staged ones in ``c``."""
    url = f"opendata://{module_store_folder}"
    with connected(url) as connection:
        channel = connection.channel()
        for name in ("a", "b"):
            Queue(name, queue_arguments={"x-max-priority": 9})(channel).declare()
        producer = connection.Producer(serializer="json")
        for number in range(600):
            headers = {"task": f"t{number % 3}", "id": f"id-{number}", "extra": "é"}
            body = LARGE if number == 599 else f"body-{number}"
            producer.publish(body, routing_key="a", headers=headers, priority=number % 5, expiration=3600)
        for number in range(30):
            producer.publish(f"b-{number}", routing_key="b")
        bodies = []
        queue = Queue("a", queue_arguments={"x-max-priority": 9})
        consumer = connection.Consumer([queue], accept=["json"], prefetch_count=100)
        consumer.register_callback(lambda body, message: bodies.append(message))
        with consumer:
            while len(bodies) < 100:
                connection.drain_events(timeout=20)
            for number, message in enumerate(bodies[:100]):
                if number < 50:
                    message.ack()
                elif number < 80:
                    message.reject()
    submit_tasks(
        spark.range(400).coalesce(2), "proj.c", broker_url=url, queue="c", kwargs=["id"], job_id="c"
    ).wait_routed(timeout=120)
    return Known(module_store_folder)


@pytest.fixture(params=["live", "killed"])
def store(request: pytest.FixtureRequest, known: Known) -> str:
    """The store with its broker, and without one that was killed."""
    broker = EmbeddedBroker(known.folder)
    if request.param == "live":
        broker.report()
    elif broker.pid() is not None:
        broker.kill()
    return str(known.folder)


def test_messages(spark: Any, store: str) -> None:
    rows = read_table(spark, store, "messages").orderBy("message_id").collect()

    assert len(rows) == 1030
    first = rows[0].asDict()
    assert (first["task"], first["task_id"], first["routing_key"], first["priority"]) == ("t0", "id-0", "a", 0)
    assert first["expires_at"] - first["received_at"] == dt.timedelta(hours=1)
    assert [row.task_id for row in rows[:600]] == [f"id-{number}" for number in range(600)]
    assert [row.priority for row in rows[:600]] == [number % 5 for number in range(600)]
    assert {row.task for row in rows[600:630]} == {None}
    assert {row.task for row in rows[630:]} == {"proj.c"}
    assert rows[600].expires_at is None
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    assert all(abs(now - row.received_at) < dt.timedelta(hours=1) for row in rows)


def test_payloads_wherever_they_are(spark: Any, store: str) -> None:
    frame = read_table(spark, store, "messages", columns=["message_id", "body", "payload_bytes", "headers", "payload"])
    rows = {row.message_id: row for row in frame.collect()}

    bodies = [bytes(rows[id].body).decode() for id in sorted(rows)]
    assert bodies[:599] == [f'"body-{number}"' for number in range(599)]
    assert bodies[599] == f'"{LARGE}"'
    staged = [body for body in bodies if body.startswith("[[]")]
    assert Counter(staged) == Counter(
        f'[[], {{"id": {number}}}, {{"callbacks": null, "errbacks": null, "chain": null, "chord": null}}]'
        for number in range(400)
    )
    assert all(row.payload_bytes == len(row.payload) for row in rows.values())
    assert rows[min(rows)].headers["extra"] == "é"
    assert rows[min(rows)].headers["routing_key"] == "a"


def test_what_queues_hold(spark: Any, store: str) -> None:
    counts = {
        state: dict(Counter(row.queue for row in read_table(spark, store, state).collect()))
        for state in ("available", "in_flight", "done", "failed")
    }
    settled = counts["done"].get("a", 0), counts["failed"].get("a", 0)
    assert settled == (50, 30)
    assert counts["available"]["b"] == 30
    assert counts["available"]["c"] == 400
    assert counts["available"]["a"] + counts["in_flight"].get("a", 0) == 520
    entries = Counter((row.queue, row.state) for row in read_table(spark, store, "entries").collect())
    assert entries == Counter({(q, state): n for state, found in counts.items() for q, n in found.items()})
    queues = {row.queue: row.asDict() for row in read_table(spark, store, "queues").collect()}
    assert queues["a"]["done"] == 50
    assert queues["a"]["max_attempts"] == 20
    assert '"x-max-priority":9' in queues["a"]["arguments"]
    for state, found in counts.items():
        assert {name: row[state] for name, row in queues.items() if row[state]} == found


def test_priorities_and_times_of_entries(spark: Any, store: str) -> None:
    messages = read_table(spark, store, "messages", columns=["message_id", "priority"])
    by_id = {row.message_id: row.priority for row in messages.collect()}
    available = read_table(spark, store, "available").where("queue = 'a'").collect()
    assert all(row.priority == by_id[row.message_id] for row in available)
    assert all(row.expires_at is not None for row in available)
    done = read_table(spark, store, "done").collect()
    assert all(row.attempts == 1 and row.done_at is not None for row in done)
    failed = read_table(spark, store, "failed").collect()
    assert all(row.queue == "a" for row in failed)


def test_filters_narrow_what_is_read_and_never_what_is_found(spark: Any, known: Known) -> None:
    frame = read_table(spark, str(known.folder), "messages", columns=["message_id", "received_at"], partitions=4)
    everything = sorted((row.message_id, row.received_at) for row in frame.collect())
    middle = everything[500][1]
    for condition, matches in (
        (F.col("message_id") == everything[3][0], lambda id, at: id == everything[3][0]),
        (
            F.col("message_id").between(everything[5][0], everything[9][0]),
            lambda id, at: everything[5][0] <= id <= everything[9][0],
        ),
        (
            F.col("message_id").isin(everything[1][0], everything[700][0]),
            lambda id, at: id in (everything[1][0], everything[700][0]),
        ),
        (F.col("received_at") >= F.lit(middle), lambda id, at: at >= middle),
        (F.col("received_at") < F.lit(middle), lambda id, at: at < middle),
        (F.col("received_at") == F.lit(middle), lambda id, at: at == middle),
        (F.col("message_id") > 1 << 40, lambda id, at: False),
    ):
        found = sorted((row.message_id, row.received_at) for row in frame.where(condition).collect())
        assert found == [row for row in everything if matches(*row)], str(condition)
    plan = frame.where("message_id = 5")._jdf.queryExecution().executedPlan().toString()
    assert "PushedFilters" in plan or "EqualTo" in plan or "message_id" in plan
    entries = read_table(spark, str(known.folder), "entries")
    assert entries.where("state = 'done' and queue = 'a'").count() == 50
    assert entries.where("state in ('done', 'failed')").count() == 80
    assert entries.where("queue = 'nowhere'").count() == 0


def test_filters_in_a_session_of_another_time_zone(spark: Any, known: Known) -> None:
    frame = read_table(spark, str(known.folder), "messages", columns=["message_id", "received_at"])
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        low = frame.agg(F.min("received_at")).collect()[0][0]
        assert frame.where(F.col("received_at") >= F.lit(low)).count() == 1030
        assert frame.where(F.col("received_at") < F.lit(low)).count() == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_wrong_calls(spark: Any, tmp_path: Path) -> None:
    register(spark)
    for options, what in (
        ({}, "name the table"),
        ({"table": "nope"}, "no table 'nope'"),
        ({"table": "queues", "columns": "queue,nope"}, "no column 'nope'"),
    ):
        with pytest.raises(PySparkException, match=what):
            spark.read.format("opendata").options(store=str(tmp_path), **options).load()
    with pytest.raises(PySparkException, match="name the store"):
        spark.read.format("opendata").option("table", "queues").load().collect()
    with pytest.raises(PySparkException, match="there is no store at"):
        spark.read.format("opendata").options(table="done", store=str(tmp_path)).load().collect()
    assert issubclass(StoreError, Exception)
    wrong: list[tuple[str, Any, str]] = [
        ("nope", (), "no table 'nope'"),
        ("queues", ["queue", "nope"], "no column 'nope'"),
        ("queues", "queue,none", "no column 'none'"),
    ]
    for table, columns, what in wrong:
        with pytest.raises(RequestError, match=what):
            read_table(spark, str(tmp_path), table, columns=columns)


def test_schemas() -> None:
    assert "payload" not in schema_of("messages")
    assert "headers map<string,string>" in schema_of("messages", "*")
    assert schema_of("done", "queue, done_at") == "queue string, done_at timestamp"
    assert set(TABLES) >= {"messages", "attempts", "queues", "available", "in_flight", "done", "failed"}
    with pytest.raises(RequestError):
        schema_of("nope")


def test_bounds_of_filters_that_say_nothing_here() -> None:
    class Odd:
        attribute = ("task",)
        value = "x"

    class IsNotNull:
        attribute = ("message_id",)

    assert Bounds().narrowed([Odd(), IsNotNull()]) == Bounds()
