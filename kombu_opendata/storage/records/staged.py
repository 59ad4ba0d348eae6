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
from typing import NamedTuple

from . import types

_JOB = struct.Struct("<BQQIQqQQQqH")
_COUNTS = struct.Struct("<QQQQ")
_OBJECT = struct.Struct("<BQQQI")
_JOB_FIELDS = "first id, rows, batches, bytes, committed at, routed, unroutable, damaged, settled at, queues"


class JobRecord(NamedTuple):
    """A committed job; ``queues``: name → (routed, done, failed, removed)."""

    first_id: int
    rows: int
    batches: int
    bytes: int
    committed_at_ms: int
    routed: int
    unroutable: int
    damaged: int
    settled_at_ms: int
    queues: dict[str, tuple[int, int, int, int]]


class Object(NamedTuple):
    """A batch object of a committed job."""

    rows: int
    live: int
    bytes: int
    checksum: int
    path: str
    job_id: str


def encode_job(job: JobRecord) -> bytes:
    """Encode `job`."""
    head = types.pack_versioned(_JOB, _JOB_FIELDS, *job[:9], len(job.queues))
    return head + b"".join(types.utf8(name) + _COUNTS.pack(*counts) for name, counts in job.queues.items())


def decode_job(key: bytes, value: bytes) -> JobRecord:
    """Decode the job in `value`."""
    *fields, count = types.read_versioned(_JOB, key, value)
    queues: dict[str, tuple[int, int, int, int]] = {}
    at = _JOB.size
    for _ in range(count):
        name, at = types.read_utf8(key, value, at)
        routed, done, failed, removed = types.read(_COUNTS, key, value, at)
        queues[name] = (routed, done, failed, removed)
        at += _COUNTS.size
    types.check_end(key, value, at)
    return JobRecord._make((*fields, queues))


def encode_object(found: Object) -> bytes:
    """Encode an object."""
    head = types.pack_versioned(_OBJECT, "rows, live, bytes, checksum", *found[:4])
    return head + types.utf8(found.path) + types.utf8(found.job_id)


def decode_object(key: bytes, value: bytes) -> Object:
    """Decode the object in `value`."""
    rows, live, size, checksum = types.read_versioned(_OBJECT, key, value)
    if live > rows:
        raise types.corrupt(key, 9, f"{live} live messages of {rows}")
    path, at = types.read_utf8(key, value, _OBJECT.size)
    job_id, at = types.read_utf8(key, value, at)
    types.check_end(key, value, at)
    return Object(rows, live, size, checksum, path, job_id)
