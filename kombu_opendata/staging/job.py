"""What a driver, its executors and the broker tell each other of a job. Plain values, all picklable."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from ..errors import RequestError
from ..protocol.envelope import DEFAULT_MAX_MESSAGE_BYTES

MAX_JOB_ID_BYTES = 255
MAX_PART = 0xFFFF_FFFF
#: what of a job's batches together goes inline: in the commit itself, without an object
INLINE_BYTES = 128 << 10
INLINE_ROWS = 500

_Bytes = bytes  # the name is a field's, too


@dataclass(frozen=True)
class StagingTarget:
    """Where the executors of a job write; the broker says it.

    Attributes:
        url: of the folder of staged batches: ``file:///…`` or ``s3://bucket/…``, ``gs:``, ``az:``.
        instance: the broker's instance; its name is in each batch.
        options: the object store's settings as far as they are no secrets (``endpoint``, ``region``, …). Credentials
            come from the executor's environment.
        max_message_bytes: of one envelope.
        inline_bytes, inline_rows: a batch of at most so much is not written, but handed over by the commit.
    """

    url: str
    instance: str = "default"
    options: dict[str, str] = field(default_factory=dict)
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    inline_bytes: int = INLINE_BYTES
    inline_rows: int = INLINE_ROWS


@dataclass(frozen=True)
class BatchInfo:
    """A batch that was written: what the commit must know of it.

    Attributes:
        uri: ``batch:<job>/<file>``, relative to the staged folder; empty if there are no rows.
        rows: messages in it.
        bytes: size of the object.
        checksum: CRC-32 that covers all of it, by the checksums of its parts.
        partition, attempt: as they were given to the writer.
        data: the object itself when it is small and was not written; else empty.
    """

    uri: str
    rows: int
    bytes: int
    checksum: int
    partition: int = 0
    attempt: int = 0
    data: _Bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class QueueCounts:
    """What became of a job's messages in one queue.

    Attributes:
        routed: were put into the queue.
        done: acknowledged.
        failed: given up, or rejected.
        removed: expired, purged, dropped for the queue's length, or gone with the queue.
    """

    routed: int = 0
    done: int = 0
    failed: int = 0
    removed: int = 0

    @property
    def waiting(self) -> int:
        """Available or in flight."""
        return self.routed - self.done - self.failed - self.removed


@dataclass(frozen=True)
class Blocked:
    """Why a job's messages don't get into their queues now.

    Attributes:
        reason: in a few words.
        since_ms: when the last of its messages got in, or the broker started, ms since the epoch.
        queue: the full one that refuses more; empty where something else is in the way.
    """

    reason: str
    since_ms: int
    queue: str = ""

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms // 1000, UTC)
        return f"{self.reason}, since {since:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True)
class JobInfo:
    """A job, as the broker knows it. A message in two queues counts in both.

    Attributes:
        job_id: as the driver chose it.
        state: ``unknown`` (never committed, or forgotten), ``routing`` (committed, and being put into queues),
            ``routed``, or ``settled`` (each of its messages is done, failed or removed).
        first_id: the first message's id; the last one's is ``first_id + rows - 1``.
        rows: messages.
        batches: batches with rows.
        bytes: of the batches.
        committed_at_ms: when, by the broker's clock; 0 if it is not committed.
        routed: rows that were routed so far, whatever came of it.
        unroutable: rows that no queue takes; they are dropped, as a publish would be.
        damaged: rows that could not be read when they were routed; the broker's log says why.
        queues: counts by queue; of more than 500 queues the rest together, under an empty name.
        added: whether it was this commit that added the messages; False if the job id was committed before.
        same: whether the batches of this commit hold as many rows as those that were committed.
        blocked: what keeps the job from being routed now, if anything does.
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
    queues: dict[str, QueueCounts] = field(default_factory=dict)
    added: bool = False
    same: bool = True
    blocked: Blocked | None = None

    @property
    def done(self) -> int:
        """Acknowledged, over all queues."""
        return sum(counts.done for counts in self.queues.values())

    @property
    def failed(self) -> int:
        """Given up or rejected, over all queues."""
        return sum(counts.failed for counts in self.queues.values())

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it is waiting any more."""
        return self.state == "settled"


def check_job_id(job_id: str) -> None:
    """Raises RequestError: empty, over 255 bytes, or no valid Unicode."""
    try:
        size = len(job_id) if len(job_id) > MAX_JOB_ID_BYTES else len(job_id.encode())
    except UnicodeEncodeError as exc:
        raise RequestError(f"the job id is not valid Unicode: {exc.reason}") from exc
    if not 0 < size <= MAX_JOB_ID_BYTES:
        raise RequestError(
            f"a job id has 1 to {MAX_JOB_ID_BYTES} bytes, not {size}: use e.g. a UUID or a table's name and its date",
            size=size,
            limit=MAX_JOB_ID_BYTES,
        )
