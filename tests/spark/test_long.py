"""Spark in processes of its own: speculation; drivers, queries and brokers that die; many tasks, many done messages."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.spark import SubmitResult, read_table, submit_tasks

from ..reliability.runs import record
from ..support.apps.spark_programs import LARGE, SMALL, two_jobs
from ..support.broker import EmbeddedBroker
from ..support.kill_points import Steps
from ..support.ledger import Ledger
from ..support.processes import Child, Children
from ..support.seeds import seeded_random
from ..support.settled_store import done_records, write_store
from ..support.spark import PROJECT, client, cluster, taken, task_context
from ..support.workers import Worker

ROWS = 20_000
FEW = 2_000
#: `SPARK_TASKS=1000000 make test-long` takes about ten minutes
TASKS = int(os.environ.get("SPARK_TASKS", "100000"))
#: drivers of a job that are killed; `make test-long SPARK_KILLS=50` takes about ten minutes longer
KILLS = int(os.environ.get("SPARK_KILLS", "6"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(max(900, 60 * KILLS))]

#: restarts of a stream
RESTARTS = 2 * KILLS // 5
#: between the first numbers of two pairs of jobs; and those of a large job that can't be sent
DISTANCE, BAD = 10_000, 7
#: the columns of docs/reliability.md
NUMBERS = ("drivers", "restarts", "tasks", "anomalies")
#: what a stream reads, and the first step of its program that is surely in a micro-batch
FILES, FIRST = 24, 20


def program(started: Children, folder: Path, name: str, *arguments: str, env: dict[str, str] | None = None) -> Child:
    """One of the programs in ``tests/support/apps/spark_programs.py``."""
    command = [sys.executable, "-m", "tests.support.apps.spark_programs", name, *arguments]
    child = Child(command, folder / f"{name}.log", cwd=PROJECT, env=env)
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


def test_attempts_of_slow_and_of_lost_executors_count_once(started: Children, broker_url: str, tmp_path: Path) -> None:
    """On a small cluster of processes, as Spark never speculates in local mode."""
    child = program(started, tmp_path, "speculate", broker_url, str(tmp_path), str(ROWS), cluster(started, tmp_path))
    assert child.wait(600) == 0, child.log.read_text()
    assert "attempts of the slow partition: 2" in child.log.read_text()

    assert "executors that were killed: 4" in child.log.read_text()
    for queue in ("celery", "after"):
        assert Counter(sent.arguments[0][0] for sent in taken(broker_url, queue)) == Counter(range(ROWS))


def recorded(since: float, **numbers: int) -> None:
    """Add a run to those of docs/reliability.md, if the tests were started for that."""
    if os.environ.get("RECORD") == "yes":
        command = f'make test-long SPARK_KILLS={KILLS} ARGS="-k killed_at"'
        record("spark", command, time.monotonic() - since, {**dict.fromkeys(NUMBERS, 0), **numbers})


@pytest.fixture
def broker(broker_url: str, store_folder: Path) -> Iterator[EmbeddedBroker]:
    """A broker that runs all the time, and is not started by a process whose steps are counted."""
    with client(broker_url):
        yield EmbeddedBroker(store_folder)


def test_a_driver_that_is_killed_at_steps_of_a_job(
    spark: Any, started: Children, broker: EmbeddedBroker, broker_url: str, tmp_path: Path
) -> None:
    """At requests and changes of files from the first check to the report of the commit; and then it runs again."""
    steps, since = Steps(tmp_path), time.monotonic()

    def drive(number: int, until: int) -> Child:
        folder = tmp_path / str(number)
        folder.mkdir()
        return program(started, folder, "submit", broker_url, str(folder), str(number), env=steps.until(until))

    assert (whole := drive(0, 0)).wait(300) == 0, whole.log.read_text()
    count, again, added = len(steps.names()), range(DISTANCE, (KILLS + 1) * DISTANCE, DISTANCE), Counter[bool]()
    for at, number in enumerate(again):
        child = drive(number, 1 + at * (count - 1) // max(1, KILLS - 1))
        assert child.wait(300) == -signal.SIGKILL, child.log.read_text()
    for number in [0, *again]:
        few, many = two_jobs(spark, broker_url, number)
        added.update((few.added, many.added))
        assert (few.wait_routed(120).rows, many.wait_routed(120).rows) == (SMALL, LARGE - BAD)
        assert many.bad_rows().count() == BAD
    assert min(added[True], added[False]) > 0  # it died before a commit, and after another one
    expected = Counter(number + n for number in [0, *again] for n in range(SMALL + LARGE) if n < SMALL or n % 100 < 99)
    sent = taken(broker_url)  # which ends these tasks, so the tasks on completion follow
    assert Counter(task.arguments[0][0] for task in sent if task.arguments[0]) == expected
    last = [task for task in sent if not task.arguments[0]]
    broker.wait_queue("celery", KILLS + 1 - len(last), 0)
    ends = Counter(task.arguments[1]["job"]["job_id"] for task in last + taken(broker_url))
    assert ends == Counter(f"few-{number}" for number in [0, *again])
    recorded(since, drivers=KILLS, tasks=expected.total())


def test_a_stream_that_is_killed_at_steps_of_its_batches(
    started: Children, broker: EmbeddedBroker, broker_url: str, tmp_path: Path
) -> None:
    """At steps of its micro-batches; each time it goes on from its checkpoint."""
    (tmp_path / "rows").mkdir()
    for number in range(FILES):
        numbers = range(number * 25, number * 25 + 25)
        (tmp_path / "rows" / f"{number}.json").write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
    steps, since = Steps(tmp_path), time.monotonic()
    for number in range(RESTARTS):
        child = program(started, tmp_path, "stream", broker_url, str(tmp_path), env=steps.until(FIRST + number % 20))
        assert child.wait(300) == -signal.SIGKILL, child.log.read_text()
    last = program(started, tmp_path, "stream", broker_url, str(tmp_path))
    assert last.wait(600) == 0, last.log.read_text()

    broker.wait_queue("celery", FILES * 25, 0)
    assert Counter(sent.arguments[0][0] for sent in taken(broker_url)) == Counter(range(FILES * 25))
    recorded(since, restarts=RESTARTS, tasks=FILES * 25)


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
