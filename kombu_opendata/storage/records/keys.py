"""Builders of the keys of all records, and ranges of keys. :mod:`.kinds` has the fields of each kind's keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

from ...errors import RequestError
from . import field_types
from .kinds import DIGEST_BYTES, HASH_BYTES, U16, U32, U64
from .kinds import MAX_MESSAGE_ID as MAX_MESSAGE_ID
from .kinds import SESSION_BYTES as SESSION_BYTES
from .kinds import ParsedKey as ParsedKey
from .kinds import RecordKind as RecordKind
from .kinds import parse as parse

SEQ_BLOCK_KEY = RecordKind.SEQ_BLOCK.prefix
STORE_HEADER_KEY = RecordKind.STORE_HEADER.prefix
JOURNAL_POSITION_KEY = RecordKind.JOURNAL_POSITION.prefix
HISTORY_HEAD_KEY = RecordKind.HISTORY_HEAD.prefix
NEWEST_TIME_KEY = RecordKind.NEWEST_TIME.prefix
LOG_RETENTION_KEY = RecordKind.LOG_RETENTION.prefix

# The prefixes of the keys that are built for each message.
_PAYLOAD, _METADATA = RecordKind.PAYLOAD.prefix, RecordKind.METADATA.prefix


# ---- fields
def _id(message_id: int) -> bytes:
    if not 0 <= message_id < MAX_MESSAGE_ID:
        raise RequestError(f"message id {message_id} is not in 0 … {MAX_MESSAGE_ID - 1}", message_id=message_id)
    return U64.pack(message_id)


def _bucket(bucket: int) -> bytes:
    return field_types.pack(U64, "bucket", bucket) if bucket else b""


def _name(name: str) -> bytes:
    try:
        return field_types.terminated(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise RequestError(f"a name that has no UTF-8 form: {name[:40]!a}") from error


def _session(session: bytes) -> bytes:
    if len(session) != SESSION_BYTES:
        raise RequestError(f"a session id has {SESSION_BYTES} bytes, not {len(session)}")
    return session


# ---- builders of keys with one field, or a name and a bucket
class _BucketKey(Protocol):
    """Without a bucket, the key is that of bucket 0, which is a prefix of the keys of all other buckets."""

    def __call__(self, queue: str, bucket: int = 0) -> bytes: ...


def _of_bucket(kind: RecordKind) -> _BucketKey:
    def key(queue: str, bucket: int = 0) -> bytes:
        return kind.prefix + _name(queue) + _bucket(bucket)

    return key


def _of_name(kind: RecordKind) -> Callable[[str], bytes]:
    return lambda name: kind.prefix + _name(name)


def _of_session(kind: RecordKind) -> Callable[[bytes], bytes]:
    return lambda session: kind.prefix + _session(session)


def _of_raw(kind: RecordKind) -> Callable[[bytes], bytes]:
    return lambda raw: kind.prefix + field_types.terminated(raw)


active_key = _of_bucket(RecordKind.ACTIVE)
done_key = _of_bucket(RecordKind.DONE)
failed_key = _of_bucket(RecordKind.FAILED)
archived_failed_key = _of_bucket(RecordKind.ARCHIVED_FAILED)
config_key = _of_name(RecordKind.CONFIG)
options_key = _of_name(RecordKind.OPTIONS)
overrides_key = _of_name(RecordKind.OVERRIDES)
queue_counts_key = _of_name(RecordKind.QUEUE_COUNTS)
cursor_key = _of_name(RecordKind.CURSOR)
exchange_key = _of_name(RecordKind.EXCHANGE)
staged_job_key = _of_name(RecordKind.STAGED_JOB)
producer_key = _of_session(RecordKind.PRODUCER)
session_key = _of_session(RecordKind.LEASES)
removal_key = _of_session(RecordKind.REMOVAL)
running_tasks_key = _of_session(RecordKind.RUNNING_TASKS)
result_key = _of_raw(RecordKind.RESULT)
chord_key = _of_raw(RecordKind.CHORD)
chord_part_prefix = _of_raw(RecordKind.CHORD_PART)
large_value_key = _of_raw(RecordKind.LARGE_VALUE)


# ---- builders of the other keys
def payload_key(message_id: int) -> bytes:
    return _PAYLOAD + _id(message_id)


def metadata_key(message_id: int) -> bytes:
    return _METADATA + _id(message_id)


def attempts_key(message_id: int) -> bytes:
    return RecordKind.ATTEMPTS.prefix + _id(message_id)


def binding_key(exchange: str, queue: str, routing_key: str, identity: str = "") -> bytes:
    """Return the key of a binding; `identity` distinguishes bindings with the same routing key."""
    digest = hashlib.blake2b(identity.encode(), digest_size=DIGEST_BYTES).digest() if identity else b""
    return RecordKind.BINDING.prefix + _name(exchange) + _name(queue) + _name(routing_key) + digest


def task_failure_key(attempt: int) -> bytes:
    return RecordKind.TASK_FAILURE.prefix + field_types.pack(U64, "attempt", attempt)


def chunk_key(message_id: int, number: int) -> bytes:
    return RecordKind.CHUNK.prefix + _id(message_id) + field_types.pack(U32, "chunk number", number)


def routes_block_key(message_id: int) -> bytes:
    """Return the key of the block of 256 messages that contains this one."""
    return RecordKind.ROUTES_BLOCK.prefix + b"\0" + _id(message_id)[:-1]


def result_expiry_key(expires_at_ms: int, name: bytes) -> bytes:
    return (
        RecordKind.RESULT_EXPIRY.prefix
        + field_types.pack(U64, "expires at", expires_at_ms)
        + field_types.terminated(name)
    )


def chord_part_key(group: bytes, index: int, member: bytes) -> bytes:
    return chord_part_prefix(group) + field_types.pack(U32, "index", index) + field_types.terminated(member)


def value_chunk_key(owner: bytes, number: int) -> bytes:
    return RecordKind.VALUE_CHUNK.prefix + field_types.terminated(owner) + field_types.pack(U32, "chunk number", number)


def dead_letter_key(message_id: int, queue: str) -> bytes:
    return RecordKind.DEAD_LETTER.prefix + _id(message_id) + _name(queue)


def idempotency_key(name: bytes) -> bytes:
    """Return the key of an idempotency record; `name` is a hash of 16 bytes, see :func:`.idempotency.name_of`."""
    if len(name) != HASH_BYTES:
        raise RequestError(f"an idempotency key's hash has {HASH_BYTES} bytes, not {len(name)}")
    return RecordKind.IDEMPOTENCY.prefix + name


def staged_object_key(first_id: int) -> bytes:
    return RecordKind.STAGED_OBJECT.prefix + _id(first_id)


def staged_expiry_key(settled_at_ms: int, job_id: str = "") -> bytes:
    """Return the key of a job's expiry; without a job id, the start of the keys of that time."""
    start = RecordKind.STAGED_EXPIRY.prefix + field_types.pack(U64, "settled at", settled_at_ms)
    return start + _name(job_id) if job_id else start


def history_log_key(attempt: int, row: int) -> bytes:
    """Return the key of the chunk of the log whose first attempt and first other row have these numbers."""
    return RecordKind.HISTORY_LOG.prefix + field_types.pack(U64, "attempt", attempt) + field_types.pack(U64, "row", row)


def history_postings_key(space: int, hash: int, segment: int, part: int) -> bytes:
    return (
        history_postings_prefix(space, hash)
        + field_types.pack(U64, "segment", segment)
        + field_types.pack(U64, "part", part)
    )


def history_postings_prefix(space: int, hash: int) -> bytes:
    return RecordKind.HISTORY_POSTINGS.prefix + bytes((space,)) + field_types.pack(U64, "hash", hash)


def history_segment_key(space: int, segment: int, part: int) -> bytes:
    return (
        history_segment_prefix(space) + field_types.pack(U64, "segment", segment) + field_types.pack(U64, "part", part)
    )


def history_segment_prefix(space: int) -> bytes:
    return RecordKind.HISTORY_SEGMENT.prefix + bytes((space,))


def history_trail_key(block: int, part: int) -> bytes:
    return RecordKind.HISTORY_TRAIL.prefix + field_types.pack(U64, "block", block) + field_types.pack(U64, "part", part)


def history_page_key(space: int, run: int, page: int) -> bytes:
    run_prefix = RecordKind.HISTORY_PAGE.prefix + bytes((space,)) + field_types.pack(U64, "run", run)
    return run_prefix + field_types.pack(U16, "page", page)


def history_headers_key(attempt: int, message_id: int) -> bytes:
    """Return the key of kept headers, whose first message is this one and whose attempts are all below `attempt`."""
    return RecordKind.HISTORY_HEADERS.prefix + field_types.pack(U64, "attempt", attempt) + _id(message_id)


def handled_failures_key(block: int) -> bytes:
    """Return the key of the handled ones among 256 attempts, the first of which is `block` × 256."""
    return RecordKind.HANDLED_FAILURES.prefix + field_types.pack(U64, "block", block)


# ---- scanning
def prefix_range(prefix: bytes) -> tuple[bytes, bytes]:
    """Return the range of all keys that start with `prefix`: the first, and the end, which is excluded."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        raise RequestError(f"no key sorts after all keys with the prefix {prefix.hex() or '(empty)'}")
    return prefix, stem[:-1] + bytes((stem[-1] + 1,))


def kind_range(kind: RecordKind) -> tuple[bytes, bytes]:
    """Return the range of all records of one kind and no others: the first, and the end, which is excluded."""
    if kind is RecordKind.PAYLOAD:
        return _PAYLOAD, _METADATA[:3]
    if kind is RecordKind.SEQ_BLOCK:
        return SEQ_BLOCK_KEY, SEQ_BLOCK_KEY + b"\x00"
    if kind is RecordKind.ACTIVE:
        return RecordKind.ACTIVE.prefix + b"\x00", RecordKind.DONE.prefix
    return prefix_range(kind.prefix)
