"""Frames as tasks: what arrives, exactly once, whatever happens to Spark's tasks, its driver and the broker."""

from __future__ import annotations

import datetime as dt
import enum
import importlib
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.entity import Queue
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F

from kombu_opendata.errors import NotFound, OpenDataError, PreconditionFailed, RequestError, StartError
from kombu_opendata.spark import find_job, read_table, register, submit_tasks
from kombu_opendata.spark.encode.row_encoder import task_id

from ..support.apps import routed
from ..support.broker import EmbeddedBroker
from ..support.kombu_client import connected
from ..support.processes import Children, wait_until
from ..support.served import ServedBroker
from ..support.spark import completed_tasks, taken, task_context
from ..support.users import user_table, write_users

TASK = "proj.add"


def staged(folder: Path) -> list[Path]:
    """The batch objects of a store."""
    return sorted((folder / "default.staged").rglob("*.batch*"))


def waiting(result: Any) -> int:
    """How many tasks of the job came into queues, once all are routed."""
    return sum(counts.routed for counts in result.wait_routed(timeout=60).queues.values())


def test_each_row_is_one_task_and_the_ids_are_known(spark: Any, broker_url: str) -> None:
    df = spark.range(0, 1000, numPartitions=3).select("id", (F.col("id") * 2).alias("y"))

    result = submit_tasks(df, TASK, broker_url=broker_url, args=["id"], kwargs=["y"], queue="sums")

    assert (result.rows, result.added) == (1000, True)
    assert waiting(result) == 1000
    assert result.queues["sums"].routed == 1000
    ids = list(result.ids())
    sent = taken(broker_url, "sums")
    assert [message.id for message in sent] == ids
    assert sorted(message.arguments[0][0] for message in sent) == list(range(1000))
    assert all(message.arguments[1] == {"y": 2 * message.arguments[0][0]} for message in sent)
    assert ids[0] == task_id(result.job_id, 0, 0)
    assert [tuple(row) for row in result.messages("task", "priority").distinct().collect()] == [(TASK, 0)]
    assert result.messages("*").columns[0] == "message_id"


def in_thread(call: Callable[[], Any]) -> Any:
    """What the call returns or raises in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.mark.parametrize("which", ["first", "second"])
def test_any_thread_and_any_session(spark: Any, broker_url: str, store_folder: Path, which: str) -> None:
    session = spark if which == "first" else spark.newSession()
    store = str(store_folder)

    def submit_and_read() -> Any:
        job = submit_tasks(session.range(3), TASK, broker_url=broker_url)
        return job.rows, job.messages("task").count(), read_table(session, store, "messages").count()

    assert submit_and_read() == (3, 3, 3)
    assert in_thread(submit_and_read) == (3, 3, 6)


def test_a_thread_that_has_lost_its_session(spark: Any, broker_url: str) -> None:
    def submit() -> int:
        spark._jvm.SparkSession.clearActiveSession()  # as after an error of the protocol that Python and Java talk
        return submit_tasks(spark.range(3), TASK, broker_url=broker_url).rows

    assert in_thread(submit) == 3


def test_a_job_id_counts_once_however_the_frame_is_cut(spark: Any, broker_url: str) -> None:
    first = submit_tasks(spark.range(40).repartition(3), TASK, broker_url=broker_url, job_id="nightly")
    again = submit_tasks(spark.range(40).repartition(2), TASK, broker_url=broker_url, job_id="nightly")

    assert (first.added, again.added) == (True, False)
    assert again.rows == 40
    assert waiting(again) == 40
    assert again.first_message_id == first.first_message_id
    assert list(again.ids()) == list(first.ids())
    assert len(taken(broker_url)) == 40
    assert find_job(spark, "nightly", broker_url=broker_url).rows == 40
    with pytest.raises(NotFound, match="weekly"):
        find_job(spark, "weekly", broker_url=broker_url)


def test_without_rows_and_with_empty_partitions(spark: Any, broker_url: str) -> None:
    none = submit_tasks(spark.range(0), TASK, broker_url=broker_url)
    some = submit_tasks(spark.range(3).repartition(8), TASK, broker_url=broker_url)
    skewed = submit_tasks(
        spark.range(5000).repartition(4, (F.col("id") > 4990).cast("int")), TASK, broker_url=broker_url
    )

    assert (none.rows, some.rows, skewed.rows) == (0, 3, 5000)
    assert none.wait(timeout=30).state == "settled"
    assert (list(none.ids()), none.messages().count(), none.failed().count()) == ([], 0, 0)
    assert waiting(some) == 3
    assert waiting(skewed) == 5000
    sent = taken(broker_url)
    assert [message.id for message in sent] == [*some.ids(), *skewed.ids()]


def test_columns_for_task_queue_id_and_options(spark: Any, broker_url: str) -> None:
    at = dt.datetime(2040, 1, 1, tzinfo=dt.UTC)

    class Level(enum.StrEnum):
        """Of the driver's program: executors can't import it."""

        HIGH = "high"

    rows = [("a.one", "q1", "id-1", 9, None), ("a.two", "q2", "id-2", None, None), ("a.one", "q1", "id-3", 0, at)]
    df = spark.createDataFrame(rows, "task string, queue string, name string, priority int, at timestamp")

    result = submit_tasks(
        df.coalesce(1),
        F.col("task"),
        broker_url=broker_url,
        queue=F.col("queue"),
        task_id="name",
        priority=F.col("priority"),
        eta=F.col("at"),
        kwargs={"text": F.lit("constant"), "constant": [1, 2.5, {"x": (Level.HIGH, 2**70)}], "name": "name"},
        headers={"tenant": "t", "who": F.upper("name")},
        properties={"reply_to": "results"},
        serializer="msgspec",
    )

    assert waiting(result) == 3
    assert list(result.ids()) == ["id-1", "id-2", "id-3"]
    (one,), (two,) = taken(broker_url, "q1"), taken(broker_url, "q2")
    assert (one.headers["task"], two.headers["task"]) == ("a.one", "a.two")
    assert one.arguments == (
        [],
        {
            "text": "constant",
            "constant": [1, 2.5, {"x": ["high", 2**70]}],
            "name": "id-1",
        },
    )
    assert (one.headers["tenant"], one.headers["who"]) == ("t", "ID-1")
    assert (one.properties["priority"], two.properties["priority"]) == (9, 0)
    assert one.properties["reply_to"] == "results"
    assert result.queues["q1"].waiting == 1  # the one that is due in 2040


@pytest.mark.parametrize("where", ["driver", "executors"])
def test_an_apps_routing_on_the_driver_and_on_the_executors(
    spark: Any, broker_url: str, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(routed.app.conf, "broker_url", broker_url)
    app = routed.app if where == "driver" else "tests.support.apps.routed:app"
    df = spark.createDataFrame([("a.x", 1), ("b.x", 2), ("c.x", 3), ("a.y", 4)], "task string, n int")

    submit_tasks(df, F.col("task"), app=app, args=["n"]).wait_routed(timeout=60)

    found = {
        queue: sorted(m.arguments[0][0] for m in taken(broker_url, queue)) for queue in ("alpha", "beta", "celery")
    }
    assert found == {"alpha": [1, 4], "beta": [2], "celery": [3]}


def test_a_row_that_can_not_be_sent_fails_the_job_with_its_place(
    spark: Any, broker_url: str, store_folder: Path
) -> None:
    df = spark.range(0, 1000, numPartitions=2).select("id", F.when(F.col("id") != 777, "proj.add").alias("task"))

    with pytest.raises(PySparkException, match="row 277 of partition 1 can't be sent: column 'task' is null: it must"):
        submit_tasks(df, F.col("task"), broker_url=broker_url, args=["id"], job_id="wrong")

    with pytest.raises(NotFound):
        find_job(spark, "wrong", broker_url=broker_url)
    assert taken(broker_url) == []
    right = submit_tasks(df.na.fill("proj.add"), F.col("task"), broker_url=broker_url, args=["id"], job_id="wrong")
    assert (right.rows, right.added) == (1000, True)


def test_a_message_over_the_brokers_limit_is_named(
    spark: Any, started: Children, store_folder: Path, tmp_path: Path
) -> None:
    options = ("--store", f"file://{store_folder}", "--listen", "tcp:127.0.0.1:0", "--max-message-bytes", "100000")
    broker = ServedBroker(tmp_path, *options)
    started.add(broker)
    df = spark.range(0, 4, numPartitions=1).select(F.expr("if(id = 2, repeat('x', 100000), 'y')").alias("text"))

    with pytest.raises(PySparkException, match="row 2 of partition 0: the message has 10"):
        submit_tasks(df, TASK, broker_url=f"opendata://127.0.0.1:{broker.port}")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"kwargs": ["nope"]}, "no column 'nope'"),
        ({"eta": F.col}, r"column 'id' \(eta\) is int64 and must be a timestamp"),
        ({"priority": F.lit}, r"column .*id.* \(priority\) is string and must be a whole number"),
        ({"kwargs": {"x": "interval"}}, r"column 'interval' \(kwargs\[x\]\) can't be an argument with the"),
        ({"serializer": "nope"}, "nope"),
        ({"jobid": "nightly"}, "no option .jobid.: do you mean .job_id."),
        ({"broker_url": "redis://host"}, "redis"),
        ({"app": "nowhere:app", "broker_url": None}, "nowhere:app"),
        ({"broker_url": None}, "either broker_url or app"),
        ({"broker_url": "opendata:///proc/nowhere"}, "/proc/nowhere"),
        ({"broker_url": "opendata+memory://none"}, "in memory"),
        ({"args": "id"}, r"write args=\['id'\]"),
        ({"kwargs": "id"}, r"write kwargs=\['id'\]"),
        ({"queue": 5}, "queue is 5 and must be a text"),
        ({"job_id": 5}, "job_id is 5 and must be a text"),
        ({"headers": ["x"]}, "headers is .* must be a mapping of names to values"),
        ({"countdown": F.col}, "countdown can't be a column.*write eta="),
        ({"task_id": 5}, "task_id is 5 and must be a text"),
        ({"headers": {5: "x"}}, "headers has the name 5, which must be a text"),
        ({"args": None, "kwargs": {5: "id"}}, "kwargs has the name 5, which must be a text"),
        ({"priority": 300}, "priority 300 is not a number from 0 to 255"),
        ({"producer": None}, "'producer' can't be among the options of apply_async"),
        ({"app": 5, "broker_url": None}, "app is 5 and must be a Celery app"),
        ({"args": [{1, 2}]}, r"args\[0\] can't be an argument with the serializer 'json'"),
        ({"kwargs": {"x": object}}, r"kwargs\[x\] can't be an argument with the serializer 'json'"),
        ({"kwargs": {"x": threading.Lock()}, "serializer": "pickle"}, r"kwargs\[x\] is .*, which can't be pickled"),
        ({"eta": "tomorrow"}, "eta is 'tomorrow' and must be a datetime"),
        ({"queue": "limited"}, "queue 'limited' exists with x-max-length=5"),
        ({"compression": "bzip3"}, "no compression 'bzip3': choose from .*application/x-bz2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arguments_that_can_not_be(spark: Any, broker_url: str, arguments: dict[str, Any], what: str) -> None:
    df = spark.range(1).withColumn("interval", F.expr("interval '1 02:00:00' day to second"))
    if "queue" in arguments:
        with connected(broker_url) as connection:
            Queue("limited", queue_arguments={"x-max-length": 5})(connection.default_channel).declare()
    given = {name: value("id") if callable(value) else value for name, value in arguments.items()}

    with pytest.raises(OpenDataError, match=what):
        submit_tasks(df, TASK, **{"broker_url": broker_url, "args": ["id"], **given})


def test_a_task_that_has_no_name(spark: Any, broker_url: str) -> None:
    wrong: list[Any] = ["", None, 5]
    for task in wrong:
        with pytest.raises(RequestError, match=r"task is .* must be a task's name"):
            submit_tasks(spark.range(1), task, broker_url=broker_url)
    with pytest.raises(RequestError, match=r"write 'celery\.chord_unlock'"):
        submit_tasks(spark.range(1), routed.app.tasks["celery.chord_unlock"], broker_url=broker_url)
    assert taken(broker_url) == []


def test_the_format_by_itself(spark: Any, broker_url: str) -> None:
    register(spark)
    df = spark.range(5).select("id", F.lit("x").alias("text"))
    writer = df.write.format("opendata").option("broker_url", broker_url).option("task", TASK)

    writer.option("options", '{"priority": 3}').option("job_id", "by-format").mode("append").save()

    assert waiting(find_job(spark, "by-format", broker_url=broker_url)) == 5
    sent = taken(broker_url)
    assert sorted(message.arguments[1]["id"] for message in sent) == list(range(5))
    assert {message.properties["priority"] for message in sent} == {3}
    for options, what in (
        ({"tsk": "x"}, "unknown option 'tsk'"),
        ({"task_column": "id"}, "task and task_column"),
        ({"kwargs": "{"}, "kwargs must be a JSON object that maps names to columns: .* truncated"),
        ({"args": "id,nope"}, "no column 'nope'"),
        ({"kwargs": '{"id": 5}'}, "kwargs must be a JSON object that maps names to columns"),
        ({"header_columns": '{"h": 5}'}, "header_columns must be a JSON object that maps names to columns"),
        ({"options": '{"args": [1]}'}, "'args' can't be among the options of apply_async"),
        ({"options": '{"task_id": "zz"}'}, "'task_id' can't be among the options of apply_async"),
        ({"options": '{"priority": 300}'}, "priority 300 is not a number"),
    ):
        with pytest.raises(PySparkException, match=what):
            df.write.format("opendata").options(broker_url=broker_url, task=TASK, **options).mode("append").save()
    with pytest.raises(PySparkException, match=r'mode\("append"\)'):
        writer.mode("overwrite").save()


def test_another_python_than_the_drivers(spark: Any, broker_url: str, bare_python: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(bare_python))
        for call in (
            lambda: submit_tasks(spark.range(1), TASK, broker_url=broker_url),
            lambda: read_table(spark, str(tmp_path), "messages"),
            lambda: register(spark),
        ):
            with pytest.raises(StartError, match=f"set PYSPARK_PYTHON={re.escape(sys.executable)} before the session"):
                call()


def test_tables_of_sparks_catalog(spark: Any, broker_url: str, store_folder: Path) -> None:
    submit_tasks(spark.range(3), TASK, broker_url=broker_url).wait_routed(60)
    options = f"OPTIONS (table 'messages', store '{store_folder}')"
    register(spark)

    with pytest.raises(PySparkException, match=r"can't be of this format: .*write CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE odq_messages USING opendata {options}")
    assert not spark.catalog.tableExists("odq_messages")
    with pytest.raises(PySparkException, match=r"a table of Spark's catalog can't take tasks: .*call submit_tasks"):
        spark.sql("CREATE TABLE odq_tasks USING opendata OPTIONS (task 'x') AS SELECT 1 AS id")
    assert not spark.catalog.tableExists("odq_tasks")

    spark.sql(f"CREATE TEMPORARY VIEW odq_view USING opendata {options}")
    assert spark.sql("SELECT count(*) FROM odq_view").collect()[0][0] == 3
    spark.catalog.dropTempView("odq_view")
    spark.sql(f"CREATE TABLE odq_columns (message_id long) USING opendata {options}")
    try:  # Spark asks no source about a table with columns, before it is read
        with pytest.raises(PySparkException, match=r"drop it: .*write CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM odq_columns").collect()
    finally:
        spark.sql("DROP TABLE odq_columns")


def test_paths_of_the_format(spark: Any, broker_url: str, store_folder: Path) -> None:
    submit_tasks(spark.range(3), TASK, broker_url=broker_url).wait_routed(60)
    register(spark)
    reader = spark.read.format("opendata").option("table", "messages")

    assert reader.load(str(store_folder)).count() == 3
    with pytest.raises(PySparkException, match="load names the store '/other' and the option store"):
        reader.option("store", str(store_folder)).load("/other").count()
    writer = spark.range(1).write.format("opendata").options(broker_url=broker_url, task=TASK).mode("append")
    with pytest.raises(PySparkException, match=r"not to the path '/nowhere': write save\(\) or start\(\) without it"):
        writer.save("/nowhere")


def test_a_broker_over_tcp_with_a_user(
    spark: Any, started: Children, store_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    users = tmp_path / "users.txt"
    write_users(users, user_table("app", "h0rse-battery"))
    options = ("--store", f"file://{store_folder}", "--listen", "tcp:127.0.0.1:0", "--users", str(users))
    broker = ServedBroker(tmp_path, *options, "--instance", "jobs")
    started.add(broker)
    url = f"opendata://app:h0rse-battery@127.0.0.1:{broker.port}/jobs"

    result = submit_tasks(spark.range(5000).coalesce(2), TASK, broker_url=url, job_id="tcp")

    assert waiting(result) == 5000
    assert result.messages("message_id").count() == 5000
    assert len(list(result.ids())) == 5000
    assert "h0rse" not in repr(result) + str(vars(result)) + "".join(capfd.readouterr())
    with pytest.raises(OpenDataError):
        submit_tasks(spark.range(5), TASK, broker_url=url.replace("h0rse", "wrong"), job_id="no")


def test_a_refused_commit_is_one_line(spark: Any, broker_url: str) -> None:
    """Which queues a column names is not known before the rows are read."""
    with connected(broker_url) as connection:
        Queue("limited", queue_arguments={"x-max-length": 5})(connection.default_channel).declare()
    with pytest.raises(PreconditionFailed) as caught:
        submit_tasks(spark.range(3), TASK, broker_url=broker_url, queue=F.lit("limited"), args=["id"], job_id="no")
    assert str(caught.value).startswith("queue 'limited' exists with x-max-length=5, declared again without")
    assert "\n" not in str(caught.value)
    with pytest.raises(NotFound):
        find_job(spark, "no", broker_url=broker_url)


# ---------------------------------------------------------------------- what goes wrong
def test_a_task_that_is_killed_half_way_leaves_no_trace(
    spark: Any, broker_url: str, store_folder: Path, tmp_path: Path
) -> None:
    marker = str(tmp_path / "killed")

    def kill_once(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            context = task_context()
            if context.partitionId() == 1 and number == 2 and not os.path.exists(marker):
                Path(marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    try:
        df = spark.range(0, 6000, numPartitions=2).mapInArrow(kill_once, "id long")
        result = submit_tasks(df, TASK, broker_url=broker_url, args=["id"])
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert os.path.exists(marker)
    assert waiting(result) == result.rows == 6000
    runs = Counter(message.arguments[0][0] for message in taken(broker_url))
    assert runs == Counter(range(6000))


def test_a_task_that_fails_each_time_fails_the_job(
    spark: Any, broker_url: str, store_folder: Path, tmp_path: Path
) -> None:
    """Spark's driver takes away what the tasks that ended well have staged. It does not hear of a task that was
    still at work when the job failed: the maintenance collects what that one leaves (``tests/integration/staging``)."""
    other_ended = tmp_path / "other-ended"

    def fail(batches: Any) -> Any:
        for batch in batches:
            yield batch
            if task_context().partitionId() == 1:
                wait_until(other_ended.exists, 300, "the other task")
                raise ValueError("injected")

    def watch() -> None:
        wait_until(lambda: completed_tasks(spark), 300, "the task that does not fail")
        other_ended.touch()

    df = spark.range(0, 6000, numPartitions=2).mapInArrow(fail, "id long")
    watcher = threading.Thread(target=watch)
    watcher.start()
    with pytest.raises(PySparkException, match="injected"):
        submit_tasks(df, TASK, broker_url=broker_url, args=["id"], job_id="doomed")
    watcher.join()

    assert taken(broker_url) == []
    with pytest.raises(NotFound):
        find_job(spark, "doomed", broker_url=broker_url)
    assert staged(store_folder) == []


def test_the_broker_is_killed_just_before_the_commit(spark: Any, broker_url: str, store_folder: Path) -> None:
    submit_tasks(spark.range(1), TASK, broker_url=broker_url, queue="warm-up")
    pid = EmbeddedBroker(store_folder).wait_up()

    def kill_broker(batches: Any) -> Any:
        yield from batches
        if task_context().partitionId() == 1:
            os.kill(pid, signal.SIGKILL)

    df = spark.range(0, 3000, numPartitions=2).mapInArrow(kill_broker, "id long")
    result = submit_tasks(df, TASK, broker_url=broker_url, args=["id"])

    assert EmbeddedBroker(store_folder).wait_up() != pid
    assert waiting(result) == result.rows == 3000
    assert Counter(message.arguments[0][0] for message in taken(broker_url)) == Counter(range(3000))


def test_empty_arrays_and_maps_of_no_type(spark: Any, broker_url: str) -> None:
    empty: dict[str, Any] = {
        "array()": [],
        "map()": {},
        "array(null)": [None],
        "array(array())": [[]],
        "map('a', array(map()))": {"a": [{}]},
        "named_struct('x', array(), 'y', null)": {"x": [], "y": None},
    }
    columns = {name: F.expr(name) for name in empty}
    submit_tasks(
        spark.range(1), TASK, broker_url=broker_url, kwargs=columns, headers={"tags": F.expr("array()")}
    ).wait_routed(timeout=60)
    (message,) = taken(broker_url)
    assert (message.arguments[1], message.headers["tags"]) == (empty, [])

    register(spark)
    writer = spark.range(1).selectExpr("array() as `of none`").write.format("opendata").mode("append")
    with pytest.raises(PySparkException, match="column 'of none' can't be an argument: array<void>"):
        writer.options(broker_url=broker_url, task=TASK).save()


def test_a_type_that_pickles_only(spark: Any, broker_url: str) -> None:
    df = spark.createDataFrame([(Decimal("1.50"),)], "d decimal(10,2)")
    result = submit_tasks(df, TASK, broker_url=broker_url, args=["d"], serializer="pickle")
    assert waiting(result) == 1
    (message,) = taken(broker_url)
    assert message.arguments[0] == [Decimal("1.50")]


@pytest.mark.parametrize("rows", [30, 3000])
def test_a_job_for_a_full_queue_is_there_and_says_what_it_waits_for(spark: Any, broker_url: str, rows: int) -> None:
    app = Celery("full", broker=broker_url, set_as_current=False)
    app.conf.task_queues = [Queue("small", queue_arguments={"x-max-length": 20, "x-overflow": "reject-publish"})]

    result = submit_tasks(spark.range(rows), TASK, app=app, queue="small")

    assert result.added
    with pytest.raises(TimeoutError, match=rf"{rows} tasks have not ended; queue 'small' is full \(its maximum is 20"):
        result.wait(timeout=2)
    assert len(taken(broker_url, "small")) >= 20


@pytest.mark.parametrize(
    ("frame", "arguments", "text"),
    [
        (lambda spark: spark.range(1).selectExpr("id a", "id a"), dict, "several columns are named 'a': a, a"),
        (lambda spark: spark.range(1).selectExpr("id a", "id A"), dict, "several columns are named 'a': a, A"),
        (
            lambda _spark: importlib.import_module("pandas").DataFrame({"a": [1]}),
            dict,
            "df is a pandas.DataFrame .*: write spark.createDataFrame",
        ),
        (lambda spark: spark.readStream.format("rate").load(), dict, "df is a streaming frame: call stream_tasks"),
        (
            lambda spark: spark.range(1),
            lambda: {"kwargs": {"day": "2026-11-21"}},
            r'constant text is F.lit\("2026-11-21"\)',
        ),
        (
            lambda spark: spark.range(3),
            lambda: {"args": [F.sum("id")]},
            "an argument aggregates rows: group the frame first",
        ),
        (lambda spark: spark.range(3), lambda: {"kwargs": {"n": F.count("*") + 1}}, "an argument aggregates rows"),
        (
            lambda spark: spark.range(3).withColumn("xs", F.array("id")),
            lambda: {"args": ["id", F.explode_outer("xs")]},
            "an argument makes several rows of each: make them first",
        ),
        (lambda spark: spark.range(3), lambda: {"args": [F.col("no")]}, "Spark refuses a column: .*`no` cannot be"),
        (lambda spark: spark.range(3).select(), dict, r"df has no columns: write args=\[\]"),
        (
            lambda spark: spark.range(3),
            lambda: {"properties": {"replyTo": "x"}},
            "no property 'replyTo': do you mean 'reply_to'",
        ),
        (lambda spark: spark.range(3), lambda: {"if_exists": "ok"}, "if_exists is 'ok' and must be 'error_if_diff"),
        (lambda spark: spark.range(3), lambda: {"rate_limit": 0}, "rate_limit is 0 and must be a number above 0"),
        (lambda spark: spark.range(3), lambda: {"rate_limit": "9"}, "rate_limit is '9' and must be a number above"),
        (lambda spark: spark.range(3), lambda: {"on_complete": print}, "on_complete is <.*a task's name, or the"),
        (
            lambda spark: spark.range(3),
            lambda: {"on_complete": Celery(set_as_current=False).signature("t", [{1}], app=None, immutable=True)},
            r"args\[0\] can't be an argument with the serializer 'json'",
        ),
        (
            lambda spark: spark.range(3),
            lambda: {"duplicates": "all"},
            "duplicates is 'all' and must be 'error' or 'first'",
        ),
        (
            lambda spark: spark.range(6).selectExpr("cast(id % 2 as string) tid", "id"),
            lambda: {"task_id": "tid"},
            'rows have the task id .*send one of them by duplicates="first"',
        ),
    ],
)
def test_the_driver_refuses_in_one_line(
    spark: Any, broker_url: str, frame: Callable[[Any], Any], arguments: Callable[[], dict[str, Any]], text: str
) -> None:
    with pytest.raises(RequestError, match=text) as caught:
        submit_tasks(frame(spark), TASK, broker_url=broker_url, job_id="refused", **arguments())
    assert "\n" not in str(caught.value)
    with pytest.raises(NotFound):
        find_job(spark, "refused", broker_url=broker_url)


def test_windows_and_frames_without_columns(spark: Any, broker_url: str) -> None:
    """A window function keeps the number of rows, unlike an aggregate."""
    number = F.row_number().over(Window.orderBy(F.desc("id")))
    submit_tasks(spark.range(3), TASK, broker_url=broker_url, args=["id", number]).wait_routed(60)
    assert sorted(message.arguments[0] for message in taken(broker_url)) == [[0, 3], [1, 2], [2, 1]]
    submit_tasks(spark.range(2).select(), TASK, broker_url=broker_url, args=[]).wait_routed(60)
    assert [message.arguments for message in taken(broker_url)] == [([], {})] * 2


def test_columns_of_a_frame_that_no_argument_names_may_be_alike(spark: Any, broker_url: str) -> None:
    frame = spark.range(3).selectExpr("id", "id a", "id A")
    assert submit_tasks(frame, TASK, broker_url=broker_url, args=["id"]).rows == 3


def test_one_row_of_each_task_id_is_sent(spark: Any, broker_url: str) -> None:
    frame = spark.range(6).selectExpr("cast(id % 2 as string) tid", "id")
    result = submit_tasks(frame, TASK, broker_url=broker_url, task_id="tid", duplicates="first", queue="once")
    assert waiting(result) == 2
    assert sorted(message.id for message in taken(broker_url, "once")) == ["0", "1"]
