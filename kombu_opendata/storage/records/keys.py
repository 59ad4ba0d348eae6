"""The keys of all records. Integers are big endian, so keys sort by queue, bucket and message id.

docs/rfcs/0001-records.md has the table of all keys: each begins with the bytes of its :class:`RecordKind`. A bucket
suffix is written for buckets above 0 only, so bucket 0 has exactly the RFC's key.

Payload and metadata keys have the same prefix. They differ because message ids are below ``6f 00 …``, and ``6f`` is the
``o`` of a metadata key in that place; so all payloads sort before all metadata.

A name that is not UTF-8 (another program may have written it) is a str with surrogate escapes.
"""

from __future__ import annotations

import hashlib

from ...errors import RequestError
from . import types
from .key_parser import ParsedKey as ParsedKey
from .key_parser import parse as parse
from .kinds import DIGEST_BYTES, HASH_BYTES, U16, U32, U64
from .kinds import MAX_MESSAGE_ID as MAX_MESSAGE_ID
from .kinds import SESSION_BYTES as SESSION_BYTES
from .kinds import RecordKind as RecordKind

SEQ_BLOCK_KEY = RecordKind.SEQ_BLOCK.prefix
STORE_HEADER_KEY = RecordKind.STORE_HEADER.prefix
JOURNAL_POSITION_KEY = RecordKind.JOURNAL_POSITION.prefix
HISTORY_HEAD_KEY = RecordKind.HISTORY_HEAD.prefix
NEWEST_TIME_KEY = RecordKind.NEWEST_TIME.prefix
LOG_RETENTION_KEY = RecordKind.LOG_RETENTION.prefix

# The prefixes of the keys that are built for each message.
_PAYLOAD, _METADATA = RecordKind.PAYLOAD.prefix, RecordKind.METADATA.prefix


# ---- building. A list's key without a bucket is that of bucket 0, and the prefix of those of all other buckets.
def payload_key(message_id: int) -> bytes:
    return _PAYLOAD + _id(message_id)


def metadata_key(message_id: int) -> bytes:
    return _METADATA + _id(message_id)


def active_key(queue: str, bucket: int = 0) -> bytes:
    return RecordKind.ACTIVE.prefix + _name(queue) + _bucket(bucket)


def done_key(queue: str, bucket: int = 0) -> bytes:
    return RecordKind.DONE.prefix + _name(queue) + _bucket(bucket)


def failed_key(queue: str, bucket: int = 0) -> bytes:
    return RecordKind.FAILED.prefix + _name(queue) + _bucket(bucket)


def archived_failed_key(queue: str, bucket: int = 0) -> bytes:
    return RecordKind.ARCHIVED_FAILED.prefix + _name(queue) + _bucket(bucket)


def attempts_key(message_id: int) -> bytes:
    return RecordKind.ATTEMPTS.prefix + _id(message_id)


def config_key(queue: str) -> bytes:
    return RecordKind.CONFIG.prefix + _name(queue)


def exchange_key(name: str) -> bytes:
    return RecordKind.EXCHANGE.prefix + _name(name)


def binding_key(exchange: str, queue: str, routing_key: str, identity: str = "") -> bytes:
    """Return the key of a binding; `identity` distinguishes bindings with the same routing key."""
    digest = hashlib.blake2b(identity.encode(), digest_size=DIGEST_BYTES).digest() if identity else b""
    return RecordKind.BINDING.prefix + _name(exchange) + _name(queue) + _name(routing_key) + digest


def options_key(queue: str) -> bytes:
    return RecordKind.OPTIONS.prefix + _name(queue)


def queue_counts_key(queue: str) -> bytes:
    return RecordKind.QUEUE_COUNTS.prefix + _name(queue)


def overrides_key(queue: str) -> bytes:
    return RecordKind.OVERRIDES.prefix + _name(queue)


def producer_key(session: bytes) -> bytes:
    return RecordKind.PRODUCER.prefix + _session(session)


def session_key(session: bytes) -> bytes:
    return RecordKind.LEASES.prefix + _session(session)


def removal_key(session: bytes) -> bytes:
    return RecordKind.REMOVAL.prefix + _session(session)


def running_tasks_key(session: bytes) -> bytes:
    return RecordKind.RUNNING_TASKS.prefix + _session(session)


def task_failure_key(attempt: int) -> bytes:
    return RecordKind.TASK_FAILURE.prefix + types.pack(U64, "attempt", attempt)


def chunk_key(message_id: int, number: int) -> bytes:
    return RecordKind.CHUNK.prefix + _id(message_id) + types.pack(U32, "chunk number", number)


def routes_block_key(message_id: int) -> bytes:
    """Return the key of the block of 256 messages that contains this one."""
    return RecordKind.ROUTES_BLOCK.prefix + b"\0" + _id(message_id)[:-1]


def result_key(name: bytes) -> bytes:
    return RecordKind.RESULT.prefix + types.terminated(name)


def result_expiry_key(expires_at_ms: int, name: bytes) -> bytes:
    return RecordKind.RESULT_EXPIRY.prefix + types.pack(U64, "expires at", expires_at_ms) + types.terminated(name)


def chord_key(group: bytes) -> bytes:
    return RecordKind.CHORD.prefix + types.terminated(group)


def chord_part_prefix(group: bytes) -> bytes:
    return RecordKind.CHORD_PART.prefix + types.terminated(group)


def chord_part_key(group: bytes, index: int, member: bytes) -> bytes:
    return chord_part_prefix(group) + types.pack(U32, "index", index) + types.terminated(member)


def large_value_key(owner: bytes) -> bytes:
    return RecordKind.LARGE_VALUE.prefix + types.terminated(owner)


def value_chunk_key(owner: bytes, number: int) -> bytes:
    return RecordKind.VALUE_CHUNK.prefix + types.terminated(owner) + types.pack(U32, "chunk number", number)


def cursor_key(queue: str) -> bytes:
    return RecordKind.CURSOR.prefix + _name(queue)


def dead_letter_key(message_id: int, queue: str) -> bytes:
    return RecordKind.DEAD_LETTER.prefix + _id(message_id) + _name(queue)


def idempotency_key(name: bytes) -> bytes:
    """Return the key of an idempotency record; `name` is a hash of 16 bytes, see :func:`.idempotency.name_of`."""
    if len(name) != HASH_BYTES:
        raise RequestError(f"an idempotency key's hash has {HASH_BYTES} bytes, not {len(name)}")
    return RecordKind.IDEMPOTENCY.prefix + name


def staged_job_key(job_id: str) -> bytes:
    return RecordKind.STAGED_JOB.prefix + _name(job_id)


def staged_object_key(first_id: int) -> bytes:
    return RecordKind.STAGED_OBJECT.prefix + _id(first_id)


def staged_expiry_key(settled_at_ms: int, job_id: str = "") -> bytes:
    """Return the key of a job's expiry; without a job id, the start of the keys of that time."""
    start = RecordKind.STAGED_EXPIRY.prefix + types.pack(U64, "settled at", settled_at_ms)
    return start + _name(job_id) if job_id else start


def history_log_key(attempt: int, row: int) -> bytes:
    """Return the key of the chunk of the log whose first attempt and first other row have these numbers."""
    return RecordKind.HISTORY_LOG.prefix + types.pack(U64, "attempt", attempt) + types.pack(U64, "row", row)


def history_postings_key(space: int, hash: int, segment: int, part: int) -> bytes:
    return history_postings_prefix(space, hash) + types.pack(U64, "segment", segment) + types.pack(U64, "part", part)


def history_postings_prefix(space: int, hash: int) -> bytes:
    return RecordKind.HISTORY_POSTINGS.prefix + bytes((space,)) + types.pack(U64, "hash", hash)


def history_segment_key(space: int, segment: int, part: int) -> bytes:
    return history_segment_prefix(space) + types.pack(U64, "segment", segment) + types.pack(U64, "part", part)


def history_segment_prefix(space: int) -> bytes:
    return RecordKind.HISTORY_SEGMENT.prefix + bytes((space,))


def history_trail_key(block: int, part: int) -> bytes:
    return RecordKind.HISTORY_TRAIL.prefix + types.pack(U64, "block", block) + types.pack(U64, "part", part)


def history_page_key(space: int, run: int, page: int) -> bytes:
    run_prefix = RecordKind.HISTORY_PAGE.prefix + bytes((space,)) + types.pack(U64, "run", run)
    return run_prefix + types.pack(U16, "page", page)


def history_headers_key(attempt: int, message_id: int) -> bytes:
    """Return the key of kept headers, whose first message is this one and whose attempts are all below `attempt`."""
    return RecordKind.HISTORY_HEADERS.prefix + types.pack(U64, "attempt", attempt) + _id(message_id)


def handled_failures_key(block: int) -> bytes:
    """Return the key of the handled ones among 256 attempts, the first of which is `block` × 256."""
    return RecordKind.HANDLED_FAILURES.prefix + types.pack(U64, "block", block)


def _id(message_id: int) -> bytes:
    if not 0 <= message_id < MAX_MESSAGE_ID:
        raise RequestError(f"message id {message_id} is not in 0 … {MAX_MESSAGE_ID - 1}", message_id=message_id)
    return U64.pack(message_id)


def _bucket(bucket: int) -> bytes:
    return types.pack(U64, "bucket", bucket) if bucket else b""


def _name(name: str) -> bytes:
    try:
        return types.terminated(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise RequestError(f"a name that has no UTF-8 form: {name[:40]!a}") from error


def _session(session: bytes) -> bytes:
    if len(session) != SESSION_BYTES:
        raise RequestError(f"a session id has {SESSION_BYTES} bytes, not {len(session)}")
    return session


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
