"""The keys of all records. Integers are big endian, so keys sort by queue, bucket and message id.

=====================================================================  =========================================
key                                                                    record
=====================================================================  =========================================
``01 01 <id u64>``                                                     payload
``01 01 "opendata-queue/messages/metadata" 00 <id u64>``               metadata
``01 02``                                                              sequence block
``01 02 <queue TB> [<bucket u64>]``                                    active messages
``01 03 <queue TB> [<bucket u64>]``                                    done messages
``01 04 <queue TB> [<bucket u64>]``                                    failed messages
``01 05 <id u64>``                                                     attempts
``01 06 <queue TB>``                                                   queue config
``01 10``                                                              store header
``01 11 <exchange TB>``                                                exchange
``01 12 <exchange TB> <queue TB> <routing key TB> [<digest 8 bytes>]`` binding
``01 13 <queue TB>``                                                   queue options
``01 14 <session 16 bytes>``                                           producer
``01 15 <session 16 bytes>``                                           leases of a session
``01 16 <id u64> <chunk number u32>``                                  chunk of a large payload
``01 29 <id >> 8 as u64>``                                             routes of 256 messages
``01 18``                                                              journal position
``01 19 <key TB>``                                                     result
``01 1a <expires at u64> <key TB>``                                    result expiry
``01 1e <group TB>``                                                   chord
``01 1f <group TB> <index u32> <member TB>``                           chord part
``01 30 <key of a result or chord part TB>``                           large value
``01 31 <key of a result or chord part TB> <chunk number u32>``        chunk of a large value
``01 1b <id u64> <queue TB>``                                          dead letter of a queue
``01 1c <queue TB>``                                                   routing cursor of a queue
``01 1d <hash 16 bytes>``                                              idempotency key of a send
``01 26 <job id TB>``                                                  staged job
``01 27 <first id u64>``                                               batch object of a staged job
``01 28 <settled at u64> <job id TB>``                                 staged job expiry
``01 20 <attempt u64> <row u64>``                                      history log
``01 21 <space u8> <hash u64> <segment u64> <part u64>``               history postings
``01 22 <space u8> <segment u64> <part u64>``                          history segment
``01 23 <block u64> <part u64>``                                       history trail
``01 24 <space u8> <run u64> <page u16>``                              history page
``01 25``                                                              history head
``01 2a <attempt u64> <id u64>``                                       history headers
``01 2b``                                                              newest time
``01 2c <queue TB>``                                                   queue counts
``01 2d <queue TB> [<bucket u64>]``                                    archived failed messages
``01 2e <session 16 bytes>``                                           removal of a session
``01 2f``                                                              log retention
=====================================================================  =========================================

TB is ``TerminatedBytes``. ``01 01`` to ``01 06`` are RFC 0001's, ``01 07`` to ``01 0f`` stay free for it, the rest is
ours. A bucket suffix is written for buckets above 0 only, so bucket 0 has exactly the RFC's key.

Payload and metadata share a type. They stay apart because message ids are below ``6f 00 …``, and ``6f`` is the ``o``
that a metadata key has in that place; so payloads also sort before all metadata.

A name that is not UTF-8 (another program may have written it) is a str with surrogate escapes.
"""

from __future__ import annotations

import hashlib

from kombu_opendata.errors import RequestError
from kombu_opendata.storage.records import types
from kombu_opendata.storage.records.key_parser import Key, parse
from kombu_opendata.storage.records.kinds import (
    DIGEST_BYTES,
    HASH_BYTES,
    MAX_MESSAGE_ID,
    PREFIXES,
    SESSION_BYTES,
    U16,
    U32,
    U64,
    RecordKind,
)

SEQ_BLOCK_KEY = PREFIXES[RecordKind.SEQ_BLOCK]
STORE_HEADER_KEY = PREFIXES[RecordKind.STORE_HEADER]
JOURNAL_POSITION_KEY = PREFIXES[RecordKind.JOURNAL_POSITION]
HISTORY_HEAD_KEY = PREFIXES[RecordKind.HISTORY_HEAD]
NEWEST_TIME_KEY = PREFIXES[RecordKind.NEWEST_TIME]
LOG_RETENTION_KEY = PREFIXES[RecordKind.LOG_RETENTION]

_PAYLOAD = PREFIXES[RecordKind.PAYLOAD]
_METADATA = PREFIXES[RecordKind.METADATA]
_ACTIVE = PREFIXES[RecordKind.ACTIVE]
_DONE = PREFIXES[RecordKind.DONE]
_FAILED = PREFIXES[RecordKind.FAILED]
_ATTEMPTS = PREFIXES[RecordKind.ATTEMPTS]
_CONFIG = PREFIXES[RecordKind.CONFIG]
_EXCHANGE = PREFIXES[RecordKind.EXCHANGE]
_BINDING = PREFIXES[RecordKind.BINDING]
_OPTIONS = PREFIXES[RecordKind.OPTIONS]
_PRODUCER = PREFIXES[RecordKind.PRODUCER]
_SESSION = PREFIXES[RecordKind.LEASES]
_REMOVAL = PREFIXES[RecordKind.REMOVAL]
_CHUNK = PREFIXES[RecordKind.CHUNK]
_ROUTES_BLOCK = PREFIXES[RecordKind.ROUTES_BLOCK]
_RESULT = PREFIXES[RecordKind.RESULT]
_RESULT_EXPIRY = PREFIXES[RecordKind.RESULT_EXPIRY]
_CHORD = PREFIXES[RecordKind.CHORD]
_CHORD_PART = PREFIXES[RecordKind.CHORD_PART]
_LARGE_VALUE = PREFIXES[RecordKind.LARGE_VALUE]
_VALUE_CHUNK = PREFIXES[RecordKind.VALUE_CHUNK]
_DEAD_LETTER = PREFIXES[RecordKind.DEAD_LETTER]
_CURSOR = PREFIXES[RecordKind.CURSOR]
_IDEMPOTENCY = PREFIXES[RecordKind.IDEMPOTENCY]
_STAGED_JOB = PREFIXES[RecordKind.STAGED_JOB]
_STAGED_OBJECT = PREFIXES[RecordKind.STAGED_OBJECT]
_STAGED_EXPIRY = PREFIXES[RecordKind.STAGED_EXPIRY]
_HISTORY_LOG = PREFIXES[RecordKind.HISTORY_LOG]
_HISTORY_POSTINGS = PREFIXES[RecordKind.HISTORY_POSTINGS]
_HISTORY_SEGMENT = PREFIXES[RecordKind.HISTORY_SEGMENT]
_HISTORY_TRAIL = PREFIXES[RecordKind.HISTORY_TRAIL]
_HISTORY_PAGE = PREFIXES[RecordKind.HISTORY_PAGE]
_HISTORY_HEADERS = PREFIXES[RecordKind.HISTORY_HEADERS]
_QUEUE_COUNTS = PREFIXES[RecordKind.QUEUE_COUNTS]
_ARCHIVED_FAILED = PREFIXES[RecordKind.ARCHIVED_FAILED]

__all__ = [
    "HISTORY_HEAD_KEY",
    "JOURNAL_POSITION_KEY",
    "LOG_RETENTION_KEY",
    "MAX_MESSAGE_ID",
    "NEWEST_TIME_KEY",
    "SEQ_BLOCK_KEY",
    "SESSION_BYTES",
    "STORE_HEADER_KEY",
    "Key",
    "RecordKind",
    "active_key",
    "active_prefix",
    "archived_failed_key",
    "archived_failed_prefix",
    "attempts_key",
    "binding_key",
    "binding_prefix",
    "chord_key",
    "chord_part_key",
    "chord_part_prefix",
    "chunk_key",
    "chunk_prefix",
    "config_key",
    "cursor_key",
    "dead_letter_key",
    "done_key",
    "done_prefix",
    "exchange_key",
    "failed_key",
    "failed_prefix",
    "history_headers_key",
    "history_log_key",
    "history_page_key",
    "history_postings_key",
    "history_postings_prefix",
    "history_segment_key",
    "history_segment_prefix",
    "history_trail_key",
    "idempotency_key",
    "kind_range",
    "large_value_key",
    "metadata_key",
    "options_key",
    "parse",
    "payload_key",
    "prefix_range",
    "producer_key",
    "queue_counts_key",
    "removal_key",
    "result_expiry_key",
    "result_key",
    "routes_block_key",
    "session_key",
    "staged_expiry_key",
    "staged_job_key",
    "staged_object_key",
    "value_chunk_key",
]


# ---- building
def payload_key(message_id: int) -> bytes:
    return _PAYLOAD + _id(message_id)


def metadata_key(message_id: int) -> bytes:
    return _METADATA + _id(message_id)


def active_key(queue: str, bucket: int = 0) -> bytes:
    return _ACTIVE + _name(queue) + _bucket(bucket)


def done_key(queue: str, bucket: int = 0) -> bytes:
    return _DONE + _name(queue) + _bucket(bucket)


def failed_key(queue: str, bucket: int = 0) -> bytes:
    return _FAILED + _name(queue) + _bucket(bucket)


def archived_failed_key(queue: str, bucket: int = 0) -> bytes:
    return _ARCHIVED_FAILED + _name(queue) + _bucket(bucket)


def attempts_key(message_id: int) -> bytes:
    return _ATTEMPTS + _id(message_id)


def config_key(queue: str) -> bytes:
    return _CONFIG + _name(queue)


def exchange_key(name: str) -> bytes:
    return _EXCHANGE + _name(name)


def binding_key(exchange: str, queue: str, routing_key: str, identity: str = "") -> bytes:
    """Of a binding that is one of several with the same routing key, `identity` says which."""
    digest = hashlib.blake2b(identity.encode(), digest_size=DIGEST_BYTES).digest() if identity else b""
    return _BINDING + _name(exchange) + _name(queue) + _name(routing_key) + digest


def options_key(queue: str) -> bytes:
    return _OPTIONS + _name(queue)


def queue_counts_key(queue: str) -> bytes:
    return _QUEUE_COUNTS + _name(queue)


def producer_key(session: bytes) -> bytes:
    return _PRODUCER + _session(session)


def session_key(session: bytes) -> bytes:
    return _SESSION + _session(session)


def removal_key(session: bytes) -> bytes:
    return _REMOVAL + _session(session)


def chunk_key(message_id: int, number: int) -> bytes:
    return _CHUNK + _id(message_id) + types.pack(U32, "chunk number", number)


def routes_block_key(message_id: int) -> bytes:
    """Of the block of 256 messages that this one is in."""
    return _ROUTES_BLOCK + b"\0" + _id(message_id)[:-1]


def result_key(name: bytes) -> bytes:
    return _RESULT + types.terminated(name)


def result_expiry_key(expires_at_ms: int, name: bytes) -> bytes:
    return _RESULT_EXPIRY + types.pack(U64, "expires at", expires_at_ms) + types.terminated(name)


def chord_key(group: bytes) -> bytes:
    return _CHORD + types.terminated(group)


def chord_part_prefix(group: bytes) -> bytes:
    return _CHORD_PART + types.terminated(group)


def chord_part_key(group: bytes, index: int, member: bytes) -> bytes:
    return chord_part_prefix(group) + types.pack(U32, "index", index) + types.terminated(member)


def large_value_key(owner: bytes) -> bytes:
    return _LARGE_VALUE + types.terminated(owner)


def value_chunk_key(owner: bytes, number: int) -> bytes:
    return _VALUE_CHUNK + types.terminated(owner) + types.pack(U32, "chunk number", number)


def cursor_key(queue: str) -> bytes:
    return _CURSOR + _name(queue)


def dead_letter_key(message_id: int, queue: str) -> bytes:
    return _DEAD_LETTER + _id(message_id) + _name(queue)


def idempotency_key(name: bytes) -> bytes:
    """Of a send; the name is a hash of 16 bytes."""
    if len(name) != HASH_BYTES:
        raise RequestError(f"an idempotency key's hash has {HASH_BYTES} bytes, not {len(name)}")
    return _IDEMPOTENCY + name


def staged_job_key(job_id: str) -> bytes:
    return _STAGED_JOB + _name(job_id)


def staged_object_key(first_id: int) -> bytes:
    return _STAGED_OBJECT + _id(first_id)


def staged_expiry_key(settled_at_ms: int, job_id: str = "") -> bytes:
    """Without a job id: where the keys of that time begin."""
    return _STAGED_EXPIRY + types.pack(U64, "settled at", settled_at_ms) + (_name(job_id) if job_id else b"")


def history_log_key(attempt: int, row: int) -> bytes:
    """Of the chunk of the log whose first attempt and first other row have these numbers."""
    return _HISTORY_LOG + types.pack(U64, "attempt", attempt) + types.pack(U64, "row", row)


def history_postings_key(space: int, hash: int, segment: int, part: int) -> bytes:
    return history_postings_prefix(space, hash) + types.pack(U64, "segment", segment) + types.pack(U64, "part", part)


def history_postings_prefix(space: int, hash: int) -> bytes:
    return _HISTORY_POSTINGS + bytes((space,)) + types.pack(U64, "hash", hash)


def history_segment_key(space: int, segment: int, part: int) -> bytes:
    return history_segment_prefix(space) + types.pack(U64, "segment", segment) + types.pack(U64, "part", part)


def history_segment_prefix(space: int) -> bytes:
    return _HISTORY_SEGMENT + bytes((space,))


def history_trail_key(block: int, part: int) -> bytes:
    return _HISTORY_TRAIL + types.pack(U64, "block", block) + types.pack(U64, "part", part)


def history_page_key(space: int, run: int, page: int) -> bytes:
    return _HISTORY_PAGE + bytes((space,)) + types.pack(U64, "run", run) + types.pack(U16, "page", page)


def history_headers_key(attempt: int, message_id: int) -> bytes:
    """Of the headers of collected messages, this one the first, all of whose attempts have lower numbers."""
    return _HISTORY_HEADERS + types.pack(U64, "attempt", attempt) + _id(message_id)


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
    """All keys that start with `prefix`: from the first, up to and without the second."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        raise RequestError(f"no key sorts after all keys with the prefix {prefix.hex() or '(empty)'}")
    return prefix, stem[:-1] + bytes((stem[-1] + 1,))


def kind_range(kind: RecordKind) -> tuple[bytes, bytes]:
    """All records of one kind and no others: from the first, up to and without the second."""
    if kind is RecordKind.PAYLOAD:
        return _PAYLOAD, _METADATA[:3]
    if kind is RecordKind.SEQ_BLOCK:
        return SEQ_BLOCK_KEY, SEQ_BLOCK_KEY + b"\x00"
    if kind is RecordKind.ACTIVE:
        return _ACTIVE + b"\x00", _DONE
    return prefix_range(PREFIXES[kind])


def active_prefix(queue: str | None = None) -> bytes:
    """The buckets of one queue; of all queues, together with the sequence block, if None."""
    return _ACTIVE if queue is None else _ACTIVE + _name(queue)


def done_prefix(queue: str | None = None) -> bytes:
    return _DONE if queue is None else _DONE + _name(queue)


def failed_prefix(queue: str | None = None) -> bytes:
    return _FAILED if queue is None else _FAILED + _name(queue)


def archived_failed_prefix(queue: str | None = None) -> bytes:
    return _ARCHIVED_FAILED if queue is None else _ARCHIVED_FAILED + _name(queue)


def binding_prefix(exchange: str | None = None) -> bytes:
    return _BINDING if exchange is None else _BINDING + _name(exchange)


def chunk_prefix(message_id: int | None = None) -> bytes:
    return _CHUNK if message_id is None else _CHUNK + _id(message_id)
