"""Rows that can't be sent are left out, and are a frame: where they are, what is wrong, and nothing else is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from kombu_opendata.spark import find_job, stream_tasks, submit_tasks
from kombu_opendata.spark.encode.plan import ColumnNames, JobPlan
from kombu_opendata.spark.encode.row_encoder import BadRow, RowEncoder, task_id

from ...support.processes import Children
from ...support.served import ServedBroker
from ...support.spark import taken, task_context

TASK = "proj.add"


# ---------------------------------------------------------------------- encoding; without Spark
def encode(table: pa.Table, columns: ColumnNames, max_bytes: int = 1 << 20) -> tuple[list[bytes], list[BadRow]]:
    plan = JobPlan(columns, task=TASK, sources={"p": "price"})
    plan.check_columns(table.schema, {})
    plan.template((TASK, ""))
    bad: list[BadRow] = []
    encoder = RowEncoder(plan, "job", 3, lambda: 0, max_bytes, bad.append)
    envelopes: list[bytes] = []
    for batch in table.to_batches():
        for messages in encoder.encode(batch):
            envelopes += messages.envelopes
    return envelopes, bad


@pytest.mark.parametrize(
    "wrong", [{0}, {19_999}, {8191, 8192}, {5, 6, 7, 12_000}, set(range(100, 200)), set()], ids=str
)
def test_the_other_rows_are_those_of_a_frame_without_bad_ones(wrong: set[int]) -> None:
    columns = ColumnNames(args=("n",), priority="p")
    numbers = list(range(20_000))
    good = pa.table({"n": numbers, "p": [3] * 20_000})
    mixed = pa.table({"n": numbers, "p": [300 if number in wrong else 3 for number in numbers]})
    whole, none = encode(good, columns)

    envelopes, bad = encode(mixed, columns)

    assert none == []
    assert envelopes == [envelope for number, envelope in enumerate(whole) if number not in wrong]
    assert [(row.partition, row.row, row.task_id) for row in bad] == [
        (3, number, task_id("job", 3, number)) for number in sorted(wrong)
    ]
    for row in bad:
        assert (row.column, row.value) == ("column 'price' (p)", "300")
        assert row.reason == "priority 300 is not a number from 0 to 255"
        assert row.arguments == {"n": str(row.row), "price": "300"}


def test_texts_that_are_not_utf8() -> None:
    """Spark's strings have any bytes: ``cast(X'ff' as string)``."""
    offsets, data = pa.array([0, 1, 3, 4], pa.int32()).buffers()[1], pa.py_buffer(b"a\xffAb")
    texts = pa.StringArray.from_buffers(3, offsets, data)
    for columns, table in (
        (ColumnNames(args=("t",)), pa.table({"t": texts})),
        (ColumnNames(args=("t",)), pa.table({"t": pa.ListArray.from_arrays([0, 1, 2, 3], texts)})),
        (ColumnNames(headers={"h": "t"}), pa.table({"t": texts})),
        (ColumnNames(task="t"), pa.table({"t": texts})),
        (ColumnNames(task_id="t", args=("n",)), pa.table({"t": texts, "n": [1, 2, 3]})),
    ):
        envelopes, bad = encode(table, columns)
        assert (len(envelopes), [row.row for row in bad]) == (2, [1])
        assert (bad[0].column, "UTF" in bad[0].reason.upper()) == ("column 't'", True)
        assert "\ufffdA" in bad[0].value == bad[0].arguments["t"]
        assert (bad[0].task_id is None) == (columns.task_id is not None)


def test_messages_and_headers_that_a_batch_refuses() -> None:
    table = pa.table({"text": ["a", "b" * 5000, "c"], "tenant": ["x", "y", "z" * 70_000]})
    envelopes, bad = encode(table, ColumnNames(args=("text",), headers={"tenant": "tenant"}), 100_000)
    assert len(envelopes) == 2 - (len(bad) - 1)
    assert [(row.row, row.column, row.reason) for row in bad] == [(2, "", "the header 'tenant' has over 65535 bytes")]
    _envelopes, bad = encode(table, ColumnNames(args=("text",)), 5000)
    (row,) = bad
    assert (row.row, row.reason.endswith("bytes and the broker's limit is 5000")) == (1, True)
    assert row.arguments["text"] == f"'{'b' * 99}…"


# ---------------------------------------------------------------------- with Spark
def test_bad_rows_of_a_job(spark: Any, broker_url: str, store_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    df = spark.range(0, 2000, 1, 2).select("id", F.when(F.expr("id % 500 != 7"), 3).otherwise(900).alias("weight"))

    def submit(**arguments: Any) -> Any:
        arguments = {"args": ["id"], "priority": F.col("weight"), "job_id": "day", **arguments}
        return submit_tasks(df, TASK, broker_url=broker_url, **arguments)

    with pytest.raises(
        PySparkException, match=r"row 7 of partition . can't be sent: column 'weight' \(priority\) is 900"
    ):
        submit()
    job = submit(bad_rows="collect")

    assert (job.rows, job.added) == (1996, True)
    assert "4 rows of job 'day' can't be sent: see bad_rows()" in caplog.text
    found = sorted(job.bad_rows().collect(), key=lambda row: (row.partition, row.row))
    assert [(row.partition, row.row) for row in found] == [(0, 7), (0, 507), (1, 7), (1, 507)]
    assert {(row.column, row.value) for row in found} == {("column 'weight' (priority)", "900")}
    assert [row.arguments["id"] for row in found] == ["7", "507", "1007", "1507"]
    assert job.bad_rows().where("reason like '%0 to 255%'").select("task_id").count() == 4
    job.wait_routed(60)
    sent = taken(broker_url)
    assert sorted(message.arguments[0][0] for message in sent) == [id for id in range(2000) if id % 500 != 7]
    assert sorted(job.ids()) == sorted(message.id for message in sent)
    assert not {row.task_id for row in found} & {message.id for message in sent}
    assert not submit(bad_rows="collect").added
    assert find_job(spark, "day", broker_url=broker_url).bad_rows().count() == 4


def test_a_job_of_bad_rows_only_and_one_without_any(spark: Any, broker_url: str) -> None:
    none = submit_tasks(
        spark.range(5), TASK, broker_url=broker_url, args=["id"], queue=F.lit(None).cast("string"), bad_rows="collect"
    )
    assert (none.rows, none.bad_rows().count()) == (0, 5)
    assert none.wait(timeout=60).has_ended
    good = submit_tasks(spark.range(5), TASK, broker_url=broker_url, args=["id"], bad_rows="collect")
    assert (good.rows, good.bad_rows().count(), len(list(good.ids()))) == (5, 0, 5)
    assert good.bad_rows().columns == ["partition", "row", "task_id", "column", "value", "reason", "arguments"]


def test_each_row_without_a_task_id_is_a_bad_one(spark: Any, broker_url: str) -> None:
    """Also where of the rows with one id only one is sent."""
    frame = spark.sql("select * from values ('a', 1), ('a', 2), (null, 3), (null, 4) rows(tid, n)")
    arguments: dict[str, Any] = {"broker_url": broker_url, "task_id": "tid", "bad_rows": "collect", "job_id": "day"}
    job = submit_tasks(frame, TASK, duplicates="first", **arguments)
    assert (job.rows, sorted(row.arguments["n"] for row in job.bad_rows().collect())) == (1, ["3", "4"])
    assert not submit_tasks(frame, TASK, duplicates="first", **arguments).added


def test_bad_rows_of_an_attempt_that_failed_count_once(spark: Any, broker_url: str, tmp_path: Path) -> None:
    """The first attempt of a partition has written its bad rows, and then fails."""
    marker = str(tmp_path / "failed")

    def fail_once(batches: Any) -> Any:
        yield from batches
        if task_context().partitionId() == 1 and not Path(marker).exists():
            Path(marker).touch()
            raise ValueError("injected")

    df = spark.range(0, 40, 1, 2).mapInArrow(fail_once, "id long")
    job = submit_tasks(
        df, TASK, broker_url=broker_url, args=["id"], queue=F.expr("if(id % 10 = 3, null, 'q')"), bad_rows="collect"
    )
    assert Path(marker).exists()
    assert (job.rows, job.bad_rows().count()) == (36, 4)


def test_an_app_that_executors_lack_is_no_bad_row(
    spark: Any, broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"from celery import Celery\n\napp = Celery(broker={broker_url!r}, set_as_current=False)\n"
    (tmp_path / "on_the_driver.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PySparkException, match="No module named 'on_the_driver'"):
        submit_tasks(spark.range(3), F.lit(TASK), app="on_the_driver:app", args=["id"], bad_rows="collect")


def test_a_message_over_the_limit(spark: Any, started: Children, store_folder: Path, tmp_path: Path) -> None:
    options = ("--store", f"file://{store_folder}", "--listen", "tcp:127.0.0.1:0", "--max-message-bytes", "100000")
    broker = ServedBroker(tmp_path, *options)
    started.add(broker)
    df = spark.range(0, 4, 1, 1).select(F.expr("if(id = 2, repeat('x', 100000), 'y')").alias("text"))
    job = submit_tasks(df, TASK, broker_url=f"opendata://127.0.0.1:{broker.port}", bad_rows="collect")
    (row,) = job.bad_rows().collect()
    assert (job.rows, row.row, row.column) == (3, 2, "")
    assert row.reason.startswith("the message has 10")


def test_bad_rows_of_a_stream(spark: Any, broker_url: str, tmp_path: Path) -> None:
    source = tmp_path / "rows"
    source.mkdir()
    (source / "1.json").write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    rows = spark.readStream.schema("n long").json(str(source))
    writer = stream_tasks(
        rows, TASK, broker_url=broker_url, args=["n"], queue=F.expr("if(n = 2, null, 'q')"), bad_rows="collect"
    )
    query = writer.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start()
    query.awaitTermination(600)
    assert query.exception() is None
    job = find_job(spark, f"{query.id}/0", broker_url=broker_url)
    assert (job.rows, [row.arguments["n"] for row in job.bad_rows().collect()]) == (2, ["2"])
