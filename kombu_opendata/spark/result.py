"""Result of ``submit_tasks``: a job with its ids, messages and failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

from pyspark.sql import functions as F

from ..celery_integration.broker_access import BrokerAccess, BrokerArguments
from ..celery_integration.jobs import JobHandle, known_job
from ..protocol.messages import JobInfo
from ..protocol.task_reports import FAILED, TaskState
from .encode.row_encoder import task_id
from .source import read_table
from .task_results import RESULT_COLUMNS, backend_results, with_values
from .write.bad_rows import bad_rows_frame

#: final states of acknowledged tasks that did not succeed
_NOT_SUCCEEDED = tuple(state.name.lower() for state in (*FAILED, TaskState.REVOKED))
_REPORT = ("state", "outcome", "exception", "error", "traceback", "ended_at", "runtime_ms", "consumer")
_FAILED = (
    "queue", "message_id", "task", "task_id", "state", "exception", "error", "traceback", "ended_at", "attempts",
    "worker",
)  # fmt: skip
#: the state of a task by its message's entry in a queue, and by its last attempt
_STATE = """case when entry = 'backlog' or message_id between {routed} and {last} then 'waiting'
    when entry = 'in_flight' then entry
    when last.outcome = 'acked' then coalesce(nullif(last.state, ''), 'acknowledged')
    when last.outcome is not null then coalesce(nullif(last.state, ''), last.outcome)
    when entry = 'done' then 'running'
    else coalesce(entry, 'collected') end"""
_IS_FAILED = (
    f"entry = 'failed' or last.outcome = 'acked' and last.state in {_NOT_SUCCEEDED} or last.outcome = 'failed' and "
    "coalesce(entry not in ('backlog', 'in_flight'), true)"
)


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
        return self._tasks().where("is_failed").select(*_FAILED)

    def results(self, schema: Any = None, *, app: Any = None) -> Any:
        """Return a frame with a row for each task of the job, with its state, its result and its error.

        Columns:

        * ``task_id``, ``task``, ``message_id``, ``queue``: of the newest message of the task. Without the message, task
          and id are null.
        * ``state``: waiting, in_flight, running, succeeded, raised, timed_out, lost, rejected, revoked, ignored or
          retried. If the worker reported none: acknowledged, failed, or another outcome. If neither the task's message
          nor its attempts nor its result are stored any more: collected.
        * ``value``: the return value, as JSON or in the schema.
        * ``reason``: the reason why a task that succeeded has no value.
        * ``exception``, ``error``, ``traceback``, ``ended_at``, ``runtime_ms``, ``worker``: of the last attempt.
        * ``attempts``: the number of attempts.

        Args:
            schema: the type of the values, such as ``"long"`` or ``"struct<a: int>"``; by default, they are JSON texts.
                A value that does not fit is null.
            app: the Celery app with the result backend, if the results are not in the broker's store. Executors import
                ``module:attribute``; with an object, the driver reads the results.
        """
        tasks = self._tasks()
        tasks = tasks.groupBy("message_id").agg(F.max_by(F.struct("*"), "is_failed").alias("task")).select("task.*")
        if app is None:
            results = self._read("results", RESULT_COLUMNS)
        else:
            results = backend_results(self._spark, self.messages("task_id"), app)
        return with_values(tasks, results, schema)

    def _tasks(self) -> Any:
        """Return a frame with a row for each task of the job in each of its queues, with the newest message's state."""
        columns = "attempt_id", "message_id", "queue", "manual", *_REPORT
        attempts = self._read("attempts", columns, gte=self._committed_at)
        ended = attempts.groupBy("queue", "message_id").agg(
            F.max_by(F.struct(*_REPORT), "attempt_id").alias("last"),
            F.expr("count_if(not manual and outcome != 'released')").alias("runs"),
        )
        entries = self._read("entries").withColumnsRenamed({"attempts": "counted", "state": "entry"})
        in_queues = ended.join(entries, ["queue", "message_id"], "full")
        own = self._spark.range(self.first_message_id, self._last_id + 1).withColumnRenamed("id", "message_id")
        rows = own.join(self._read("messages", ("message_id", "task", "task_id")), "message_id", "full")
        rows = rows.join(in_queues, "message_id", "full")
        task = "task_id, if(task_id is null, message_id, null)"
        rows = rows.selectExpr(
            "*",
            f"min(message_id) over (partition by {task}) first_id",
            f"max(message_id) over (partition by {task}) newest_id",
            f"sum(runs) over (partition by {task}, queue) all_runs",
        )
        state = _STATE.format(routed=self.first_message_id + self.status().routed, last=self._last_id)
        return rows.where(f"first_id <= {self._last_id} and message_id = newest_id").selectExpr(
            "queue", "message_id", "task", "task_id", f"{state} state", f"coalesce({_IS_FAILED}, false) is_failed",
            "last.exception", "last.error", "last.traceback",
            "coalesce(last.ended_at, if(entry = 'failed', at, null)) ended_at", "last.runtime_ms",
            "int(coalesce(all_runs, counted)) attempts", "last.consumer worker",
        )  # fmt: skip

    def bad_rows(self) -> Any:
        """Return a frame of the rows that could not be sent and that ``bad_rows="collect"`` has left out.

        The rows are stored beside the store for a week.

        Columns: partition and row (numbers from 0), task_id, column, value, reason, arguments (all columns by the
        expressions that the call named, as texts of at most 100 characters).
        """
        return bad_rows_frame(self._spark, self._access.staging_target(), self.status(), self._access.bucket)

    @property
    def _last_id(self) -> int:
        return self.first_message_id + self.rows - 1

    def _read(self, table: str, columns: Sequence[str] = (), **bounds: Any) -> Any:
        """Return a table's rows of the job, and of all later messages unless there are more bounds."""
        bounds |= {"job_id": self.job_id} if table == "results" else {"first_id": self.first_message_id}
        return read_table(self._spark, table=table, columns=columns, **self._access.store_arguments(), **bounds)

    def ids(self) -> Iterator[str]:
        """Iterate over the tasks' ids, in the order of the messages.

        Ids that this job generated are computed. Those of a column, or of a job that another call had added, are read
        from the store, so ids of collected messages are missing.
        """
        if self._partitions is None:
            rows = self.messages("message_id", "task_id").orderBy("message_id").toLocalIterator()
            return (row["task_id"] for row in rows)
        return (task_id(self.job_id, partition, row) for partition, rows in self._partitions for row in range(rows))


def find_job(spark: Any, job_id: str, **broker: Unpack[BrokerArguments]) -> SubmitResult:
    """Return a job that was submitted before, by any process.

    Args:
        broker: ``broker_url``, or ``app``, and ``transport_options``, as in ``submit_tasks``.

    Raises:
        NotFound: the broker knows no such job.
    """
    return SubmitResult(spark, *known_job(job_id, **broker))
