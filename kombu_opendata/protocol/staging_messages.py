"""The messages about staged batches: docs/rfcs/0008-staged-batches.md. What a message is: :mod:`.message`."""

from __future__ import annotations

import msgspec

from ..staging.job import Blocked
from .frame_limits import Many
from .message_base import Message

#: uri, rows, bytes, checksum, and the batch itself where it goes inline
StagedBatch = tuple[str, int, int, int, bytes]
#: routed, done, failed, removed
Counts = tuple[int, int, int, int]
#: job id, state, first id, rows, batches, bytes, committed at ms, routed, unroutable, damaged, counts by queue
Job = tuple[str, str, int, int, int, int, int, int, int, int, dict[str, Counts]]


# ------------------------------------------------------------------ client → broker
class GetStagingTarget(Message, tag=95):
    """Where executors write. Answer: StagingInfo."""

    rid: int


class CommitJob(Message, tag=96):
    """Make all messages of a job's batches visible, in this order. Answer: JobReport, after the commit.

    A job id that was committed already adds nothing, whatever its batches; ``added`` tells.
    """

    rid: int
    job_id: str
    batches: Many[StagedBatch]


class AbortJob(Message, tag=97):
    """Remove these staged batches of a job that is not committed, or all of its batches if there are none.

    Answer: Count, of the objects that were removed.
    """

    rid: int
    job_id: str
    uris: Many[str]


class GetJob(Message, tag=98):
    """Answer: JobReport."""

    rid: int
    job_id: str


class ListJobs(Message, tag=99):
    """The jobs after this job id, in the order of their ids' UTF-8, at most ``limit``. Answer: Jobs."""

    rid: int
    after: str = ""
    limit: int = 1000


# ------------------------------------------------------------------ broker → client
class StagingInfo(Message, tag=195):
    """See :class:`kombu_opendata.staging.StagingTarget`."""

    rid: int
    url: str
    instance: str
    options: dict[str, str]
    max_message_bytes: int
    inline_bytes: int
    inline_rows: int


class JobReport(Message, tag=196):
    """A job; ``added``: this commit added its messages; ``same``: its batches hold as many rows; ``blocked``: why it
    can't be routed now."""

    rid: int
    job: Job
    added: bool = False
    same: bool = True
    blocked: Blocked | None = None


class Jobs(Message, tag=199):
    """One page; the last one has ``more`` False. ``blocked``: by job id, why some can't be routed now."""

    rid: int
    jobs: list[Job]
    more: bool
    blocked: dict[str, Blocked] = msgspec.field(default_factory=dict)
