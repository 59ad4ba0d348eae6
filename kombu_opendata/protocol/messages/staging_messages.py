"""Messages about staged batches (docs/rfcs/0008-staged-batches.md)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
from msgspec import structs

from .. import permissions
from ..permissions import STAGED_JOBS, on_exchange
from ..task_reports import FAILED
from .failure_messages import FailuresRetried
from .message_base import Many, Numbered, Request, WireRecord, operation
from .session_messages import Ok
from .topology_messages import Count

#: URI, rows, bytes, checksum, and the batch if it is sent inline
StagedBatch = tuple[str, int, int, int, bytes]


@dataclass(frozen=True)
class Blocked:
    """Reason why a job's tasks wait: a queue is full or paused or has no consumer, or the broker has stopped routing.

    Attributes:
        reason: a short text.
        since_ms: the time since when: of a full queue, of the last routing of a message of the job, or of the broker's
            startup.
        queue: the queue; empty if the broker has stopped routing.
    """

    reason: str
    since_ms: int
    queue: str = ""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms // 1000, UTC)
        return f"{self.reason}, since {since:%Y-%m-%dT%H:%M:%SZ}"


class JobQueueCounts(WireRecord, frozen=True):
    """Counts of a job's messages in one queue.

    Attributes:
        routed: number of messages that were routed to the queue; the other counts are parts of it.
        done: acknowledged.
        failed: rejected, or out of attempts.
        removed: expired, purged, dropped at the queue's maximum length, or deleted with the queue.
    """

    routed: int = 0
    done: int = 0
    failed: int = 0
    removed: int = 0

    @property
    def waiting(self) -> int:
        """Number of messages that are ready, delayed or in flight."""
        return self.routed - self.done - self.failed - self.removed


class TaskCounts(WireRecord, frozen=True):
    """Counts of a job's tasks by state. The state of a task is that of its newest message.

    A message that is in several queues, or was copied into another queue, is a task for each of them.

    Attributes:
        waiting: not routed yet, or in a queue, or delivered to a worker that has not started it.
        running: started, and not ended.
        acknowledged: acknowledged by a consumer that reports no states of tasks.
        succeeded, raised, timed_out, revoked, rejected, ignored, lost: as reported, see
            :class:`kombu_opendata.protocol.task_reports.TaskState`; also ``rejected``: rejected without a report, and
            ``lost``: out of attempts after its lease expired.
        retried: retried by a message that does not belong to the job, as one in another store.
        expired: expired in its queue. A task that expires in the worker is revoked.
        dead_lettered: became a dead letter, which is no longer a message of the job.
        removed: purged, dropped at the queue's maximum length, deleted, damaged, or without a queue.
    """

    waiting: int = 0
    running: int = 0
    acknowledged: int = 0
    succeeded: int = 0
    raised: int = 0
    retried: int = 0
    revoked: int = 0
    timed_out: int = 0
    rejected: int = 0
    ignored: int = 0
    lost: int = 0
    expired: int = 0
    dead_lettered: int = 0
    removed: int = 0

    @property
    def total(self) -> int:
        """Number of tasks."""
        return sum(structs.astuple(self))

    @property
    def ended(self) -> int:
        """Number of tasks that have ended."""
        return self.total - self.waiting - self.running

    @property
    def failed(self) -> int:
        """Number of tasks that ended without success: neither succeeded nor ignored nor acknowledged."""
        return self.ended - self.acknowledged - self.succeeded - self.ignored - self.retried

    @property
    def retryable(self) -> int:
        """Number of failed tasks that a retry can run again: neither revoked, expired, dead-lettered nor removed."""
        return sum(getattr(self, state.name.lower()) for state in FAILED)


class Job(WireRecord, frozen=True):
    """Job, as recorded by the broker.

    Attributes:
        job_id: the id that the driver chose.
        state: ``unknown`` (never committed, or deleted), ``routing`` (committed, and being routed), ``routed``, or
            ``settled`` (each of its tasks has ended).
        first_id: id of the first message; the last message has ``first_id + rows - 1``.
        rows: number of messages.
        batches: number of batches with rows.
        bytes: size of the batches.
        committed_at_ms: time of the commit, by the broker's clock; 0 if the job is not committed.
        routed: number of rows that routing has processed, including unroutable and damaged rows.
        unroutable: number of rows that match no queue; they are dropped, as unroutable publishes are.
        damaged: number of rows that could not be read for routing; the broker's log has the reason.
        queues: counts by queue, to which a message in two queues adds twice; beyond 500 queues, the other queues are
            summed under an empty name.
        running: number of tasks that run, as in ``tasks``.
        tasks: counts of its tasks by state.
        rate: number of tasks that ended in a second, on average over the last minute.
        digest: digest of what the driver submitted; empty if it is unknown.
        rate_limit: number of tasks that routing adds to queues in a second; 0 for no limit.
        cancelled_at_ms: time at which it was cancelled; 0 if it was not.
        settled_at_ms: time at which the last task ended; 0 before.
        completed_at_ms: time at which its message on completion was sent; 0 before, or if it has none.
    """

    job_id: str
    state: str = "unknown"
    first_id: int = 0
    rows: int = 0
    batches: int = 0
    bytes: int = 0
    committed_at_ms: int = 0
    routed: int = 0
    unroutable: int = 0
    damaged: int = 0
    queues: dict[str, JobQueueCounts] = msgspec.field(default_factory=dict)
    running: int = 0
    tasks: TaskCounts = TaskCounts()
    rate: float = 0.0
    digest: str = ""
    rate_limit: float = 0.0
    cancelled_at_ms: int = 0
    settled_at_ms: int = 0
    completed_at_ms: int = 0


class JobInfo(Job, array_like=True, frozen=True):
    """Job with the further fields of a reply.

    Attributes:
        added: True if this commit added the messages; False if the job id was committed before.
        same: True if the batches of this commit have the same number of rows as those of the first commit, and the
            digests, if both have one, are equal.
        blocked: the reason why the job can't be routed now, if any.
    """

    added: bool = False
    same: bool = True
    blocked: Blocked | None = None

    @property
    def done(self) -> int:
        """Number of acknowledged messages in all queues."""
        return sum(counts.done for counts in self.queues.values())

    @property
    def failed(self) -> int:
        """Number of messages in all queues that were rejected or are out of attempts."""
        return sum(counts.failed for counts in self.queues.values())

    @property
    def has_ended(self) -> bool:
        """True if each task has ended."""
        return self.state == "settled"

    @property
    def seconds_left(self) -> float | None:
        """Time until the last task ends, at the current rate; None if no task has ended in the last minute."""
        left = self.tasks.waiting + self.tasks.running
        return left / self.rate if self.rate else None


# ------------------------------------------------------------------ broker → client
class StagingInfo(Numbered, tag=195):
    """Staging target, see :class:`kombu_opendata.staging.job.StagingTarget`."""

    url: str
    instance: str
    options: dict[str, str]
    max_message_bytes: int
    inline_bytes: int
    inline_rows: int


class JobReport(Numbered, tag=196):
    """Report of a job; the fields are as in :class:`JobInfo`."""

    job: Job
    added: bool = False
    same: bool = True
    blocked: Blocked | None = None

    @property
    def info(self) -> JobInfo:
        return JobInfo(**structs.asdict(self.job), added=self.added, same=self.same, blocked=self.blocked)


class Jobs(Numbered, tag=199):
    """Page of jobs; ``blocked`` has the reasons why jobs can't be routed now, by job id."""

    jobs: list[Job]
    more: bool
    blocked: dict[str, Blocked] = msgspec.field(default_factory=dict)

    @property
    def items(self) -> list[JobInfo]:
        return [JobInfo(**structs.asdict(job), blocked=self.blocked.get(job.job_id)) for job in self.jobs]

    @property
    def next(self) -> str | None:
        """Argument ``after`` for the next page; None if this is the last page."""
        return self.jobs[-1].job_id if self.more and self.jobs else None


class JobCancelled(Numbered, tag=197):
    """Outcome of a cancellation; the counts are those of the job's tasks.

    Attributes:
        dropped: removed by this call: not routed yet, or waiting in a queue.
        running: claimed by a consumer or started, and not ended. They are not interrupted.
        ended: ended before, those included that other calls have removed.
    """

    dropped: int
    running: int
    ended: int


# ------------------------------------------------------------------ client → broker
@operation("stage a job", on_exchange("write", STAGED_JOBS))
class GetStagingTarget(Request[StagingInfo], tag=95):
    """Request to get the target to which executors write."""


@operation("commit a job", on_exchange("write", STAGED_JOBS), stores=True, large=True)
class CommitJob(Request[JobReport], tag=96):
    """Request to commit all messages of a job's batches, in this order. Reply: JobReport, after the commit.

    A second commit of a job id adds nothing, even with other batches; ``added`` in the reply is then False.

    Attributes:
        digest: digest of what the driver submits, for the comparison with another commit of the job id.
        rate_limit: number of tasks that routing adds to queues in a second; 0 for no limit.
        on_complete: envelope of a task that is sent once, when all tasks of the job have ended for the first time. Its
            body is JSON or MessagePack, and it gets the keyword argument ``job``: ``job_id`` and ``tasks``, the counts
            of tasks by state.
    """

    job_id: str
    batches: Many[StagedBatch]
    digest: str = ""
    rate_limit: float = 0.0
    on_complete: bytes = b""


@operation("abort a job", on_exchange("write", STAGED_JOBS), large=True)
class AbortJob(Request[Count], tag=97):
    """Request to delete these batches of an uncommitted job, or all its batches if the list is empty.

    Reply: Count (of objects).
    """

    job_id: str
    uris: Many[str]


@operation("get a job", on_exchange("write", STAGED_JOBS, or_role="monitor"))
class GetJob(Request[JobReport], tag=98):
    """Request to get a job."""

    job_id: str


@operation("list jobs", on_exchange("write", STAGED_JOBS, or_role="monitor"))
class ListJobs(Request[Jobs], tag=99):
    """Request to list at most ``limit`` jobs with ids after ``after``, in the order of the ids' UTF-8 bytes."""

    after: str = ""
    limit: int = 1000


@operation("cancel a job", permissions.cancel_job, overtakes=True)
class CancelJob(Request[JobCancelled], tag=117):
    """Request to cancel a job: to remove its tasks that are not routed, and those that wait in queues.

    Tasks that a consumer has claimed continue. If they return to their queue, they are removed, and so are messages
    that retry them.
    """

    job_id: str


@operation("retry a job", permissions.retry_job, query=True, stores=True)
class RetryJob(Request[FailuresRetried], tag=118):
    """Request to run the tasks of a job again that failed, each once. The job is then no longer cancelled.

    A failed message becomes ready again. The task of an acknowledged message is published again.
    """

    job_id: str


@operation("delete a job", on_exchange("write", STAGED_JOBS, or_role="operator"))
class DeleteJob(Request[Ok], tag=119):
    """Request to delete the record of a job whose tasks have ended. Its messages stay."""

    job_id: str
