"""Calls about committed jobs, and the wait for a state of a job."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator

from ..errors import NotFound
from ..protocol.envelope import SPARK_JOB
from ..protocol.messages import (
    Blocked,
    CancelJob,
    DeleteJob,
    FailuresRetried,
    GetJob,
    JobCancelled,
    JobInfo,
    Jobs,
    ListJobs,
    RetryJob,
)
from ..protocol.messages.message_base import Reply, Request
from ..selectors.tree import quoted
from .client_clock import SYSTEM, ClientClock

#: pauses between two polls: the first one, which doubles up to the last
_FIRST_POLL_SECONDS = 0.02
_POLL_SECONDS = 0.5
#: seconds after which a blocked job is reported; shorter ones are normal, because workers free capacity
_BLOCKED_SECONDS = 2.0
#: for programs that wait for hours: seconds for which a wait outlasts a broker that does not answer
WAIT_PATIENCE_SECONDS = 300.0

log = logging.getLogger(__name__)


class JobWait:
    """Wait for a state of a job, by repeated requests.

    Args:
        timeout: seconds; None means no limit.
        until: returns True for the state; by default, each task has ended.
    """

    def __init__(
        self, timeout: float | None = None, until: Callable[[JobInfo], bool] | None = None, *, clock: ClientClock
    ) -> None:
        self._timeout = math.inf if timeout is None else timeout
        self._until = until or (lambda job: job.has_ended)
        self._clock = clock
        self._deadline = clock.monotonic() + self._timeout
        self._pause = _FIRST_POLL_SECONDS
        self._blocked: Blocked | None = None
        self._warn_at = math.inf

    def pause(self, job: JobInfo) -> float | None:
        """Return the seconds until the next request; None if the job has the state.

        A warning is logged if the job is blocked for seconds.

        Raises:
            TimeoutError: the time is over; the text has the reason if the job is blocked.
        """
        now = self._clock.monotonic()
        if job.blocked != self._blocked:
            self._blocked, self._warn_at = job.blocked, now + _BLOCKED_SECONDS
        elif job.blocked and now >= self._warn_at:
            self._warn_at = math.inf
            log.warning("job %r waits: %s", job.job_id, job.blocked)
        if self._until(job):
            return None
        if now >= self._deadline:
            left = job.tasks.waiting + job.tasks.running
            text = f"job {job.job_id} is {job.state} after {self._timeout:g} s: {left} tasks have not ended"
            raise TimeoutError(f"{text}; {job.blocked}" if job.blocked else text)
        pause, self._pause = self._pause, min(2 * self._pause, _POLL_SECONDS)
        return min(pause, self._deadline - now)


def job_filter(job_id: str) -> str:
    """Return the filter that matches the messages of a job's tasks."""
    return f"{SPARK_JOB} = {quoted(job_id)}"


class JobCalls:
    """Calls about committed jobs, for clients that can send a request."""

    def _clock(self) -> ClientClock:
        return SYSTEM

    def _request(self, message: Request[Reply]) -> Reply:
        """Send a request and wait for its reply."""
        raise NotImplementedError

    def get_job(self, job_id: str) -> JobInfo:
        """Return a job. The broker remembers it until a week after its last task has ended.

        Raises:
            NotFound: the broker knows no such job.
            RequestError: the store can't hold staged jobs, or the id is not valid.
        """
        job = self._request(GetJob(0, job_id)).info
        if job.state == "unknown":
            raise NotFound(f"the broker knows no job {job_id!r}: it was never committed, or was settled long ago")
        return job

    def list_jobs(self, after: str = "", *, limit: int = 100) -> Jobs:
        """Return a page of jobs, ordered by id.

        Args:
            after: the ``next`` of the previous page, which is a job's id.
            limit: 1 to 1,000.

        Raises:
            RequestError: the store can't hold staged jobs, or an argument is not valid.
        """
        return self._request(ListJobs(0, after, limit))

    def iter_jobs(self) -> Generator[JobInfo, None, None]:
        """Iterate over all jobs, ordered by id."""
        after: str | None = ""
        while after is not None:
            page = self.list_jobs(after, limit=1000)
            yield from page.items
            after = page.next

    def cancel_job(self, job_id: str) -> JobCancelled:
        """Remove the tasks of a job that are not routed or wait in queues; return how many, and how many continue.

        Tasks that a worker has claimed are not interrupted. If they return to their queue, they are removed.

        Raises:
            NotFound: the broker knows no such job.
            AccessRefused: the user may not purge one of the job's queues; nothing was removed.
        """
        return self._request(CancelJob(0, job_id))

    def retry_job(self, job_id: str) -> FailuresRetried:
        """Run the failed tasks of a job again, each once; return how many.

        Tasks that fail during the call are excluded. If the call is interrupted, the same call continues it.

        Raises:
            NotFound: the broker knows no such job.
            PreconditionFailed: the job is cancelled, and some of its tasks have not ended.
        """
        return self._request(RetryJob(0, job_id))

    def delete_job(self, job_id: str) -> None:
        """Delete the record of a job whose tasks have ended, so that its id is free. Its messages stay.

        Raises:
            NotFound: the broker knows no such job.
            PreconditionFailed: some tasks have not ended.
        """
        self._request(DeleteJob(0, job_id))

    def wait_job(
        self,
        job_id: str,
        timeout: float | None = None,
        *,
        until: Callable[[JobInfo], bool] | None = None,
        progress: Callable[[JobInfo], object] | None = None,
    ) -> JobInfo:
        """Wait until each task of a job has ended; return the final state of the job.

        Args:
            timeout: seconds; None means no limit.
            until: returns True for another state that ends the wait.
            progress: called with the state of the job, about twice a second.

        Raises:
            NotFound: the broker knows no such job.
            TimeoutError: some tasks have not ended; the text has the reason if they are blocked.
        """
        wait = JobWait(timeout, until, clock=self._clock())
        while True:
            job = self.get_job(job_id)
            if progress is not None:
                progress(job)
            pause = wait.pause(job)
            if pause is None:
                return job
            self._clock().sleep(pause)
