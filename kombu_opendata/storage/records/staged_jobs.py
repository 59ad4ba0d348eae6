"""Staged jobs: committed jobs, their batch objects, and the expiry of jobs.

Job, ``01 26 <job id TB>``:

================  =======  ======================================================================
field             type     meaning
================  =======  ======================================================================
version           u8       1
first id          u64      of its messages, whose ids are consecutive
rows              u64      number of messages
batches           u32      with rows
bytes             u64      of the batches
committed at      i64      ms since the epoch
routed            u64      rows that were routed so far; the next one is ``first id + routed``
unroutable        u64      of them: rows without a queue
damaged           u64      of them: rows that could not be read
settled at        i64      ms since the epoch; 0 while messages are waiting
queues            u16      number of queues; for each: name ``Utf8``, routed, done, failed, removed: u64
================  =======  ======================================================================

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

Job expiry, ``01 28 <settled at u64> <job id TB>``: its version as u8, 1.

The formats are defined here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from . import field_types, kinds

_JOB = struct.Struct("<BQQIQqQQQqH")
_COUNTS = struct.Struct("<QQQQ")
_OBJECT = struct.Struct("<BQQQI")
_JOB_FIELDS = "first id, rows, batches, bytes, committed at, routed, unroutable, damaged, settled at, queues"


#: queues that a job counts individually; further ones are counted together, under an empty name
_MAX_QUEUES = 500


@dataclass(slots=True, eq=False)
class StagedJob:
    """A committed job.

    Attributes:
        routed: the number of rows that were routed so far, unroutable and damaged ones included: the cursor.
        queues: name → [routed, done, failed, removed].
        settled_at_ms: the time at which its last message was settled; 0 before.
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
        """True if no message of the job is waiting."""
        return self.is_routed and all(counts[0] == sum(counts[1:]) for counts in self.queues.values())

    @property
    def state(self) -> str:
        """The state, named as in :class:`kombu_opendata.staging.JobInfo`."""
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


def encode_job(job: StagedJob) -> bytes:
    fields = (
        job.first_id, job.rows, job.batches, job.bytes, job.committed_at_ms, job.routed, job.unroutable, job.damaged,
        job.settled_at_ms, len(job.queues),
    )  # fmt: skip
    head = field_types.pack_versioned(_JOB, _JOB_FIELDS, *fields)
    return head + b"".join(field_types.utf8(name) + _COUNTS.pack(*counts) for name, counts in job.queues.items())


def decode_job(key: bytes, value: bytes) -> StagedJob:
    *fields, count = field_types.read_versioned(_JOB, key, value)
    queues: dict[str, list[int]] = {}
    at = _JOB.size
    for _ in range(count):
        name, at = field_types.read_utf8(key, value, at)
        queues[name] = list(field_types.read(_COUNTS, key, value, at))
        at += _COUNTS.size
    field_types.check_end(key, value, at)
    first_id, rows, batches, size, committed_at_ms, routed, unroutable, damaged, settled_at_ms = fields
    return StagedJob(
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
