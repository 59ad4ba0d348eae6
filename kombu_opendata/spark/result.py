"""Result of ``submit_tasks``: a job's status, ids and messages, and waiting for its end."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from ..errors import NotFound
from ..protocol.task_reports import FAILED, TaskState
from ..staging import Blocked, JobInfo, JobQueueCounts
from .broker_access import BrokerAccess, access_of
from .encode.row_encoder import task_id
from .source import read_table

#: pauses between two polls: the first one, which doubles up to the last
_FIRST_POLL_SECONDS = 0.02
POLL_SECONDS = 0.5
#: seconds after which a blocked job is reported; shorter ones are normal, because workers free capacity
_BLOCKED_SECONDS = 2.0
#: final states of acknowledged tasks that did not succeed
_NOT_SUCCEEDED = [state.name.lower() for state in (*FAILED, TaskState.REVOKED)]
_REPORT = ("state", "outcome", "exception", "error", "traceback", "ended_at", "consumer")

log = logging.getLogger(__name__)


class SubmitResult:
    """Committed job.

    Attributes:
        job_id: the id of the job for :func:`find_job`.
        added: True if this call added the tasks; False if a job with this id had been committed before.
        rows: the number of the job's tasks.
        first_message_id: the id of its first message; the others have the next ``rows - 1`` ids.
    """

    def __init__(
        self, spark: Any, access: BrokerAccess, job: JobInfo, partitions: Sequence[Sequence[int]] | None = None
    ) -> None:
        self._spark = spark
        self._access = access
        self._partitions = partitions
        self.job_id = job.job_id
        self.added = job.added
        self.rows = job.rows
        self.first_message_id = job.first_id
        self._committed_at = datetime.fromtimestamp(job.committed_at_ms / 1000, UTC)

    def __repr__(self) -> str:
        return f"<SubmitResult {self.job_id!r}: {self.rows} tasks{'' if self.added else ', added before'}>"

    def status(self) -> JobInfo:
        """Return the current state of the job.

        Raises:
            NotFound: the broker has deleted the job, a week after the last of its tasks was settled.
        """
        with self._access.connect() as broker:
            return _of(broker.staging.job_status(self.job_id))

    @property
    def queues(self) -> dict[str, JobQueueCounts]:
        """Current counts by queue: routed, done, failed, removed."""
        return dict(self.status().queues)

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> JobInfo:
        """Wait until each task has ended; return the final state of the job.

        A task ends when its message is done, failed or removed and, if the worker acknowledged it before it ran, when
        the worker reports its end, or is lost. The method logs a warning if tasks can't be routed for seconds, for
        example because a queue is full.

        Args:
            timeout: seconds; None means no limit.
            progress: show a progress bar.

        Raises:
            TimeoutError: some tasks have not ended; the text has the reason if they are blocked.
        """
        with _bar(self.rows, progress) as show:
            return self._poll(lambda job: job.has_ended, timeout, show)

    def _poll(
        self, reached: Callable[[JobInfo], bool], timeout: float | None, show: Callable[[JobInfo], None]
    ) -> JobInfo:
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_POLL_SECONDS
        blocked: Blocked | None = None
        warn_at = 0.0
        with self._access.connect() as broker:
            while True:
                job = _of(broker.staging.job_status(self.job_id))
                show(job)
                now = time.monotonic()
                if job.blocked != blocked:
                    blocked, warn_at = job.blocked, now + _BLOCKED_SECONDS
                elif blocked is not None and now >= warn_at:
                    warn_at = math.inf
                    log.warning("job %r waits: %s", self.job_id, blocked)
                if reached(job):
                    return job
                if deadline is not None and now > deadline:
                    waiting = sum(counts.waiting for counts in job.queues.values())
                    left = job.rows - job.routed + waiting + job.running
                    text = f"job {self.job_id} is {job.state} after {timeout:g} s: {left} tasks have not ended"
                    raise TimeoutError(f"{text}; {job.blocked}" if job.blocked else text)
                time.sleep(pause)
                pause = min(2 * pause, POLL_SECONDS)

    def wait_routed(self, timeout: float | None = None) -> JobInfo:
        """Wait until each task is in its queue. The broker routes tasks in the background, after the commit.

        The method logs a warning as :meth:`wait` does.

        Raises:
            TimeoutError: some tasks are not in their queues yet.
        """
        return self._poll(lambda job: job.state != "routing", timeout, lambda job: None)

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


@contextmanager
def _bar(rows: int, is_shown: bool) -> Iterator[Callable[[JobInfo], None]]:
    """Yield a function that shows a job's progress, or does nothing unless ``is_shown``.

    A task in several queues counts once in each, so the total may exceed ``rows``.
    """
    if not is_shown:
        yield lambda job: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("tasks", total=rows)

        def show(job: JobInfo) -> None:
            removed = sum(counts.removed for counts in job.queues.values())
            ended = job.done + job.failed + removed + job.unroutable + job.damaged - job.running
            what = f"tasks ({job.failed:,} failed)" if job.failed else "tasks"
            what += f"; {job.blocked.reason}" if job.blocked else ""
            total = max(rows, sum(counts.routed for counts in job.queues.values()) + job.unroutable + job.damaged)
            progress.update(task, completed=ended, total=total, description=what)

        yield show


def _of(job: JobInfo) -> JobInfo:
    if job.state == "unknown":
        raise NotFound(f"the broker knows no job {job.job_id!r}: it was never committed, or was settled long ago")
    return job


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
    access = access_of(broker_url, app, transport_options)
    with access.connect() as broker:
        return SubmitResult(spark, access, _of(broker.staging.job_status(job_id)))
