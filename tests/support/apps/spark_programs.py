"""Programs with a Spark session of their own, for tests that kill them: ``python -m … NAME URL FOLDER …``."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

from kombu_opendata.spark import (
    SubmitResult,
    export_history,
    find_job,
    read_table,
    register,
    resubmit,
    stream_tasks,
    submit_tasks,
)

from ..processes import parent, wait_until
from ..spark import new_session, task_context

PATIENCE_SECONDS = 300
#: for a program that is killed soon: a JVM that starts in half of the time
SHORT = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def speculate(url: str, folder: str, rows: str, master: str) -> None:
    """A frame whose first partition waits in its first attempt until a second one was started and has ended.

    Then one of which each partition's first attempt kills its executor, each after other rows.
    """
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.executor.memory": "512m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    }
    spark = new_session(Path(folder), master, **settings)

    def slow(batches: Any) -> Iterator[Any]:
        context = task_context()
        yield from batches
        if context.partitionId() == 0:
            (Path(folder) / f"attempt-{context.taskAttemptId()}").touch()
            wait_until(lambda: len(list(Path(folder).glob("attempt-*"))) > 1, PATIENCE_SECONDS, "a second attempt")

    df = spark.range(0, int(rows), numPartitions=4).mapInArrow(slow, "id long")
    submit_tasks(df, "proj.add", broker_url=url, args=["id"]).wait_routed(timeout=PATIENCE_SECONDS)
    print("attempts of the slow partition:", len(list(Path(folder).glob("attempt-*"))))

    def lose(batches: Any) -> Iterator[Any]:
        partition = task_context().partitionId()
        lost = Path(folder) / f"lost-{partition}"
        for number, batch in enumerate(batches):
            if number == partition and not lost.exists():
                lost.touch()
                os.kill(parent(os.getppid()), signal.SIGKILL)  # this process's parent is the daemon of such processes
            yield batch

    df = spark.range(0, int(rows), numPartitions=4).mapInArrow(lose, "id long")
    submit_tasks(df, "proj.add", broker_url=url, args=["id"], queue="after").wait_routed(timeout=PATIENCE_SECONDS)
    print("executors that were killed:", len(list(Path(folder).glob("lost-*"))))
    spark.stop()


#: rows of a job whose batches go with the commit, and of one with objects
SMALL, LARGE = 50, 700


def two_jobs(spark: Any, url: str, number: int) -> list[SubmitResult]:
    """Send numbers from this one on, each once: a small job, and a larger one of which some rows can't be sent."""
    many = spark.range(number + SMALL, number + SMALL + LARGE, numPartitions=2)
    task = F.when(F.col("id") % 100 != 99, "proj.many")
    return [
        submit_tasks(
            spark.range(number, number + SMALL, numPartitions=2), "proj.few", broker_url=url, args=["id"],
            job_id=f"few-{number}", on_complete="proj.end",
        ),
        submit_tasks(many, task, broker_url=url, args=["id"], job_id=f"many-{number}", bad_rows="collect"),
    ]  # fmt: skip


def submit(url: str, folder: str, number: str) -> None:
    two_jobs(new_session(Path(folder), **SHORT), url, int(number))


def stream(url: str, folder: str) -> None:
    """Take all files in ``rows``, one a micro-batch, from where the checkpoint is."""
    spark = new_session(Path(folder), **SHORT)
    rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1).json(f"{folder}/rows")
    writer = stream_tasks(rows, "proj.event", broker_url=url, args=["n"])
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    spark.stop()


def read_stream(url: str, folder: str) -> None:
    """Write the messages of a store to a sink, a few in each micro-batch, until this process is killed."""
    spark = new_session(Path(folder))
    register(spark)
    options = {"store": url.removeprefix("opendata://"), "table": "messages", "maxRowsPerTrigger": "20"}
    writer = spark.readStream.format("opendata").options(**options).load().writeStream.format("parquet")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").option("path", f"{folder}/rows").start()
    query.awaitTermination()


def connect(url: str, folder: str) -> None:
    """All calls, over a server of Spark Connect that this program starts; what they gave goes to ``found.json``."""
    from pyspark.errors import PySparkException

    spark = new_session(Path(folder), remote="local[2]")
    store = url.removeprefix("opendata://")
    df = spark.range(0, 2000, numPartitions=2).select("id", F.array().alias("none"))
    arguments: dict[str, Any] = {"args": ["id", F.col("id") + 1, F.transform(F.array("id"), lambda id: id + 1)]}
    small = submit_tasks(spark.range(5), "proj.small", broker_url=url, job_id="small", **arguments)
    large = submit_tasks(
        df, "proj.large", broker_url=url, queue=F.lit("large"), kwargs={"n": F.col("id"), "none": "none"}
    )
    again = submit_tasks(spark.range(5), "proj.small", broker_url=url, job_id="small", **arguments)
    (Path(folder) / "rows").mkdir()
    (Path(folder) / "rows" / "0.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(7)))
    rows = spark.readStream.schema("n long").json(f"{folder}/rows")
    writer = stream_tasks(rows, "proj.event", broker_url=url, args=["n"])
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    wrong = df.select(F.when(F.col("id") != 1500, "proj.some").alias("kind"))
    try:
        submit_tasks(wrong, F.col("kind"), broker_url=url, job_id="wrong")
        refusal = ""
    except PySparkException as exc:
        refusal = str(exc)
    for job in (small, large):
        job.wait_routed(timeout=PATIENCE_SECONDS)
    messages = read_table(spark, store, "messages").groupBy("task").count().collect()
    found = {
        "session": type(spark).__module__,
        "added": [small.added, large.added, again.added],
        "ids": [sorted(small.ids()), sorted(again.ids())],
        "messages": {row["task"]: row["count"] for row in messages},
        "available": find_job(spark, large.job_id, broker_url=url).messages("message_id").count(),
        "refusal": refusal,
        "states": [row.state for row in small.results("long").collect()],
        "again": resubmit(large.messages("message_id").limit(10), broker_url=url, queue="again").rows,
        "exported": export_history(spark, store, f"{folder}/history").rows,
    }
    (Path(folder) / "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {
        "connect": connect, "speculate": speculate, "submit": submit, "stream": stream, "read_stream": read_stream,
    }  # fmt: skip
    programs[sys.argv[1]](*sys.argv[2:])
