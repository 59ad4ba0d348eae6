"""Staged jobs: committed jobs, their batch objects, the final states of their tasks, and the expiry of jobs.

Job, ``01 26 <job id TB>``:

================  =======  ======================================================================
field             type     meaning
================  =======  ======================================================================
version           u8       2; version 1 ends with the queues
first id          u64      of its messages, whose ids are consecutive
rows              u64      number of messages
batches           u32      with rows
bytes             u64      of the batches
committed at      i64      ms since the epoch
routed            u64      rows that were routed so far; the next one is ``first id + routed``
unroutable        u64      of them: rows without a queue
damaged           u64      of them: rows that could not be read
settled at        i64      ms since the epoch; 0 before the last task ended
queues            u16      number of queues; for each: name ``Utf8``, routed, done, failed, removed: u64
tasks             u64      number of tasks
ended             u8       number of final states; for each, in the order of :data:`END_STATES`: u64 tasks
rate limit        f64      tasks a second that routing does not exceed; 0 for no limit
cancelled at      i64      ms since the epoch; 0 if it was not cancelled
completed at      i64      ms since the epoch; 0 before the message on completion was sent
digest            Utf8     of what the driver submitted; empty if it is unknown
on complete       u32      length, then that many bytes: the message on completion; none before or after
================  =======  ======================================================================

In version 1 each row is a task, and a task's final state is that of its message: done, failed or removed.

Staged object, ``01 27 <first message id u64>``:

================  =======  ======================================================================
field             type     meaning
================  =======  ======================================================================
version           u8       1
rows              u64      messages in it
live              u64      of them: messages that were not collected
bytes             u64      size of the object
checksum          u32      CRC-32 of its footer
path              Utf8     in the folder of staged batches
job id            Utf8
================  =======  ======================================================================

Ends of tasks, ``01 36 <message id u64>`` of the first of up to 4,096 messages of a job, counted from its first id:

================  =======  ======================================================================
field             type     meaning
================  =======  ======================================================================
version           u8       1
codes             deflate  with zlib's header; for each message: u8, see :class:`EndCode`
================  =======  ======================================================================

Follower, ``01 37 <message id u64>``, a later message of a task:

================  =======  ======================================================================
field             type     meaning
================  =======  ======================================================================
version           u8       1
first id          u64      of the job
predecessor       u64      the task's message before it
code              u8       see :class:`EndCode`
open              u16      number of queues in which it has not ended
================  =======  ======================================================================

Job expiry, ``01 28 <settled at u64> <job id TB>``: its version as u8, 1.

The formats are defined here.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum

from ...protocol.task_reports import STATES, TaskState
from . import field_types, kinds

_JOB = struct.Struct("<BQQIQqQQQqH")
_TASKS = struct.Struct("<QB")
_ENDED = struct.Struct("<Q")
_STEERING = struct.Struct("<dqq")
_LENGTH = struct.Struct("<I")
_COUNTS = struct.Struct("<QQQQ")
_OBJECT = struct.Struct("<BQQQI")
_FOLLOWER = struct.Struct("<BQQBH")
_JOB_FIELDS = "first id, rows, batches, bytes, committed at, routed, unroutable, damaged, settled at, queues"

_JOB_VERSION = 2
_Bytes = bytes  # ``bytes`` is also the name of a field

#: the final states that are not reported, after those of :class:`.TaskState`, whose 0 means: done without a report
EXPIRED, DEAD_LETTERED, REMOVED = range(len(STATES), len(STATES) + 3)
#: names of the final states of tasks by number
END_STATES = ("acknowledged", *STATES[1:], "expired", "dead_lettered", "removed")


class EndCode(IntEnum):
    """The end of a message in the records; a message whose final state counts has the number of this state + 1."""

    OPEN = 0  # it has not ended
    UNCOUNTED = 254  # it has ended, and a later message of its task counts
    REPLACED = 255  # it has not ended, and a later message of its task counts


#: messages of one record of ends
ENDS_ROWS = 4096
#: limit for the digest of a job, in bytes
MAX_DIGEST_BYTES = 64
#: queues that a job counts individually; further ones are counted together, under an empty name
_MAX_QUEUES = 500


@dataclass(slots=True, eq=False)
class StagedJob:
    """A committed job.

    Attributes:
        routed: the number of rows that were routed so far, unroutable and damaged ones included: the cursor.
        queues: name → [routed, done, failed, removed].
        settled_at_ms: the time at which its last task ended; 0 before.
        tasks: the number of its tasks: its rows, and one more for each further queue of a message. A message of a task
            that is not its newest does not count.
        ended: the numbers of tasks by final state, as in :data:`END_STATES`.
        rate_limit: the number of tasks that routing adds to queues in a second; 0 for no limit.
        cancelled_at_ms: 0 if it was not cancelled.
        completed_at_ms: the time at which the message on completion was sent; 0 before.
        digest: a digest of what the driver submitted; empty if it is unknown.
        on_complete: the encoded publish that is sent when the job has ended; empty if there is none, or it was sent.
    """

    id: str
    first_id: int
    rows: int
    batches: int
    bytes: int
    committed_at_ms: int
    routed: int = 0
    unroutable: int = 0
    damaged: int = 0
    settled_at_ms: int = 0
    queues: dict[str, list[int]] = field(default_factory=dict)
    tasks: int = 0
    ended: list[int] = field(default_factory=lambda: [0] * len(END_STATES))
    rate_limit: float = 0.0
    cancelled_at_ms: int = 0
    completed_at_ms: int = 0
    digest: str = ""
    on_complete: _Bytes = b""

    def counts(self, queue: str) -> list[int] | None:
        return self.queues.get(queue) or self.queues.get("")

    def add_routed(self, queue: str, count: int) -> None:
        name = queue if queue in self.queues or len(self.queues) < _MAX_QUEUES else ""
        self.queues.setdefault(name, [0, 0, 0, 0])[0] += count

    @property
    def is_routed(self) -> bool:
        return self.routed == self.rows

    @property
    def is_over(self) -> bool:
        """True if all tasks of the job have ended."""
        return self.is_routed and self.tasks == sum(self.ended)

    @property
    def state(self) -> str:
        """The state, named as in :class:`.JobInfo`."""
        if self.settled_at_ms:
            return "settled"
        return "routed" if self.is_routed else "routing"


@dataclass(slots=True, eq=False)
class StagedObject:
    """A batch object of a committed job; ``live`` counts its messages that are not collected."""

    first_id: int
    rows: int
    live: int
    bytes: int
    checksum: int
    path: str
    job_id: str


@dataclass(slots=True, eq=False)
class Follower:
    """A later message of a task: as Celery's retry, or a retry by a user.

    Attributes:
        first_id: the first message of the job.
        predecessor: the task's message before it.
        code: its :class:`EndCode`; with several queues, of the newest end.
        open: the number of queues in which it has not ended.
    """

    first_id: int
    predecessor: int
    open: int
    code: int = EndCode.OPEN


def encode_job(job: StagedJob) -> bytes:
    fields = (
        job.first_id, job.rows, job.batches, job.bytes, job.committed_at_ms, job.routed, job.unroutable, job.damaged,
        job.settled_at_ms, len(job.queues),
    )  # fmt: skip
    return b"".join(
        (
            field_types.pack(_JOB, f"version, {_JOB_FIELDS}", _JOB_VERSION, *fields),
            *(field_types.utf8(name) + _COUNTS.pack(*counts) for name, counts in job.queues.items()),
            field_types.pack(_TASKS, "tasks, final states", job.tasks, len(job.ended)),
            *map(_ENDED.pack, job.ended),
            _STEERING.pack(job.rate_limit, job.cancelled_at_ms, job.completed_at_ms),
            field_types.utf8(job.digest),
            _LENGTH.pack(len(job.on_complete)),
            job.on_complete,
        )
    )


def decode_job(key: bytes, value: bytes) -> StagedJob:
    version, *fields, count = field_types.read(_JOB, key, value, 0)
    if version != _JOB_VERSION:
        field_types.check_version(key, version)
    queues: dict[str, list[int]] = {}
    at = _JOB.size
    for _ in range(count):
        name, at = field_types.read_utf8(key, value, at)
        queues[name] = list(field_types.read(_COUNTS, key, value, at))
        at += _COUNTS.size
    first_id, rows, batches, size, committed_at_ms, routed, unroutable, damaged, settled_at_ms = fields
    job = StagedJob(
        id=kinds.parse(key).name or "",
        first_id=first_id,
        rows=rows,
        batches=batches,
        bytes=size,
        committed_at_ms=committed_at_ms,
        routed=routed,
        unroutable=unroutable,
        damaged=damaged,
        settled_at_ms=settled_at_ms,
        queues=queues,
    )
    if version == _JOB_VERSION:
        at = _read_tasks(job, key, value, at)
    else:
        _count_messages(job)
    field_types.check_end(key, value, at)
    return job


def _read_tasks(job: StagedJob, key: bytes, value: bytes, at: int) -> int:
    """Read the fields of version 2; return the offset of their end."""
    job.tasks, states = field_types.read(_TASKS, key, value, at)
    if states != len(END_STATES):
        raise field_types.corrupt(key, at + 8, f"{states} final states")
    at += _TASKS.size
    ended, at = field_types.read_column("Q", key, value, at, states)
    job.ended = list(ended)
    job.rate_limit, job.cancelled_at_ms, job.completed_at_ms = field_types.read(_STEERING, key, value, at)
    job.digest, at = field_types.read_utf8(key, value, at + _STEERING.size)
    (length,) = field_types.read(_LENGTH, key, value, at)
    end: int = at + _LENGTH.size + length
    job.on_complete = value[at + _LENGTH.size : end]
    return end


def _count_messages(job: StagedJob) -> None:
    """Set the counts of tasks of a job of version 1 from those of its messages."""
    dropped = job.unroutable + job.damaged
    routed, done, failed, removed = map(sum, zip([0, 0, 0, 0], *job.queues.values(), strict=True))
    job.tasks = job.rows - job.routed + dropped + routed
    job.ended[0], job.ended[TaskState.REJECTED], job.ended[REMOVED] = done, failed, removed + dropped


def encode_object(batch: StagedObject) -> bytes:
    head = field_types.pack_versioned(
        _OBJECT, "rows, live, bytes, checksum", batch.rows, batch.live, batch.bytes, batch.checksum
    )
    return head + field_types.utf8(batch.path) + field_types.utf8(batch.job_id)


def decode_object(key: bytes, value: bytes) -> StagedObject:
    rows, live, size, checksum = field_types.read_versioned(_OBJECT, key, value)
    if live > rows:
        raise field_types.corrupt(key, 9, f"{live} live messages of {rows}")
    path, at = field_types.read_utf8(key, value, _OBJECT.size)
    job_id, at = field_types.read_utf8(key, value, at)
    field_types.check_end(key, value, at)
    return StagedObject(kinds.parse(key).id or 0, rows, live, size, checksum, path, job_id)


def encode_ends(codes: bytes | bytearray) -> bytes:
    return field_types.VERSION_ONLY + zlib.compress(codes, 1)


def decode_ends(key: bytes, value: bytes) -> bytearray:
    field_types.check_version(key, value[0] if value else 0)
    inflate = zlib.decompressobj()
    try:
        codes = inflate.decompress(value[1:], ENDS_ROWS + 1)
    except zlib.error as exc:
        raise field_types.corrupt(key, 1, f"codes that can't be decompressed ({exc})") from exc
    if not 0 < len(codes) <= ENDS_ROWS or not inflate.eof or inflate.unused_data:
        raise field_types.corrupt(key, 1, f"codes of {len(codes)} messages")
    wrong = set(codes) - _CODES
    if wrong:
        raise field_types.corrupt(key, 1, f"code {min(wrong)} of a message")
    return bytearray(codes)


def encode_follower(follower: Follower) -> bytes:
    fields = follower.first_id, follower.predecessor, follower.code, follower.open
    return field_types.pack_versioned(_FOLLOWER, "first id, predecessor, code, open", *fields)


def decode_follower(key: bytes, value: bytes) -> Follower:
    first_id, predecessor, code, count = field_types.read_all_versioned(_FOLLOWER, key, value)
    if code not in _CODES:
        raise field_types.corrupt(key, 17, f"code {code} of a message")
    return Follower(first_id, predecessor, count, code)


_CODES = {*EndCode, *range(1, 1 + len(END_STATES))}
