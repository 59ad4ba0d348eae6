"""The messages about staged batches (docs/rfcs/0008-staged-batches.md)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from ..frame_limits import Many
from .message_base import Numbered

#: URI, rows, bytes, checksum, and the batch itself if it is sent inline
StagedBatch = tuple[str, int, int, int, bytes]


@dataclass(frozen=True)
class Blocked:
    """Why a job's messages can't be put into their queues now.

    Attributes:
        reason: in a few words.
        since_ms: when a message of the job was last put into a queue, or the broker started; ms since the epoch.
        queue: the full queue that refuses more; empty if something else blocks the job.
    """

    reason: str
    since_ms: int
    queue: str = ""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms // 1000, UTC)
        return f"{self.reason}, since {since:%Y-%m-%dT%H:%M:%SZ}"


class JobQueueCounts(msgspec.Struct, array_like=True, frozen=True):
    """What became of a job's messages in one queue.

    Attributes:
        routed: put into the queue.
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
        """How many are available or in flight."""
        return self.routed - self.done - self.failed - self.removed


class Job(msgspec.Struct, array_like=True, frozen=True):
    """A job, as the broker knows it. A message in two queues counts in each.

    Attributes:
        job_id: chosen by the driver.
        state: ``unknown`` (never committed, or forgotten), ``routing`` (committed, and being put into queues),
            ``routed``, or ``settled`` (each of its messages is done, failed or removed).
        first_id: id of the first message; the last has ``first_id + rows - 1``.
        rows: number of messages.
        batches: number of batches with rows.
        bytes: size of the batches.
        committed_at_ms: time of the commit, by the broker's clock; 0 if it is not committed.
        routed: rows that were routed so far, with any outcome.
        unroutable: rows that match no queue; they are dropped, as a publish would be.
        damaged: rows that could not be read for routing; the broker's log says why.
        queues: counts by queue; beyond 500 queues, the rest together under an empty name.
        running: started tasks that have not ended although their messages are done: they were acknowledged early.
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


# ------------------------------------------------------------------ client → broker
class GetStagingTarget(Numbered, tag=95):
    """Ask where executors write. Answer: StagingInfo."""


class CommitJob(Numbered, tag=96):
    """Make all messages of a job's batches visible, in this order. Answer: JobReport, after the commit.

    Committing a job id again adds nothing, whatever the batches are; the answer's ``added`` is then False.
    """

    job_id: str
    batches: Many[StagedBatch]


class AbortJob(Numbered, tag=97):
    """Remove these batches of an uncommitted job, or all its batches if none is named. Answer: Count (of objects)."""

    job_id: str
    uris: Many[str]


class GetJob(Numbered, tag=98):
    """Ask about a job. Answer: JobReport."""

    job_id: str


class ListJobs(Numbered, tag=99):
    """List at most ``limit`` jobs after this job id, in the order of their ids' UTF-8 bytes. Answer: Jobs."""

    after: str = ""
    limit: int = 1000


# ------------------------------------------------------------------ broker → client
class StagingInfo(Numbered, tag=195):
    """See :class:`kombu_opendata.staging.StagingTarget`."""

    url: str
    instance: str
    options: dict[str, str]
    max_message_bytes: int
    inline_bytes: int
    inline_rows: int


class JobReport(Numbered, tag=196):
    """A job.

    ``added`` says that this commit added its messages, ``same`` that its batches hold the same number of rows as those
    of the first commit, and ``blocked`` why it can't be routed now.
    """

    job: Job
    added: bool = False
    same: bool = True
    blocked: Blocked | None = None


class Jobs(Numbered, tag=199):
    """A page of jobs; ``blocked`` says for each job id why it can't be routed now."""

    jobs: list[Job]
    more: bool
    blocked: dict[str, Blocked] = msgspec.field(default_factory=dict)
