"""The export of attempts: each once, in increments, also after a run that was killed between its two writes."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.spark import export_history, read_table, submit_tasks
from kombu_opendata.spark.history_export import RUN, HistoryExport

from ..support.spark import taken


def run_tasks(spark: Any, url: str, count: int) -> None:
    submit_tasks(spark.range(count), "proj.add", broker_url=url, args=["id"]).wait_routed(timeout=60)
    assert len(taken(url)) == count


def test_each_attempt_is_exported_once(spark: Any, broker_url: str, store_folder: Path, tmp_path: Path) -> None:
    store, path = str(store_folder), str(tmp_path / "history")
    run_tasks(spark, broker_url, 10)
    first = export_history(spark, store, path)
    assert (first.rows, first.missing) == (10, 0)
    assert export_history(spark, store, path) == HistoryExport(0, first.last_attempt_id, 0)
    run_tasks(spark, broker_url, 7)
    shutil.copytree(path, f"{path}-before")
    second = export_history(spark, store, path)
    assert (second.rows, second.missing) == (7, 0)

    # as after a kill between the attempts and the record of the run
    shutil.rmtree(f"{path}/_exported")
    shutil.copytree(f"{path}-before/_exported", f"{path}/_exported")
    run_tasks(spark, broker_url, 3)
    third = export_history(spark, store, path)

    assert (third.rows, third.missing) == (10, 0)
    exported = spark.read.parquet(path)
    attempts = read_table(spark, store, "attempts", columns=["attempt_id", "message_id", "task", "outcome"])
    rows = exported.select(*attempts.columns)
    assert sorted(map(tuple, rows.collect())) == sorted(map(tuple, attempts.collect()))
    assert rows.count() == 20
    assert abs(exported.first().day - datetime.now(UTC).date()).days <= 1
    assert isinstance(exported.first().day, date)


def test_attempts_that_are_gone_are_reported(
    spark: Any, broker_url: str, store_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, path = str(store_folder), str(tmp_path / "history")
    run_tasks(spark, broker_url, 5)
    first = export_history(spark, store, path)
    # as if the run before had ended earlier, and retention had deleted what came next
    shutil.rmtree(path)
    write_run(spark, path, first.last_attempt_id - 9, datetime.fromtimestamp(0, UTC))

    assert export_history(spark, store, path) == HistoryExport(5, first.last_attempt_id, 4)
    assert "4 attempts were deleted before they were exported" in caplog.text


def test_attempts_from_before_the_clock_was_set_back(
    spark: Any, broker_url: str, store_folder: Path, tmp_path: Path
) -> None:
    """The run before ended with an attempt whose time is later than that of the next ones."""
    store, path = str(store_folder), str(tmp_path / "history")
    run_tasks(spark, broker_url, 5)
    now = datetime.now(UTC)
    run_tasks(spark, broker_url, 7)
    write_run(spark, path, 1, now + timedelta(hours=1))

    assert export_history(spark, store, path) == HistoryExport(10, 11, 0)
    assert spark.read.parquet(path).count() == 10


def write_run(spark: Any, path: str, last_attempt_id: int, ended_at: datetime) -> None:
    """Write the record of a run."""
    row = (last_attempt_id, 1, 0, int(1000 * ended_at.timestamp()))
    spark.createDataFrame([row], RUN).write.json(f"{path}/_exported")
