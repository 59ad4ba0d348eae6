"""Builders of the keys of all records, and ranges of keys. :mod:`.kinds` has the fields of each kind's keys."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from ...errors import RequestError
from .kinds import DIGEST_BYTES, U64, write_id
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


# ---- builders
def payload_key(message_id: int) -> bytes:
    return _PAYLOAD + write_id(message_id)


def metadata_key(message_id: int) -> bytes:
    return _METADATA + write_id(message_id)


def _of(kind: RecordKind) -> Callable[..., bytes]:
    """Return a function that builds a key from the values of all its fields, or a prefix from the first ones."""
    prefix, writers = kind.prefix, [write for field in kind.fields for write in field.writers]
    if len(writers) == 1:
        (write_only,) = writers
        return lambda value: prefix + write_only(value)
    return lambda *values: prefix + b"".join([write(value) for write, value in zip(writers, values, strict=False)])


# Without a bucket, these are the keys of bucket 0, which are prefixes of the keys of all other buckets.
active_key = _of(RecordKind.ACTIVE)
done_key = _of(RecordKind.DONE)
failed_key = _of(RecordKind.FAILED)
archived_failed_key = _of(RecordKind.ARCHIVED_FAILED)

config_key = _of(RecordKind.CONFIG)
options_key = _of(RecordKind.OPTIONS)
overrides_key = _of(RecordKind.OVERRIDES)
flow_key = _of(RecordKind.FLOW)
partition_key = _of(RecordKind.PARTITION)
queue_counts_key = _of(RecordKind.QUEUE_COUNTS)
cursor_key = _of(RecordKind.CURSOR)
exchange_key = _of(RecordKind.EXCHANGE)
segment_key = _of(RecordKind.SEGMENT)
staged_job_key = _of(RecordKind.STAGED_JOB)
staged_object_key = _of(RecordKind.STAGED_OBJECT)
staged_expiry_key = _of(RecordKind.STAGED_EXPIRY)
staged_ends_key = _of(RecordKind.STAGED_ENDS)
staged_follower_key = _of(RecordKind.STAGED_FOLLOWER)
producer_key = _of(RecordKind.PRODUCER)
session_key = _of(RecordKind.LEASES)
removal_key = _of(RecordKind.REMOVAL)
running_tasks_key = _of(RecordKind.RUNNING_TASKS)
result_key = _of(RecordKind.RESULT)
result_expiry_key = _of(RecordKind.RESULT_EXPIRY)
chord_key = _of(RecordKind.CHORD)
chord_part_key = _of(RecordKind.CHORD_PART)
large_value_key = _of(RecordKind.LARGE_VALUE)
value_chunk_key = _of(RecordKind.VALUE_CHUNK)
attempts_key = _of(RecordKind.ATTEMPTS)
chunk_key = _of(RecordKind.CHUNK)
dead_letter_key = _of(RecordKind.DEAD_LETTER)
task_failure_key = _of(RecordKind.TASK_FAILURE)
#: of the hash of a key and its destination, see :func:`.idempotency.name_of`
idempotency_key = _of(RecordKind.IDEMPOTENCY)
#: of the numbers of the chunk's first attempt and first other row
history_log_key = _of(RecordKind.HISTORY_LOG)
history_postings_key = _of(RecordKind.HISTORY_POSTINGS)
history_segment_key = _of(RecordKind.HISTORY_SEGMENT)
history_trail_key = _of(RecordKind.HISTORY_TRAIL)
history_page_key = _of(RecordKind.HISTORY_PAGE)
#: of a number above all attempts of the messages with these headers, and the first message
history_headers_key = _of(RecordKind.HISTORY_HEADERS)
#: of a block of 256 attempts, the first of which is the block's number × 256
handled_failures_key = _of(RecordKind.HANDLED_FAILURES)
_binding_key = _of(RecordKind.BINDING)


def binding_key(exchange: str, queue: str, routing_key: str, identity: str = "") -> bytes:
    """Return the key of a binding; `identity` distinguishes bindings with the same routing key."""
    digest = hashlib.blake2b(identity.encode(), digest_size=DIGEST_BYTES).digest() if identity else b""
    return _binding_key(exchange, queue, routing_key, digest)


def buckets_of(queue: str) -> Callable[[int], bytes]:
    """Return :func:`active_key` of one queue as a function of the bucket."""
    prefix, pack = active_key(queue), U64.pack
    return lambda bucket: prefix + pack(bucket) if bucket else prefix


def routes_block_key(message_id: int) -> bytes:
    """Return the key of the block of 256 messages that contains this one."""
    return RecordKind.ROUTES_BLOCK.prefix + b"\0" + write_id(message_id)[:-1]


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
