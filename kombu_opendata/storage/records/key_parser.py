"""The parser of keys: the kind of a key's record, and the fields in the key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

from . import types
from .kinds import DIGEST_BYTES, HASH_BYTES, MAX_MESSAGE_ID, SESSION_BYTES, U8, U16, U32, U64, RecordKind

_SEQ_BLOCK = RecordKind.SEQ_BLOCK.prefix
_PAYLOAD, _METADATA = RecordKind.PAYLOAD.prefix, RecordKind.METADATA.prefix
# The two kinds that share their prefix with another are distinguished in _kind.
_KINDS = {kind.prefix: kind for kind in RecordKind if kind not in (RecordKind.METADATA, RecordKind.ACTIVE)}


class ParsedKey(NamedTuple):
    """A parsed key; a field that the kind does not have is None."""

    kind: RecordKind
    #: the queue; of exchanges and bindings the exchange; of a dead letter the queue that it left; or the staged job
    name: str | None = None
    bucket: int | None = None
    #: the message id
    id: int | None = None
    #: of a binding
    queue: str | None = None
    routing_key: str | None = None
    #: of the arguments of a binding to a headers exchange
    digest: bytes | None = None
    session: bytes | None = None
    #: the number of a chunk
    chunk: int | None = None
    #: the name of a result, or of a chord's part
    result: bytes | None = None
    #: the expiry of a result; of a staged job's expiry, the time at which the job was settled
    expires_at_ms: int | None = None
    #: of a chord and its parts
    chord: bytes | None = None
    #: of a chord's part
    header_index: int | None = None
    #: of an idempotency key
    hash: bytes | None = None
    #: of history and of a routes block: the numbers after its prefix, in their order
    numbers: tuple[int, ...] | None = None
    #: of a large value and its chunks: the key of the result or of the chord's part
    owner: bytes | None = None


def parse(key: bytes) -> ParsedKey:
    """Return the kind and the fields of `key`.

    Raises:
        CorruptRecord: it is not a key of this store.
    """
    kind = _kind(key)
    fields: dict[str, Any] = {}
    offset = len(kind.prefix)
    for name, read in _FIELDS.get(kind, ()):
        fields[name], offset = read(key, offset)
    types.check_end(key, key, offset)
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
    raise types.corrupt(key, 0, "a key of unknown kind")


# ---- fields: (key, offset) → (value, offset of the next field)
def _name(key: bytes, offset: int) -> tuple[str, int]:
    raw, end = types.read_terminated(key, offset)
    return raw.decode("utf-8", "surrogateescape"), end


def _number(layout: Struct, key: bytes, offset: int) -> tuple[int, int]:
    return types.read(layout, key, key, offset)[0], offset + layout.size


def _id(key: bytes, offset: int) -> tuple[int, int]:
    message_id, end = _number(U64, key, offset)
    if message_id >= MAX_MESSAGE_ID:
        raise types.corrupt(key, offset, "a message id out of range")
    return message_id, end


def _bucket(key: bytes, offset: int) -> tuple[int, int]:
    if offset == len(key):
        return 0, offset
    bucket, end = _number(U64, key, offset)
    if not bucket:
        raise types.corrupt(key, offset, "a bucket suffix of 0")
    return bucket, end


def _bytes(size: int, what: str, key: bytes, offset: int) -> tuple[bytes, int]:
    end = offset + size
    if len(key) < end:
        raise types.corrupt(key, offset, f"{what} of {len(key) - offset} bytes")
    return key[offset:end], end


def _digest(key: bytes, offset: int) -> tuple[bytes | None, int]:
    return (None, offset) if offset == len(key) else _bytes(DIGEST_BYTES, "a digest", key, offset)


def _block(key: bytes, offset: int) -> tuple[tuple[int], int]:
    block, end = _number(U64, key, offset)
    if block >= MAX_MESSAGE_ID >> 8:
        raise types.corrupt(key, offset, "a block of message ids out of range")
    return (block,), end


def _numbers(layouts: tuple[Struct, ...], key: bytes, offset: int) -> tuple[tuple[int, ...], int]:
    numbers = []
    for layout in layouts:
        number, offset = _number(layout, key, offset)
        numbers.append(number)
    return tuple(numbers), offset


def _history(*layouts: Struct) -> tuple[_Field]:
    return (("numbers", partial(_numbers, layouts)),)


_Field = tuple[str, Callable[[bytes, int], tuple[Any, int]]]

_NAME: _Field = ("name", _name)
_BUCKET: _Field = ("bucket", _bucket)
_ID: _Field = ("id", _id)
_SESSION: _Field = ("session", partial(_bytes, SESSION_BYTES, "a session id"))
_CHUNK: _Field = ("chunk", partial(_number, U32))
_RESULT: _Field = ("result", types.read_terminated)
_EXPIRES_AT: _Field = ("expires_at_ms", partial(_number, U64))
_CHORD: _Field = ("chord", types.read_terminated)
_OWNER: _Field = ("owner", types.read_terminated)

#: the fields after the prefix, in their order; the kinds that are missing have none
_FIELDS: dict[RecordKind, tuple[_Field, ...]] = {
    RecordKind.PAYLOAD: (_ID,),
    RecordKind.METADATA: (_ID,),
    RecordKind.ACTIVE: (_NAME, _BUCKET),
    RecordKind.DONE: (_NAME, _BUCKET),
    RecordKind.FAILED: (_NAME, _BUCKET),
    RecordKind.ARCHIVED_FAILED: (_NAME, _BUCKET),
    RecordKind.ATTEMPTS: (_ID,),
    RecordKind.CONFIG: (_NAME,),
    RecordKind.EXCHANGE: (_NAME,),
    RecordKind.BINDING: (_NAME, ("queue", _name), ("routing_key", _name), ("digest", _digest)),
    RecordKind.OPTIONS: (_NAME,),
    RecordKind.QUEUE_COUNTS: (_NAME,),
    RecordKind.OVERRIDES: (_NAME,),
    RecordKind.PRODUCER: (_SESSION,),
    RecordKind.LEASES: (_SESSION,),
    RecordKind.REMOVAL: (_SESSION,),
    RecordKind.CHUNK: (_ID, _CHUNK),
    RecordKind.ROUTES_BLOCK: (("numbers", _block),),
    RecordKind.RESULT: (_RESULT,),
    RecordKind.RESULT_EXPIRY: (_EXPIRES_AT, _RESULT),
    RecordKind.CHORD: (_CHORD,),
    RecordKind.CHORD_PART: (_CHORD, ("header_index", partial(_number, U32)), _RESULT),
    RecordKind.LARGE_VALUE: (_OWNER,),
    RecordKind.VALUE_CHUNK: (_OWNER, _CHUNK),
    RecordKind.DEAD_LETTER: (_ID, _NAME),
    RecordKind.CURSOR: (_NAME,),
    RecordKind.IDEMPOTENCY: (("hash", partial(_bytes, HASH_BYTES, "a hash")),),
    RecordKind.STAGED_JOB: (_NAME,),
    RecordKind.STAGED_OBJECT: (_ID,),
    RecordKind.STAGED_EXPIRY: (_EXPIRES_AT, _NAME),
    RecordKind.HISTORY_LOG: _history(U64, U64),
    RecordKind.HISTORY_POSTINGS: _history(U8, U64, U64, U64),
    RecordKind.HISTORY_SEGMENT: _history(U8, U64, U64),
    RecordKind.HISTORY_TRAIL: _history(U64, U64),
    RecordKind.HISTORY_PAGE: _history(U8, U64, U16),
    RecordKind.HISTORY_HEADERS: _history(U64, U64),
    RecordKind.RUNNING_TASKS: (_SESSION,),
    RecordKind.TASK_FAILURE: _history(U64),
    RecordKind.HANDLED_FAILURES: _history(U64),
}
