"""The kinds of records, and the keys of each kind: a prefix, then fields (see docs/rfcs/0001-records.md).

Integers are big endian, so keys sort by queue, bucket and message id. A bucket suffix is written for buckets above 0
only, so bucket 0 has exactly the RFC's key.

Payload and metadata keys begin with the same two bytes. In a payload key the message id follows, which is below
``6f 00 …``; in a metadata key a text follows, which begins with ``o`` (``6f``). So all payloads sort before all
metadata.

A name that is not UTF-8 (another program may have written it) is a str with surrogate escapes.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self

from ...errors import RequestError
from . import field_types

#: message ids are below this
MAX_MESSAGE_ID = 0x6F << 56
#: the first id of messages that are not stored; no stored message has such an id
FIRST_TRANSIENT_ID = 1 << 62
SESSION_BYTES = 16
#: size of the digest of a binding's arguments
DIGEST_BYTES = 8
#: size of the hash of an idempotency key and its destination
HASH_BYTES = 16

U8 = struct.Struct(">B")  # space of a history index
U16 = struct.Struct(">H")  # page of a run
U32 = struct.Struct(">I")  # chunk number, or partition
U64 = struct.Struct(">Q")  # message id or bucket


# ---- fields
class KeyField(NamedTuple):
    """A field of keys: its name in :class:`ParsedKey`, its reader, and the writers of its values, one for each.

    The reader receives a key and an offset; it returns the value and the offset of the next field.
    """

    name: str
    read: Callable[[bytes, int], tuple[Any, int]]
    writers: tuple[Callable[[Any], bytes], ...]


def _name(key: bytes, offset: int) -> tuple[str, int]:
    raw, end = field_types.read_terminated(key, offset)
    return raw.decode("utf-8", "surrogateescape"), end


def _write_name(name: str) -> bytes:
    try:
        return field_types.terminated(name.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise RequestError(f"a name that has no UTF-8 form: {name[:40]!a}") from error


def _number(layout: struct.Struct, key: bytes, offset: int) -> tuple[int, int]:
    return field_types.read(layout, key, key, offset)[0], offset + layout.size


def _id(key: bytes, offset: int) -> tuple[int, int]:
    message_id, end = _number(U64, key, offset)
    if message_id >= MAX_MESSAGE_ID:
        raise field_types.corrupt(key, offset, "a message id out of range")
    return message_id, end


def write_id(message_id: int) -> bytes:
    if not 0 <= message_id < MAX_MESSAGE_ID:
        raise RequestError(f"message id {message_id} is not in 0 … {MAX_MESSAGE_ID - 1}", message_id=message_id)
    return U64.pack(message_id)


def _bucket(key: bytes, offset: int) -> tuple[int, int]:
    if offset == len(key):
        return 0, offset
    bucket, end = _number(U64, key, offset)
    if not bucket:
        raise field_types.corrupt(key, offset, "a bucket suffix of 0")
    return bucket, end


def _write_bucket(bucket: int) -> bytes:
    return field_types.pack(U64, "bucket", bucket) if bucket else b""


def _bytes(size: int, name: str, key: bytes, offset: int) -> tuple[bytes, int]:
    end = offset + size
    if len(key) < end:
        raise field_types.corrupt(key, offset, f"{name} of {len(key) - offset} bytes")
    return key[offset:end], end


def _write_bytes(size: int, name: str, raw: bytes) -> bytes:
    if len(raw) != size:
        raise RequestError(f"{name} has {size} bytes, not {len(raw)}")
    return raw


def _digest(key: bytes, offset: int) -> tuple[bytes | None, int]:
    return (None, offset) if offset == len(key) else _bytes(DIGEST_BYTES, "a digest", key, offset)


def _block(key: bytes, offset: int) -> tuple[tuple[int], int]:
    block, end = _number(U64, key, offset)
    if block >= MAX_MESSAGE_ID >> 8:
        raise field_types.corrupt(key, offset, "a block of message ids out of range")
    return (block,), end


def _numbers(layouts: dict[str, struct.Struct], key: bytes, offset: int) -> tuple[tuple[int, ...], int]:
    numbers = []
    for layout in layouts.values():
        number, offset = _number(layout, key, offset)
        numbers.append(number)
    return tuple(numbers), offset


def _history(**layouts: struct.Struct) -> KeyField:
    writers = [partial(field_types.pack, layout, name) for name, layout in layouts.items()]
    return KeyField("numbers", partial(_numbers, layouts), tuple(writers))


def _text(name: str) -> KeyField:
    return KeyField(name, _name, (_write_name,))


def _raw(name: str) -> KeyField:
    return KeyField(name, field_types.read_terminated, (field_types.terminated,))


def _integer(name: str, layout: struct.Struct) -> KeyField:
    return KeyField(name, partial(_number, layout), (partial(field_types.pack, layout, name),))


def _fixed(name: str, size: int, noun: str) -> KeyField:
    return KeyField(name, partial(_bytes, size, noun), (partial(_write_bytes, size, noun),))


_NAME, _RESULT, _CHORD, _OWNER = _text("name"), _raw("result"), _raw("chord"), _raw("owner")
_BUCKET = KeyField("bucket", _bucket, (_write_bucket,))
_ID = KeyField("id", _id, (write_id,))
_SESSION, _HASH = _fixed("session", SESSION_BYTES, "a session id"), _fixed("hash", HASH_BYTES, "a hash")
_CHUNK, _EXPIRES_AT = _integer("chunk", U32), _integer("expires_at_ms", U64)
_DIGEST = KeyField("digest", _digest, (bytes,))
_BLOCK = KeyField("numbers", _block, ())


class RecordKind(enum.Enum):
    """A kind of record: its name, the prefix of its keys (or the whole key), and the fields after the prefix."""

    prefix: bytes
    fields: tuple[KeyField, ...]

    def __new__(cls, name: str, prefix: bytes, *fields: KeyField) -> Self:
        kind = object.__new__(cls)
        kind._value_ = name
        kind.prefix = prefix
        kind.fields = fields
        return kind

    PAYLOAD = "payload", b"\x01\x01", _ID
    METADATA = "metadata", b"\x01\x01" + field_types.terminated(b"opendata-queue/messages/metadata"), _ID
    SEQ_BLOCK = "sequence block", b"\x01\x02"
    ACTIVE = "active", b"\x01\x02", _NAME, _BUCKET
    DONE = "done", b"\x01\x03", _NAME, _BUCKET
    FAILED = "failed", b"\x01\x04", _NAME, _BUCKET
    ATTEMPTS = "attempts", b"\x01\x05", _ID
    CONFIG = "config", b"\x01\x06", _NAME
    STORE_HEADER = "store header", b"\x01\x10"
    EXCHANGE = "exchange", b"\x01\x11", _NAME
    BINDING = "binding", b"\x01\x12", _NAME, _text("queue"), _text("routing_key"), _DIGEST
    OPTIONS = "options", b"\x01\x13", _NAME
    PRODUCER = "producer", b"\x01\x14", _SESSION
    LEASES = "leases", b"\x01\x15", _SESSION
    CHUNK = "chunk", b"\x01\x16", _ID, _CHUNK
    ROUTES_BLOCK = "routes block", b"\x01\x29", _BLOCK
    JOURNAL_POSITION = "journal position", b"\x01\x18"
    RESULT = "result", b"\x01\x19", _RESULT
    RESULT_EXPIRY = "result expiry", b"\x01\x1a", _EXPIRES_AT, _RESULT
    CHORD = "chord", b"\x01\x1e", _CHORD
    CHORD_PART = "chord part", b"\x01\x1f", _CHORD, _integer("header_index", U32), _RESULT
    DEAD_LETTER = "dead letter", b"\x01\x1b", _ID, _NAME
    CURSOR = "routing cursor", b"\x01\x1c", _NAME
    IDEMPOTENCY = "idempotency", b"\x01\x1d", _HASH
    STAGED_JOB = "staged job", b"\x01\x26", _NAME
    STAGED_OBJECT = "staged object", b"\x01\x27", _ID
    STAGED_EXPIRY = "staged job expiry", b"\x01\x28", _EXPIRES_AT, _NAME
    STAGED_ENDS = "staged ends", b"\x01\x36", _ID
    STAGED_FOLLOWER = "staged follower", b"\x01\x37", _ID
    HISTORY_LOG = "history log", b"\x01\x20", _history(attempt=U64, row=U64)
    HISTORY_POSTINGS = "history postings", b"\x01\x21", _history(space=U8, hash=U64, segment=U64, part=U64)
    HISTORY_SEGMENT = "history segment", b"\x01\x22", _history(space=U8, segment=U64, part=U64)
    HISTORY_TRAIL = "history trail", b"\x01\x23", _history(block=U64, part=U64)
    HISTORY_PAGE = "history page", b"\x01\x24", _history(space=U8, run=U64, page=U16)
    HISTORY_HEAD = "history head", b"\x01\x25"
    HISTORY_HEADERS = "history headers", b"\x01\x2a", _history(attempt=U64, id=U64)
    NEWEST_TIME = "newest time", b"\x01\x2b"
    QUEUE_COUNTS = "queue counts", b"\x01\x2c", _NAME
    ARCHIVED_FAILED = "archived failed", b"\x01\x2d", _NAME, _BUCKET
    REMOVAL = "removal", b"\x01\x2e", _SESSION
    LOG_RETENTION = "log retention", b"\x01\x2f"
    LARGE_VALUE = "large value", b"\x01\x30", _OWNER
    VALUE_CHUNK = "value chunk", b"\x01\x31", _OWNER, _CHUNK
    RUNNING_TASKS = "running tasks", b"\x01\x32", _SESSION
    TASK_FAILURE = "task failure", b"\x01\x33", _history(attempt=U64)
    HANDLED_FAILURES = "handled failures", b"\x01\x34", _history(block=U64)
    OVERRIDES = "overrides", b"\x01\x35", _NAME
    FLOW = "flow", b"\x01\x3c", _NAME
    PARTITION = "partition", b"\x01\x38", _NAME, _integer("partition", U32)
    SEGMENT = "payload segment", b"\x01\x3f", _NAME


_SEQ_BLOCK = RecordKind.SEQ_BLOCK.prefix
_PAYLOAD, _METADATA = RecordKind.PAYLOAD.prefix, RecordKind.METADATA.prefix
# The two kinds that share their prefix with another are distinguished in _kind.
_KINDS = {kind.prefix: kind for kind in RecordKind if kind not in (RecordKind.METADATA, RecordKind.ACTIVE)}


class ParsedKey(NamedTuple):
    """A parsed key; a field that the kind does not have is None."""

    kind: RecordKind
    #: the queue; the exchange of an exchange or a binding; the queue that a dead letter left; the staged job; or the
    #: path of a payload segment
    name: str | None = None
    bucket: int | None = None
    #: the message id
    id: int | None = None
    #: the queue of a binding
    queue: str | None = None
    routing_key: str | None = None
    #: the digest of the arguments of a binding to a headers exchange
    digest: bytes | None = None
    session: bytes | None = None
    #: the number of a queue's partition
    partition: int | None = None
    #: the number of a chunk
    chunk: int | None = None
    #: the name of a result, or of a chord's part
    result: bytes | None = None
    #: the expiry of a result; of a staged job's expiry, the time at which the job was settled
    expires_at_ms: int | None = None
    #: the name of a chord, also in the keys of its parts
    chord: bytes | None = None
    #: the index of a chord's part
    header_index: int | None = None
    #: the hash of an idempotency key
    hash: bytes | None = None
    #: the numbers after the prefix of a key of history or of a routes block, in their order
    numbers: tuple[int, ...] | None = None
    #: the key of the result or of the chord's part that has a large value
    owner: bytes | None = None


def parse(key: bytes) -> ParsedKey:
    kind = _kind(key)
    fields: dict[str, Any] = {}
    offset = len(kind.prefix)
    for field in kind.fields:
        fields[field.name], offset = field.read(key, offset)
    field_types.check_end(key, key, offset)
    return ParsedKey(kind, **fields)


def _kind(key: bytes) -> RecordKind:
    prefix = key[:2]
    if prefix == _PAYLOAD and key[2:3] >= _METADATA[2:3]:
        if key.startswith(_METADATA):
            return RecordKind.METADATA
    elif prefix == _SEQ_BLOCK:
        return RecordKind.ACTIVE if len(key) > len(prefix) else RecordKind.SEQ_BLOCK
    elif prefix in _KINDS:
        return _KINDS[prefix]
    raise field_types.corrupt(key, 0, "a key of unknown kind")
