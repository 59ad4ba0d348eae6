"""Spark in processes of its own: speculation; drivers, queries and brokers that die; many tasks, many done messages."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.errors import NotFound
from kombu_opendata.spark import SubmitResult, find_job, read_table, submit_tasks

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Child, Children, wait_until
from ..support.seeds import seeded_random
from ..support.settled_store import done_records, write_store
from ..support.spark import PROJECT, cluster, taken, task_context
from ..support.workers import Worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROWS = 20_000
FEW = 2_000
#: `SPARK_TASKS=1000000 make test-long` takes about ten minutes
TASKS = int(os.environ.get("SPARK_TASKS", "100000"))


def program(started: Children, folder: Path, name: str, *arguments: str) -> Child:
    """One of the programs in ``tests/support/apps/spark_programs.py``."""
    command = [sys.executable, "-m", "tests.support.apps.spark_programs", name, *arguments]
    child = Child(command, folder / f"{name}.log", cwd=PROJECT)
    started.add(child)
    return child


def test_spark_connect(started: Children, broker_url: str, tmp_path: Path) -> None:
    child = program(started, tmp_path, "connect", broker_url, str(tmp_path))
    assert child.wait(800) == 0, child.log.read_text()

    found = json.loads((tmp_path / "found.json").read_text())
    assert found["session"] == "pyspark.sql.connect.session"
    assert found["added"] == [True, True, False]
    assert found["ids"][0] == found["ids"][1]
    assert len(found["ids"][0]) == 5
    assert found["messages"] == {"proj.small": 5, "proj.large": 2000, "proj.event": 7}
    assert found["available"] == 2000
    assert (found["states"], found["again"], found["exported"]) == (["waiting"] * 5, 10, 0)
    assert "row 500 of partition 1 can't be sent: column 'kind' (task) is null" in found["refusal"]
    sent = taken(broker_url, "large")
    assert Counter(message.arguments[1]["n"] for message in sent) == Counter(range(2000))
    assert all(message.arguments[1]["none"] == [] for message in sent)
    assert len(taken(broker_url)) == 12


def test_speculative_attempts_count_once(started: Children, broker_url: str, tmp_path: Path) -> None:
    """On a small cluster of processes, as Spark never speculates in local mode."""
    child = program(started, tmp_path, "speculate", broker_url, str(tmp_path), str(ROWS), cluster(started, tmp_path))
    assert child.wait(600) == 0, child.log.read_text()
    assert "attempts of the slow partition: 2" in child.log.read_text()

    runs = Counter(sent.arguments[0][0] for sent in taken(broker_url))
    assert runs == Counter(range(ROWS))


def test_a_driver_that_dies_before_the_commit(
    spark: Any, started: Children, broker_url: str, store_folder: Path, tmp_path: Path
) -> None:
    child = program(started, tmp_path, "die", broker_url, str(tmp_path), str(ROWS))
    wait_until((tmp_path / "staged").exists, 300, lambda: child.log.read_text())
    os.killpg(child.pid, signal.SIGKILL)
    child.process.wait()

    assert list((store_folder / "default.staged").rglob("*.batch*")) != []
    with pytest.raises(NotFound):
        find_job(spark, "dies", broker_url=broker_url)
    assert taken(broker_url) == []
    job = submit_tasks(
        spark.range(0, ROWS, numPartitions=2), "proj.add", broker_url=broker_url, args=["id"], job_id="dies"
    )
    assert job.added
    job.wait_routed(timeout=300)
    assert Counter(sent.arguments[0][0] for sent in taken(broker_url)) == Counter(range(ROWS))


def test_a_driver_that_dies_while_it_commits(
    spark: Any, started: Children, broker_url: str, store_folder: Path, tmp_path: Path
) -> None:
    """A little later each time after its rows are staged: before the commit, in the call, after it."""

    def staged() -> set[Path]:
        return set((store_folder / "default.staged").rglob("*.batch"))

    for number, delay in enumerate((0.0, 0.2, 0.5)):
        first, end, before = number * FEW, (number + 1) * FEW, staged()
        folder = tmp_path / str(number)
        folder.mkdir()
        child = program(started, folder, "submit", broker_url, str(folder), str(first), str(end), f"job-{number}")
        wait_until(lambda: len(staged() - before) >= 2 or child.ended, 300, lambda: child.log.read_text())  # noqa: B023
        threading.Event().wait(delay)
        os.killpg(child.pid, signal.SIGKILL)
        child.process.wait()
        df = spark.range(first, end, numPartitions=2)
        job = submit_tasks(df, "proj.add", broker_url=broker_url, args=["id"], job_id=f"job-{number}")
        assert job.wait_routed(timeout=300).rows == FEW
    assert Counter(sent.arguments[0][0] for sent in taken(broker_url)) == Counter(range(3 * FEW))


def test_a_query_that_is_killed_again_and_again(started: Children, broker_url: str, tmp_path: Path) -> None:
    source = tmp_path / "rows"
    source.mkdir()
    for number in range(40):
        numbers = range(number * 25, number * 25 + 25)
        (source / f"{number}.json").write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
    commits = tmp_path / "checkpoint" / "commits"
    for kill_after in (3, 11, 20):
        child = program(started, tmp_path, "stream", broker_url, str(tmp_path))

        def committed() -> int:
            return len(list(commits.glob("[0-9]*"))) if commits.is_dir() else 0

        wait_until(lambda: committed() >= kill_after or child.ended, 300, lambda: child.log.read_text())  # noqa: B023
        os.killpg(child.pid, signal.SIGKILL)
        child.process.wait()
    last = program(started, tmp_path, "stream", broker_url, str(tmp_path))
    assert last.wait(600) == 0, last.log.read_text()

    EmbeddedBroker(Path(broker_url.removeprefix("opendata://"))).wait_queue("celery", 1000, 0, seconds=60)
    assert Counter(sent.arguments[0][0] for sent in taken(broker_url)) == Counter(range(1000))


def test_a_broker_that_is_killed_again_and_again(spark: Any, broker_url: str, store_folder: Path) -> None:
    """Up to twice while a job is submitted: as soon as the broker answers, and at a random moment around its commit.

    No more often than that, so that a job gets on however long a broker takes to start.
    """
    broker = EmbeddedBroker(store_folder)
    broker.report()
    dice = seeded_random()
    killed = []

    def staged() -> set[Path]:
        return set((store_folder / "default.staged").rglob("*.batch"))

    def kill(over: threading.Event, before: set[Path]) -> None:
        for batches in (0, 2):
            # one that dies before it is ready again and again is an error, rightly
            while not (broker.answers() and len(staged() - before) >= batches):
                if over.wait(0.02):
                    return
            if over.wait(dice.random() * 0.5 if batches else 0):
                return
            killed.append(broker.kill())

    def submit(number: int) -> SubmitResult:
        over = threading.Event()
        killer = threading.Thread(target=kill, args=(over, staged()))
        killer.start()
        try:
            return submit_tasks(
                spark.range(number * FEW, (number + 1) * FEW, numPartitions=2),
                "proj.add",
                broker_url=broker_url,
                args=["id"],
                job_id=f"job-{number}",
                transport_options={"start_timeout": 60, "reconnect_timeout": 60},
            )
        finally:
            over.set()
            killer.join()

    jobs = [submit(number) for number in range(5)]
    assert killed
    for job in jobs:
        assert job.wait_routed(timeout=120).rows == FEW
    assert Counter(sent.arguments[0][0] for sent in taken(broker_url)) == Counter(range(5 * FEW))


def test_two_workers_run_each_of_many_tasks_once(
    spark: Any, started: Children, broker_url: str, tmp_path: Path, ledger: Ledger
) -> None:
    """Spark's tasks fail on their first attempts, and workers write down what they ran."""
    from pyspark.sql import functions as F

    def fail_at_first(batches: Any) -> Any:
        context = task_context()
        for number, batch in enumerate(batches):
            if context.attemptNumber() < 2 and number == 2 + context.partitionId() % 2:
                raise ValueError("injected")
            yield batch

    rows = spark.range(0, TASKS, numPartitions=4).mapInArrow(fail_at_first, "id long")
    job = submit_tasks(
        rows,
        "farm.note",
        broker_url=broker_url,
        args=[F.lit(str(ledger)), F.col("id").cast("string")],
        job_id="many",
    )
    assert (job.rows, job.added) == (TASKS, True)
    for name in ("one", "two"):
        started.add(Worker(broker_url, tmp_path, name, worker_prefetch_multiplier=64))
    status = job.wait(timeout=1800)

    assert status.queues["celery"].done == TASKS
    ledger.assert_once(map(str, range(TASKS)))


def test_a_million_settled_messages_are_read(spark: Any, tmp_path: Path) -> None:
    """Each of them once, with the example of docs/spark.md: the p95 from publish to done."""
    from pyspark.sql import functions as F

    count, took_ms, hour = 1_000_000, 2_500, 3_600_000
    write_store(tmp_path, "q", done_records("q", count, received_at_ms=500_000 * hour, took_ms=took_ms))
    store = str(tmp_path)

    done = read_table(spark, store, "done")
    entries = read_table(spark, store, "entries")
    messages = read_table(spark, store, "messages", columns=["message_id", "task", "received_at"])
    took = messages.join(done, "message_id").select(
        "task",
        F.date_trunc("hour", "received_at").alias("hour"),
        (F.col("done_at").cast("double") - F.col("received_at").cast("double")).alias("seconds"),
    )

    ids = (F.count("*"), F.count_distinct("message_id"), F.min("message_id"), F.max("message_id"))
    assert tuple(done.agg(*ids).collect()[0]) == (count, count, 1, count)
    assert [tuple(row) for row in entries.groupBy("queue", "state").count().collect()] == [("q", "done", count)]
    (row,) = took.groupBy("task", "hour").agg(F.count("*"), F.percentile("seconds", 0.95)).collect()
    assert (row[0], row[2]) == ("t.done", count)
    assert row[3] == pytest.approx(took_ms / 1000, abs=0.001)
