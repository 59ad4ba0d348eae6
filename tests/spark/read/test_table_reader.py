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

from kombu_opendata import QueueClient
from kombu_opendata.errors import RequestError, StoreError
from kombu_opendata.queue_client import QueueOptions
from kombu_opendata.spark import read_table, register, submit_tasks
from kombu_opendata.spark.read.tables import TABLES, schema_of

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import connected

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
        for state in ("backlog", "in_flight", "done", "failed")
    }
    settled = counts["done"].get("a", 0), counts["failed"].get("a", 0)
    assert settled == (50, 30)
    assert counts["backlog"]["b"] == 30
    assert counts["backlog"]["c"] == 400
    assert counts["backlog"]["a"] + counts["in_flight"].get("a", 0) == 520
    entries = Counter((row.queue, row.state) for row in read_table(spark, store, "entries").collect())
    assert entries == Counter({(q, state): n for state, found in counts.items() for q, n in found.items()})
    queues = {row.queue: row.asDict() for row in read_table(spark, store, "queues").collect()}
    assert queues["a"]["done"] == 50
    assert queues["a"]["max_attempts"] == 20
    assert '"x-max-priority":9' in queues["a"]["arguments"]
    for state, found in counts.items():
        assert {name: row[state] for name, row in queues.items() if row[state]} == found


def test_a_partition_is_a_filter_of_failures_attempts_and_tables(
    spark: Any, store_folder: Path, broker_url: str
) -> None:
    with QueueClient(broker_url) as client:
        client.create("q", QueueOptions(partition_by="tenant"))
        for tenant, count in (("acme", 3), ("globex", 2)):
            client.send_batch("q", list(range(count)), headers={"tenant": tenant})
        client.reject_many("q", client.read("q", qty=5))
        failures = client.list_failures(where="tenant = 'acme'").items
        attempts = client.list_attempts(headers={"tenant": "acme"}).items
        ids = {each.message_id for each in failures}
        assert len(ids) == len(attempts) == 3
        assert {each.message_id for each in attempts} == ids
        rows = read_table(spark, str(store_folder), "messages", columns=["message_id", "headers"])
        assert {row.message_id for row in rows.where("headers['tenant'] = 'acme'").collect()} == ids


def test_the_backlog_by_its_earlier_name(spark: Any, known: Known) -> None:
    """The table, the state and the column had the name ``available``."""
    backlog = read_table(spark, str(known.folder), "available").count()
    assert backlog == read_table(spark, str(known.folder), "backlog").count() > 0
    assert read_table(spark, str(known.folder), "entries", statuses=["available"]).count() == backlog
    queues = read_table(spark, str(known.folder), "queues", columns=["available", "backlog"])
    assert all(row.available == row.backlog for row in queues.collect())
    assert "available" not in read_table(spark, str(known.folder), "queues").columns


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


def test_bounds_of_messages_are_exact(spark: Any, known: Known) -> None:
    def read(**bounds: Any) -> list[Any]:
        frame = read_table(spark, str(known.folder), "messages", columns=["message_id", "received_at"], **bounds)
        return sorted((row.message_id, row.received_at) for row in frame.collect())

    everything = read(partitions=4)
    ids = [id for id, _ in everything]
    middle = everything[500][1]
    tokyo = middle.replace(tzinfo=dt.UTC).astimezone(dt.timezone(dt.timedelta(hours=9)))
    little = dt.timedelta(microseconds=1)
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"first_id": ids[5], "last_id": ids[9]}, lambda id, at: ids[5] <= id <= ids[9]),
        ({"first_id": ids[700], "partitions": 3}, lambda id, at: id >= ids[700]),
        ({"gte": middle}, lambda id, at: at >= middle),
        ({"gt": tokyo}, lambda id, at: at > middle),
        ({"lte": tokyo}, lambda id, at: at <= middle),
        ({"lt": middle}, lambda id, at: at < middle),
        ({"gte": middle - little, "lt": middle + little}, lambda id, at: at == middle),
        ({"gt": middle - little, "gte": everything[0][1], "lte": middle + little}, lambda id, at: at == middle),
        ({"gt": middle, "lt": middle}, lambda id, at: False),
        ({"gte": middle, "last_id": ids[600]}, lambda id, at: at >= middle and id <= ids[600]),
        ({"first_id": 1 << 70}, lambda id, at: False),
        ({"last_id": -5, "gt": dt.datetime(2020, 1, 1), "lt": dt.datetime.max}, lambda id, at: False),
    ]
    for bounds, matches in cases:
        assert read(**bounds) == [row for row in everything if matches(*row)], str(bounds)


@pytest.mark.parametrize("table", ["backlog", "done", "failed", "entries"])
def test_bounds_of_entries_are_exact(spark: Any, known: Known, table: str) -> None:
    def read(**bounds: Any) -> list[Any]:
        rows = read_table(spark, str(known.folder), table, **bounds).collect()
        return sorted((row.queue, row.message_id, row.asDict().get("state", table)) for row in rows)

    everything = read()
    ids = sorted(id for _, id, _ in everything)
    first, last = ids[5], ids[-5]
    assert read(first_id=first, last_id=last) == [row for row in everything if first <= row[1] <= last]
    assert read(queues=["b", "c", "é, ,"]) == [row for row in everything if row[0] in ("b", "c")]
    assert read(queues={"a"}, first_id=first) == [row for row in everything if row[0] == "a" and row[1] >= first]
    assert read(queues=[]) == everything
    if table == "entries":
        settled = [row for row in everything if row[2] in ("done", "failed")]
        assert len(settled) == 80
        assert read(statuses=["done", "failed"]) == settled
        assert read(statuses=["in_flight"], queues=["nowhere"]) == []


def test_bounds_of_attempts_are_exact(spark: Any, known: Known) -> None:
    broker = EmbeddedBroker(known.folder)
    broker.report()
    broker.terminate()  # so that the log has all of them

    def read(**bounds: Any) -> list[Any]:
        frame = read_table(spark, str(known.folder), "attempts", partitions=1, **bounds)
        return sorted((row.attempt_id, row.message_id, row.ended_at, row.queue) for row in frame.collect())

    everything = read()
    assert len(everything) >= 80
    at = everything[len(everything) // 2][2]
    ids = sorted(id for _, id, _, _ in everything)
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"first_id": ids[7], "last_id": ids[30]}, lambda row: ids[7] <= row[1] <= ids[30]),
        ({"gte": at}, lambda row: row[2] >= at),
        ({"gt": at, "lte": everything[-1][2]}, lambda row: at < row[2] <= everything[-1][2]),
        ({"lt": at, "queues": ["a"]}, lambda row: row[2] < at),
        ({"queues": ["b"]}, lambda row: row[3] == "b"),
    ]
    for bounds, matches in cases:
        assert read(**bounds) == [row for row in everything if matches(row)], str(bounds)


def test_conditions_hold_for_their_own_frames_only(spark: Any, known: Known) -> None:
    frame = read_table(spark, str(known.folder), "messages", columns=["message_id", "received_at"])
    id = sorted(row.message_id for row in frame.collect())[100]
    low, high = frame.where(F.col("message_id") < id), frame.where(F.col("message_id") >= id)

    assert (frame.count(), low.count(), frame.count(), high.count(), frame.count()) == (1030, 100, 1030, 930, 1030)
    assert low.union(high).count() == 1030
    bounded = read_table(spark, str(known.folder), "messages", first_id=id)
    assert (bounded.count(), frame.count(), bounded.where("message_id is null").count()) == (930, 1030, 0)
    entries = read_table(spark, str(known.folder), "entries")
    assert entries.where("state = 'done' and queue = 'a'").count() == 50
    assert entries.where("state = 'failed'").count() == 30
    assert entries.count() > 80


def test_conditions_and_bounds_in_a_session_of_another_time_zone(spark: Any, known: Known) -> None:
    frame = read_table(spark, str(known.folder), "messages", columns=["message_id", "received_at"])
    utc = frame.agg(F.min("received_at")).collect()[0][0]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        low = frame.agg(F.min("received_at")).collect()[0][0]
        assert frame.where(F.col("received_at") >= F.lit(low)).count() == 1030
        assert frame.where(F.col("received_at") < F.lit(low)).count() == 0
        assert read_table(spark, str(known.folder), "messages", gte=utc).count() == 1030
        assert read_table(spark, str(known.folder), "messages", lt=utc).count() == 0
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_bounds_as_options(spark: Any, known: Known) -> None:
    register(spark)
    reader = spark.read.format("opendata").option("store", str(known.folder))
    assert reader.option("table", "entries").options(statuses="done, failed", queues='["a"]').load().count() == 80
    reader = spark.read.format("opendata").option("store", str(known.folder)).option("table", "messages")
    assert reader.options(gte="2020-01-01", lt="2020-01-02T00:00:00+01:00").load().count() == 0
    for name, value, what in (
        ("first_id", "x", "first_id is 'x'"),
        ("gte", "yesterday", "gte is 'yesterday'"),
        ("queues", "a", "table messages has no bound 'queues'"),
        ("queue", "a", "unknown option 'queue'"),
    ):
        options = {"store": str(known.folder), "table": "messages", name: value}
        with pytest.raises(PySparkException, match=what):
            spark.read.format("opendata").options(**options).load().collect()


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


@pytest.mark.parametrize(
    ("table", "name", "value", "what"),
    [
        ("messages", "queues", ["a"], "table messages has no bound 'queues': it has first_id, .*, lt; or use where"),
        ("messages", "statuses", ["done"], "no bound 'statuses'"),
        ("done", "gte", dt.datetime(2026, 1, 1), "table done has no bound 'gte': it has first_id, last_id, queues"),
        ("done", "statuses", ["done"], "no bound 'statuses'"),
        ("queues", "queues", ["a"], "table queues has no bound 'queues': it has none"),
        ("messages", "first_id", "5", "first_id is '5' and must be a message id"),
        ("messages", "last_id", True, "last_id is True and must be a message id"),
        ("messages", "gt", "2026-01-01", "gt is '2026-01-01' and must be a datetime"),
        ("attempts", "lt", dt.date(2026, 1, 1), "lt is .* and must be a datetime"),
        ("attempts", "queues", "a", "queues is 'a' and must be a list of names"),
        ("entries", "queues", [5], r"queues is \[5\] and must be a list of names"),
        ("entries", "statuses", ["waiting"], "no state 'waiting': choose from backlog, in_flight, done, failed"),
    ],
)
def test_bounds_that_can_not_be(spark: Any, tmp_path: Path, table: str, name: str, value: Any, what: str) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(RequestError, match=what):
        read_table(spark, str(tmp_path), table, **wrong)


def test_schemas() -> None:
    assert "payload" not in schema_of("messages")
    assert "headers map<string,string>" in schema_of("messages", "*")
    assert schema_of("done", "queue, done_at") == "queue string, done_at timestamp"
    assert set(TABLES) >= {"messages", "attempts", "queues", "backlog", "in_flight", "done", "failed"}
    with pytest.raises(RequestError):
        schema_of("nope")
