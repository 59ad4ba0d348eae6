"""Calls about staged jobs: location of batches; commit, abort, listing."""

from __future__ import annotations

import math
import os

from ...errors import NotFound, PreconditionFailed, RequestError
from ...protocol import messages as m
from ...protocol.job_completion import completion_task
from ...protocol.messages import Blocked, Job, JobQueueCounts, TaskCounts
from ...protocol.permissions import ALL_EXCHANGES
from ...staging.batch_reader import path_of
from ...staging.job import INLINE_BYTES, INLINE_ROWS, BatchInfo, check_job_id
from ...storage.clock import Clock
from ...storage.commit.commits import Commits
from ...storage.history.failure import FailureFilterValues
from ...storage.operations.staged_jobs import Staging
from ...storage.records.staged_jobs import MAX_DIGEST_BYTES, StagedJob
from ...storage.state.staged_state import JobOptions
from ..access.rights import Rights
from ..instance.staged_job_commits import StagingService
from ..instance.staged_job_control import JobControl
from .dispatch import BrokerCalls, Context, check_range, handles
from .failure_bulk import Bulk, Bulks

MAX_JOBS_PAGE = 1000
#: settings of a bucket that are not secret, by the environment variable that holds them
_SHARED_OPTIONS = {
    "AWS_ENDPOINT_URL": "endpoint", "AWS_ENDPOINT": "endpoint", "AWS_ENDPOINT_URL_S3": "endpoint",
    "AWS_DEFAULT_REGION": "region", "AWS_REGION": "region",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "virtual_hosted_style_request",
}  # fmt: skip
#: the fields of a reply that are those of the stored job
_COPIED = [name for name in Job.__struct_fields__ if name in StagedJob.__slots__ and name not in ("queues", "tasks")]


class StagingCalls(BrokerCalls):
    """Calls of a driver that stages a job."""

    _instance_name: str
    _service: StagingService
    _staging: Staging
    _control: JobControl
    _bulks: Bulks
    _commits: Commits
    _clock: Clock
    _max_message_bytes: int

    @handles(m.GetStagingTarget)
    def get_staging_target(self, call: Context, msg: m.GetStagingTarget) -> None:
        """Reply with the location where executors write batches; raise an error if the store can't hold batches."""
        self._staging.folder.open()
        url, options = self._staging.folder.url, {}
        if url.startswith("s3"):
            options = {
                name: os.environ[variable] for variable, name in _SHARED_OPTIONS.items() if variable in os.environ
            }
        limits = self._max_message_bytes, INLINE_BYTES, INLINE_ROWS
        call.reply(m.StagingInfo(msg.rid, url, self._instance_name, options, *limits))

    @handles(m.CommitJob)
    async def commit_job(self, call: Context, msg: m.CommitJob) -> m.JobReport:
        check_job_id(msg.job_id)
        batches = [BatchInfo(uri, rows, size, crc, data=data) for uri, rows, size, crc, data in msg.batches]
        for batch in batches:
            if batch.rows <= 0 or batch.bytes <= 0:
                raise RequestError(f"batch {batch.uri[:200]!r} claims {batch.rows} rows in {batch.bytes} bytes")
            path_of(batch, msg.job_id)
        options = self._options(msg)
        job, added = await self._service.commit(msg.job_id, batches, options)
        same = job.rows == sum(batch.rows for batch in batches)
        same &= not (job.digest and msg.digest) or job.digest == msg.digest
        (report,) = self._reports([job], call.session.rights)
        return m.JobReport(msg.rid, report, added, same, self._blocked(job, call.session.rights))

    def _options(self, msg: m.CommitJob) -> JobOptions:
        """Return the options of a commit; raise RequestError or InvalidMessage if one is not valid."""
        check_range("the size of a digest", len(msg.digest.encode()), 0, MAX_DIGEST_BYTES)
        if not 0 <= msg.rate_limit < math.inf:
            text = f"a rate limit of {msg.rate_limit} tasks in a second is not valid: give a number above 0"
            raise RequestError(text, value=msg.rate_limit)
        if msg.on_complete:
            completion_task(msg.on_complete, {}, 0)
        return JobOptions(msg.digest, msg.rate_limit, msg.on_complete)

    @handles(m.AbortJob)
    async def abort_job(self, call: Context, msg: m.AbortJob) -> m.Count:
        check_job_id(msg.job_id)
        return m.Count(msg.rid, await self._service.abort(msg.job_id, msg.uris))

    @handles(m.GetJob)
    async def get_job(self, call: Context, msg: m.GetJob) -> m.JobReport:
        check_job_id(msg.job_id)
        job = self._staging.state.find(msg.job_id)
        if job is None:
            return m.JobReport(msg.rid, Job(msg.job_id))
        rights = call.session.rights
        (report,) = self._reports([job], rights)
        return m.JobReport(msg.rid, report, blocked=self._blocked(job, rights))

    @handles(m.ListJobs)
    async def list_jobs(self, call: Context, msg: m.ListJobs) -> m.Jobs:
        if msg.after:
            check_job_id(msg.after)
        check_range("the limit of a page", msg.limit, 1, MAX_JOBS_PAGE)
        jobs, has_more = self._staging.page(msg.after, msg.limit)
        rights = call.session.rights
        blocked = {job.id: why for job in jobs if (why := self._blocked(job, rights)) is not None}
        return m.Jobs(msg.rid, self._reports(jobs, rights), has_more, blocked)

    # ------------------------------------------------------------------ changes of a job
    @handles(m.CancelJob)
    async def cancel_job(self, call: Context, msg: m.CancelJob) -> m.JobCancelled:
        job = self._existing(msg.job_id)
        rights = call.session.rights
        for name in job.queues:
            _check_queue(rights, "read", name)
        dropped = 0
        if not job.settled_at_ms:
            dropped = await self._control.cancel(job)
            self._commits.needs_sync = True
            call.audit("cancelled job %r, and removed %d of its tasks", job.id, dropped)
        ended = sum(job.ended)
        return m.JobCancelled(msg.rid, dropped, job.tasks - ended, ended - dropped)

    @handles(m.RetryJob)
    async def retry_job(self, call: Context, msg: m.RetryJob) -> m.FailuresRetried:
        job = self._existing(msg.job_id)
        session, connection = call.session, call.session.connection
        for name in job.queues:
            for right in ("read", "write"):
                _check_queue(session.rights, right, name)
        if job.cancelled_at_ms and not job.settled_at_ms:
            text = f"job {job.id!r} is cancelled, and some of its tasks run: wait until they have ended"
            raise PreconditionFailed(text, job_id=job.id)
        filters = FailureFilterValues(
            queues=() if "" in job.queues else tuple(job.queues),
            since_ms=job.committed_at_ms,
            until_ms=self._clock.now_ms(),
            job=job.id,
        )
        bulk = Bulk(filters, None, 0, lambda: session.connection is connection)
        bulk.retried.rid = msg.rid
        await self._bulks.retry(bulk)
        while bulk.next is not None and bulk.go_on() and not bulk.retried.full:
            await self._bulks.retry(bulk)
        if bulk.handled:
            call.audit("ran %d failed tasks of job %r again", bulk.handled, job.id)
        return bulk.retried

    @handles(m.DeleteJob)
    async def delete_job(self, call: Context, msg: m.DeleteJob) -> m.Ok:
        job = self._existing(msg.job_id)
        if job.settled_at_ms and not await self._control.completed(job):
            text = f"the task on completion of job {job.id!r} waits, as its queue is full: delete the job later"
            raise PreconditionFailed(text, job_id=job.id)
        job = self._existing(msg.job_id)  # it may have been retried or deleted in the meantime
        if not job.settled_at_ms:
            text = f"job {job.id!r} has {job.tasks - sum(job.ended)} tasks that have not ended: cancel it first"
            raise PreconditionFailed(text, job_id=job.id)
        self._staging.delete(job)
        call.audit("deleted job %r", job.id)
        return m.Ok(msg.rid)

    def _existing(self, job_id: str) -> StagedJob:
        """Return a job; raise NotFound if it is unknown."""
        check_job_id(job_id)
        job = self._staging.state.find(job_id)
        if job is None:
            text = f"there is no job {job_id!r}: it was never committed, or was deleted"
            raise NotFound(text, job_id=job_id)
        return job

    def _blocked(self, job: StagedJob, rights: Rights) -> Blocked | None:
        """Return the reason why a job waits, without the name of a queue that the user may not see."""
        blocked = self._service.blocked(job)
        if blocked is None or not blocked.queue or rights.may_see(blocked.queue):
            return blocked
        return Blocked("a queue takes or delivers no messages now", blocked.since_ms)

    def _reports(self, jobs: list[StagedJob], rights: Rights) -> list[Job]:
        running, now = self._staging.running(), self._clock.now_ms()
        return [_report(job, running[job.id], self._staging.state.rate(job.id, now), rights) for job in jobs]


def _check_queue(rights: Rights, right: str, queue: str) -> None:
    """Raise AccessRefused if the user lacks a right on a queue of a job; the text does not reveal a hidden queue."""
    if not queue:
        rights.check(right, "exchange", ALL_EXCHANGES, or_role="operator")
    elif rights.may_see(queue):
        rights.check(right, "queue", queue, or_role="operator")
    elif "operator" not in rights.roles:
        rights.check_role("operator", f"{right} a queue of this job")


def _report(job: StagedJob, running: int, rate: float, rights: Rights) -> Job:
    """Return a job as in a reply; queues that the user may not see are counted under an empty name."""
    queues: dict[str, JobQueueCounts] = {}
    for name, counts in job.queues.items():
        key = name if rights.may_see(name) else ""
        total = queues.get(key, JobQueueCounts())
        done, failed, removed = total.done + counts[1], total.failed + counts[2], total.removed + counts[3]
        queues[key] = JobQueueCounts(total.routed + counts[0], done, failed, removed)
    tasks = TaskCounts(job.tasks - sum(job.ended) - running, running, *job.ended)
    copied = {name: getattr(job, name) for name in _COPIED}
    return Job(job_id=job.id, state=job.state, queues=queues, running=running, tasks=tasks, rate=rate, **copied)
