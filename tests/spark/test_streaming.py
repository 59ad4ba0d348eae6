"""Streams of rows as tasks: each micro-batch once, over restarts from the checkpoint."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import kombu_opendata
from kombu_opendata.errors import NotFound, RequestError
from kombu_opendata.spark import find_job, read_table, stream_tasks

from ..support.processes import wait_until
from ..support.spark import taken


def write_rows(folder: Path, name: str, numbers: range) -> None:
    """A file of rows that the stream finds."""
    folder.mkdir(exist_ok=True)
    part = folder / f".{name}"
    part.write_text("".join(f'{{"n": {number}}}\n' for number in numbers))
    part.rename(folder / name)


def run(spark: Any, source: Path, checkpoint: Path, url: str, **arguments: Any) -> str:
    """Take what is there as micro-batches of one file each; returns the query's id."""
    rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(source))
    writer = stream_tasks(rows, "proj.event", broker_url=url, args=["n"], **arguments)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(600)
    assert not query.isActive
    assert query.exception() is None
    return str(query.id)


def last_commit(checkpoint: Path) -> Path:
    return max(
        (file for file in (checkpoint / "commits").iterdir() if file.name.isdecimal()), key=lambda f: int(f.name)
    )


def test_a_restart_from_the_checkpoint_sends_nothing_twice(spark: Any, broker_url: str, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    write_rows(source, "1.json", range(10))
    write_rows(source, "2.json", range(10, 30))
    query = run(spark, source, checkpoint, broker_url)
    assert find_job(spark, f"{query}/0", broker_url=broker_url).rows == 10

    # as after a crash between the broker's commit and Spark's: the batch is sent again
    done = last_commit(checkpoint)
    done.unlink()
    done.with_name(f".{done.name}.crc").unlink(missing_ok=True)
    write_rows(source, "3.json", range(30, 35))
    assert run(spark, source, checkpoint, broker_url) == query

    last = find_job(spark, f"{query}/2", broker_url=broker_url)
    last.wait_routed(timeout=120)
    assert Counter(sent.arguments[0][0] for sent in taken(broker_url)) == Counter(range(35))


def test_a_query_that_is_stopped_in_each_of_its_micro_batches(spark: Any, broker_url: str, tmp_path: Path) -> None:
    """When Spark has planned it, or when the broker has its job. The next start continues with it."""
    source, checkpoint, restarts = tmp_path / "rows", tmp_path / "checkpoint", 20
    for number in range(restarts + 1):
        write_rows(source, f"{number}.json", range(10 * number, 10 * number + 10))
    ids = set()
    for number in range(restarts):
        rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(str(source))
        writer = stream_tasks(rows, "proj.event", broker_url=broker_url, args=["n"])
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        wait_until((checkpoint / "offsets" / str(number)).exists, 120, lambda: repr(query.exception()))  # noqa: B023
        if number % 2:
            wait_until(lambda: is_known(f"{query.id}/{number}", broker_url), 120, lambda: repr(query.exception()))  # noqa: B023
        query.stop()
        ids.add(query.id)

    assert ids == {run(spark, source, checkpoint, broker_url)}
    find_job(spark, f"{query.id}/{restarts}", broker_url=broker_url).wait_routed(timeout=120)
    assert Counter(sent.arguments[0][0] for sent in taken(broker_url)) == Counter(range(10 * restarts + 10))


def is_known(job_id: str, url: str) -> bool:
    with suppress(NotFound):
        return kombu_opendata.find_job(job_id, broker_url=url).rows > 0
    return False


def test_a_prefix_names_the_jobs_and_a_failed_batch_is_sent_after_all(
    spark: Any, broker_url: str, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    write_rows(source, "1.json", range(10))
    with pytest.raises(Exception, match="/proc/nowhere"):
        run(spark, source, checkpoint, "opendata:///proc/nowhere", job_id="events")
    query = run(spark, source, checkpoint, broker_url, job_id="events")

    job = find_job(spark, f"events/{query}/0", broker_url=broker_url)
    assert job.wait_routed(timeout=120).rows == 10
    assert len(taken(broker_url)) == 10


def test_a_new_checkpoint_is_a_new_query_also_with_the_same_prefix(spark: Any, broker_url: str, tmp_path: Path) -> None:
    source = tmp_path / "rows"
    write_rows(source, "1.json", range(3))
    first = run(spark, source, tmp_path / "one", broker_url, job_id="events")
    write_rows(source, "2.json", range(3, 5))
    with ThreadPoolExecutor(1) as other:  # any thread will do, and any session
        second = other.submit(run, spark.newSession(), source, tmp_path / "two", broker_url, job_id="events").result()

    for query, number, rows in ((first, 0, 3), (second, 0, 3), (second, 1, 2)):
        job = find_job(spark, f"events/{query}/{number}", broker_url=broker_url)
        assert job.wait_routed(timeout=120).rows == rows
    assert Counter(sent.arguments[0][0] for sent in taken(broker_url)) == Counter([*range(3), *range(5)])


def test_a_prefix_that_is_too_long(spark: Any, broker_url: str) -> None:
    rows = spark.readStream.format("rate").load()
    with pytest.raises(RequestError, match="job_id has 200 bytes and may have 198"):
        stream_tasks(rows, "proj.event", broker_url=broker_url, args=["value"], job_id="é" * 100)
    assert stream_tasks(rows, "proj.event", broker_url=broker_url, args=["value"], job_id="é" * 99)


def test_a_countdown_and_expires_count_from_the_micro_batch(
    spark: Any, broker_url: str, store_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from the start of the query, after which each task would soon have expired before it was sent."""
    write_rows(tmp_path / "rows", "1.json", range(3))
    started = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    monkeypatch.setattr(Celery, "now", lambda self: started)
    times = {"countdown": 3600, "expires": 7200}
    end = Celery(set_as_current=False).signature("proj.end", options=times)
    query = run(spark, tmp_path / "rows", tmp_path / "checkpoint", broker_url, on_complete=end, **times)

    job = find_job(spark, f"{query}/0", broker_url=broker_url)
    job.wait_routed(timeout=120)
    columns = ["task", "visible_at", "received_at", "expires_at", "headers"]
    rows = job.messages(*columns).collect()
    job.cancel()
    wait_until(lambda: job.status().completed_at_ms, 60, lambda: repr(job.status()))
    rows += read_table(spark, str(store_folder), "messages", columns=columns).where("task = 'proj.end'").collect()
    assert [row.task for row in rows] == [*["proj.event"] * 3, "proj.end"]
    for row in rows:
        expires = dt.datetime.fromisoformat(row.headers["expires"]).replace(tzinfo=None)
        assert abs(row.visible_at - row.received_at - dt.timedelta(hours=1)) < dt.timedelta(minutes=10)
        assert abs(expires - row.expires_at) < dt.timedelta(minutes=10)
