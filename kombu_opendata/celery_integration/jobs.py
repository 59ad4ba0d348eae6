"""Committed job of a broker: its state, and waiting for its end. Neither needs PySpark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Unpack

from ..client.job_calls import WAIT_PATIENCE_SECONDS
from ..protocol.messages import FailuresRetried, JobCancelled, JobInfo, JobQueueCounts
from .broker_access import BrokerAccess, BrokerArguments, JobBroker, access_of


class JobHandle:
    """Committed job.

    Attributes:
        job_id: the id of the job for :func:`find_job`.
        added: True if this call added the tasks; False if a job with this id had been committed before.
        rows: the number of the job's tasks.
        first_message_id: the id of its first message; the others have the next ``rows - 1`` ids.
    """

    def __init__(self, access: BrokerAccess, job: JobInfo) -> None:
        self._access = access
        self.job_id = job.job_id
        self.added = job.added
        self.rows = job.rows
        self.first_message_id = job.first_id
        self._committed_at = datetime.fromtimestamp(job.committed_at_ms / 1000, UTC)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.job_id!r}: {self.rows} tasks{'' if self.added else ', added before'}>"

    def status(self) -> JobInfo:
        """Return the current state of the job.

        Raises:
            NotFound: the job was deleted, or its last task ended more than a week ago.
        """
        with self._access.connect() as broker:
            return broker.staging.get_job(self.job_id)

    @property
    def queues(self) -> dict[str, JobQueueCounts]:
        """Current counts by queue: routed, done, failed, removed."""
        return dict(self.status().queues)

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> JobInfo:
        """Wait until each task has ended; return the final state of the job.

        A task ends with its newest message, so a task that is retried, by Celery or by :meth:`retry`, has not ended.
        The method logs a warning if tasks can't be routed for seconds, for example because a queue is full.

        Args:
            timeout: seconds; None means no limit.
            progress: show a progress bar.

        Raises:
            TimeoutError: some tasks have not ended; the text has the reason if they are blocked.
            ConnectionLost: the broker did not answer for five minutes (transport option ``reconnect_timeout``).
        """
        with _bar(self.rows, progress) as show, self._connect_to_wait() as broker:
            return broker.staging.wait_job(self.job_id, timeout, progress=show)

    def wait_routed(self, timeout: float | None = None) -> JobInfo:
        """Wait until each task is in its queue. The broker routes tasks in the background, after the commit.

        The method logs a warning as :meth:`wait` does.

        Raises:
            TimeoutError: some tasks are not in their queues yet.
        """
        with self._connect_to_wait() as broker:
            return broker.staging.wait_job(self.job_id, timeout, until=lambda job: job.state != "routing")

    def _connect_to_wait(self) -> AbstractContextManager[JobBroker]:
        return self._access.connect(reconnect_timeout=WAIT_PATIENCE_SECONDS)

    def cancel(self) -> JobCancelled:
        """Remove the tasks that no worker has claimed; return how many were removed, and how many continue.

        Raises:
            AccessRefused: the user may not purge one of the job's queues; nothing was removed.
        """
        with self._access.connect() as broker:
            return broker.staging.cancel_job(self.job_id)

    def retry(self) -> FailuresRetried:
        """Run the failed tasks again, each once and in this job; return their number as ``handled``.

        Raises:
            PreconditionFailed: the job is cancelled, and some of its tasks have not ended.
        """
        with self._access.connect() as broker:
            return broker.staging.retry_job(self.job_id)

    def delete(self) -> None:
        """Delete the record of the job, so that its id is free. The messages stay.

        Raises:
            PreconditionFailed: some tasks have not ended.
        """
        with self._access.connect() as broker:
            broker.staging.delete_job(self.job_id)


@contextmanager
def _bar(rows: int, is_shown: bool) -> Iterator[Callable[[JobInfo], object]]:
    """Yield a function that shows a job's progress, or does nothing unless ``is_shown``."""
    if not is_shown:
        yield lambda job: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("tasks", total=rows)

        def show(job: JobInfo) -> None:
            tasks = job.tasks
            what = f"tasks ({tasks.failed:,} failed)" if tasks.failed else "tasks"
            what += f"; {job.blocked.reason}" if job.blocked else ""
            progress.update(task, completed=tasks.ended, total=tasks.total, description=what)

        yield show


def find_job(job_id: str, **broker: Unpack[BrokerArguments]) -> JobHandle:
    """Return a job that was submitted before, by any process.

    Args:
        job_id: the id that its driver chose.
        broker: ``broker_url``; or ``app``, a Celery app that names the broker, or its ``module:attribute``. With
            ``broker_url`` also ``transport_options``, Celery's ``broker_transport_options``.

    Raises:
        NotFound: the broker knows no such job.
    """
    return JobHandle(*known_job(job_id, **broker))


def known_job(job_id: str, **broker: Unpack[BrokerArguments]) -> tuple[BrokerAccess, JobInfo]:
    """Return the access to a broker and the job there, with the arguments and errors of :func:`find_job`."""
    access = access_of(**broker)
    with access.connect() as connection:
        return access, connection.staging.get_job(job_id)
