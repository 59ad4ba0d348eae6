"""Result of ``submit_tasks``: a job with its ids, messages and failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from ..celery_integration.broker_access import BrokerAccess
from ..celery_integration.jobs import JobHandle, known_job
from ..protocol.task_reports import FAILED, TaskState
from ..staging import JobInfo
from .encode.row_encoder import task_id
from .source import read_table
from .write.bad_rows import bad_rows_frame

#: final states of acknowledged tasks that did not succeed
_NOT_SUCCEEDED = [state.name.lower() for state in (*FAILED, TaskState.REVOKED)]
_REPORT = ("state", "outcome", "exception", "error", "traceback", "ended_at", "consumer")


class SubmitResult(JobHandle):
    """Committed job, with frames of its messages and failures."""

    def __init__(
        self, spark: Any, access: BrokerAccess, job: JobInfo, partitions: Sequence[Sequence[int]] | None = None
    ) -> None:
        super().__init__(access, job)
        self._spark = spark
        self._partitions = partitions

    def messages(self, *columns: str) -> Any:
        """Return the job's messages that are still stored, as a frame of the table ``messages``."""
        return self._read("messages", tuple(dict.fromkeys(columns)), last_id=self._last_id).select(*(columns or "*"))

    def failed(self) -> Any:
        """Return a frame of the job's tasks that did not succeed: failed messages, and acknowledged ones by state.

        The states are raised, timed_out, lost, rejected and revoked. The last message of a task decides, so a task that
        succeeds when it is retried is not included, and one that waits for its retry is not included yet. Each retry
        is a new message, which is recognized by the task id while the job's message is stored. A task that failed in
        several queues has a row for each.

        Columns: queue, message_id, task, task_id, state (the outcome of the message if the worker reported none),
        exception, error, traceback, ended_at, attempts (of all messages of the task in this queue), worker.
        """
        columns = "attempt_id", "message_id", "queue", "manual", *_REPORT
        attempts = self._read("attempts", columns, gte=self._committed_at)
        ended = attempts.groupBy("queue", "message_id").agg(
            F.max_by(F.struct(*_REPORT), "attempt_id").alias("last"),
            F.expr("count_if(not manual and outcome != 'released')").alias("runs"),
        )
        entries = self._read("failed").withColumnRenamed("attempts", "counted")
        messages = self._read("messages", ("message_id", "task", "task_id"))
        rows = ended.join(entries, ["queue", "message_id"], "full").join(messages, "message_id", "left")
        task = F.expr("coalesce(task_id, string(message_id))")
        of_task, in_queue = Window.partitionBy(task), Window.partitionBy(task, "queue")
        rows = rows.select(
            "*",
            F.min("message_id").over(of_task).alias("first_id"),
            F.max("message_id").over(of_task).alias("newest_id"),
            F.sum("runs").over(in_queue).alias("all_runs"),
        )
        is_failed = F.expr("failed_at is not null or last.outcome = 'failed'")
        is_failed |= (F.col("last.outcome") == "acked") & F.col("last.state").isin(_NOT_SUCCEEDED)
        is_of_job = (F.col("first_id") <= self._last_id) & (F.col("message_id") == F.col("newest_id"))
        return rows.where(is_of_job & is_failed).selectExpr(
            "queue", "message_id", "task", "task_id", "coalesce(nullif(last.state, ''), last.outcome, 'failed') state",
            "last.exception", "last.error", "last.traceback", "coalesce(last.ended_at, failed_at) ended_at",
            "int(coalesce(all_runs, counted)) attempts", "last.consumer worker",
        )  # fmt: skip

    def bad_rows(self) -> Any:
        """Return a frame of the rows that could not be sent and that ``bad_rows="collect"`` has left out.

        The rows are stored beside the store for a week.

        Columns: partition and row (numbers from 0), task_id, column, value, reason, arguments (all columns by the
        expressions that the call named, as texts of at most 100 characters).
        """
        with self._access.connect() as broker:
            target = broker.staging.staging_target()
        return bad_rows_frame(self._spark, target, self.status())

    @property
    def _last_id(self) -> int:
        return self.first_message_id + self.rows - 1

    def _read(self, table: str, columns: Sequence[str] = (), **bounds: Any) -> Any:
        """Return a table's rows of the job's messages and later ones, for which there may be more bounds."""
        first, store, instance = self.first_message_id, self.store(), self._access.instance
        return read_table(self._spark, store, table, columns=columns, first_id=first, instance=instance, **bounds)

    def store(self) -> str:
        """Return the URL of the broker's store, to which this host may have no access."""
        with self._access.connect() as broker:
            return broker.staging.staging_target().url.rsplit("/", 1)[0]

    def ids(self) -> Iterator[str]:
        """Iterate over the tasks' ids, in the order of the messages.

        Ids that this job generated are computed. Those of a column, or of a job that another call had added, are read
        from the store, so ids of collected messages are missing.
        """
        if self._partitions is None:
            rows = self.messages("message_id", "task_id").orderBy("message_id").toLocalIterator()
            return (row["task_id"] for row in rows)
        return (task_id(self.job_id, partition, row) for partition, rows in self._partitions for row in range(rows))


def find_job(
    spark: Any,
    job_id: str,
    *,
    broker_url: str | None = None,
    app: Any = None,
    transport_options: Mapping[str, Any] | None = None,
) -> SubmitResult:
    """Return a job that was submitted before, by any process.

    Args:
        broker_url, app, transport_options: as in ``submit_tasks``.

    Raises:
        NotFound: the broker knows no such job.
    """
    return SubmitResult(spark, *known_job(job_id, broker_url, app, transport_options))
