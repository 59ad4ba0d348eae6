"""Key parser: tells what record a key is the key of; :mod:`.keys` has the table of all keys."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from kombu_opendata.storage.records import types
from kombu_opendata.storage.records.kinds import (
    DIGEST_BYTES,
    HASH_BYTES,
    MAX_MESSAGE_ID,
    PREFIXES,
    SESSION_BYTES,
    U8,
    U16,
    U32,
    U64,
    RecordKind,
)

_PAYLOAD = PREFIXES[RecordKind.PAYLOAD]
_METADATA = PREFIXES[RecordKind.METADATA]
_SEQ_BLOCK = PREFIXES[RecordKind.SEQ_BLOCK]
# The two kinds that share their prefix with another are told apart by hand.
_KINDS = {prefix: kind for kind, prefix in PREFIXES.items() if kind not in (RecordKind.METADATA, RecordKind.ACTIVE)}


class Key(NamedTuple):
    """A parsed key; what the kind does not have is None."""

    kind: RecordKind
    #: the queue, or of an exchange and a binding the exchange, or of a dead letter the queue that it left, or the job
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
    #: of a result's expiry; of a staged job's expiry when it was settled
    expires_at_ms: int | None = None
    #: of a chord and its parts
    chord: bytes | None = None
    #: of a chord's part
    header_index: int | None = None
    #: of an idempotency key
    hash: bytes | None = None
    #: of history and of a routes block: the numbers after its prefix, in their order (see :mod:`.keys`)
    numbers: tuple[int, ...] | None = None
    #: of a large value and its chunks: the key of the result or of the chord's part
    owner: bytes | None = None


def parse(key: bytes) -> Key:
    """What `key` is the key of.

    Raises:
        CorruptRecord: it is no key of this store.
    """
    kind = _kind(key)
    start = len(PREFIXES[kind])
    parsed, end = _PARSERS[kind](kind, key, start)
    types.check_end(key, key, end)
    return parsed


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


def _read_name(key: bytes, offset: int) -> tuple[str, int]:
    raw, end = types.read_terminated(key, offset)
    return raw.decode("utf-8", "surrogateescape"), end


def _parse_fixed(kind: RecordKind, _key: bytes, offset: int) -> tuple[Key, int]:
    return Key(kind), offset


def _parse_id(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    (message_id,) = types.read(U64, key, key, offset)
    if message_id >= MAX_MESSAGE_ID:
        raise types.corrupt(key, offset, "a message id out of range")
    return Key(kind, id=message_id), offset + U64.size


def _parse_routes_block(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    (block,) = types.read(U64, key, key, offset)
    if block >= MAX_MESSAGE_ID >> 8:
        raise types.corrupt(key, offset, "a block of message ids out of range")
    return Key(kind, numbers=(block,)), offset + U64.size


def _parse_name(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    name, end = _read_name(key, offset)
    return Key(kind, name), end


def _parse_bucket(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    name, end = _read_name(key, offset)
    if end == len(key):
        return Key(kind, name, 0), end
    (bucket,) = types.read(U64, key, key, end)
    if not bucket:
        raise types.corrupt(key, end, "a bucket suffix of 0")
    return Key(kind, name, bucket), end + U64.size


def _parse_binding(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    exchange, offset = _read_name(key, offset)
    queue, offset = _read_name(key, offset)
    routing_key, offset = _read_name(key, offset)
    digest = key[offset:] or None
    if digest is not None and len(digest) != DIGEST_BYTES:
        raise types.corrupt(key, offset, f"a digest of {len(digest)} bytes")
    return Key(kind, exchange, queue=queue, routing_key=routing_key, digest=digest), len(key)


def _parse_session(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    end = offset + SESSION_BYTES
    if len(key) < end:
        raise types.corrupt(key, offset, f"a session id of {len(key) - offset} bytes")
    return Key(kind, session=key[offset:end]), end


def _parse_chunk(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    parsed, offset = _parse_id(kind, key, offset)
    (number,) = types.read(U32, key, key, offset)
    return parsed._replace(chunk=number), offset + U32.size


def _parse_result(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    result, end = types.read_terminated(key, offset)
    return Key(kind, result=result), end


def _parse_result_expiry(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    (expires_at,) = types.read(U64, key, key, offset)
    result, end = types.read_terminated(key, offset + U64.size)
    return Key(kind, result=result, expires_at_ms=expires_at), end


def _parse_chord(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    chord, end = types.read_terminated(key, offset)
    return Key(kind, chord=chord), end


def _parse_chord_part(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    chord, offset = types.read_terminated(key, offset)
    (index,) = types.read(U32, key, key, offset)
    member, end = types.read_terminated(key, offset + U32.size)
    return Key(kind, chord=chord, header_index=index, result=member), end


def _parse_large_value(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    owner, end = types.read_terminated(key, offset)
    return Key(kind, owner=owner), end


def _parse_value_chunk(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    parsed, end = _parse_large_value(kind, key, offset)
    (number,) = types.read(U32, key, key, end)
    return parsed._replace(chunk=number), end + U32.size


def _parse_id_and_name(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    parsed, offset = _parse_id(kind, key, offset)
    name, end = _read_name(key, offset)
    return parsed._replace(name=name), end


def _parse_hash(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    end = offset + HASH_BYTES
    if len(key) < end:
        raise types.corrupt(key, offset, f"a hash of {len(key) - offset} bytes")
    return Key(kind, hash=key[offset:end]), end


def _parse_staged_expiry(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
    (settled_at,) = types.read(U64, key, key, offset)
    name, end = _read_name(key, offset + U64.size)
    return Key(kind, name, expires_at_ms=settled_at), end


def _parse_numbers(*layout: struct.Struct) -> Callable[[RecordKind, bytes, int], tuple[Key, int]]:
    def parse_them(kind: RecordKind, key: bytes, offset: int) -> tuple[Key, int]:
        numbers: list[int] = []
        for part in layout:
            numbers += types.read(part, key, key, offset)
            offset += part.size
        return Key(kind, numbers=tuple(numbers)), offset

    return parse_them


_PARSERS: dict[RecordKind, Callable[[RecordKind, bytes, int], tuple[Key, int]]] = {
    RecordKind.PAYLOAD: _parse_id,
    RecordKind.METADATA: _parse_id,
    RecordKind.SEQ_BLOCK: _parse_fixed,
    RecordKind.ACTIVE: _parse_bucket,
    RecordKind.DONE: _parse_bucket,
    RecordKind.FAILED: _parse_bucket,
    RecordKind.ATTEMPTS: _parse_id,
    RecordKind.CONFIG: _parse_name,
    RecordKind.STORE_HEADER: _parse_fixed,
    RecordKind.EXCHANGE: _parse_name,
    RecordKind.BINDING: _parse_binding,
    RecordKind.OPTIONS: _parse_name,
    RecordKind.PRODUCER: _parse_session,
    RecordKind.LEASES: _parse_session,
    RecordKind.CHUNK: _parse_chunk,
    RecordKind.ROUTES_BLOCK: _parse_routes_block,
    RecordKind.JOURNAL_POSITION: _parse_fixed,
    RecordKind.RESULT: _parse_result,
    RecordKind.RESULT_EXPIRY: _parse_result_expiry,
    RecordKind.CHORD: _parse_chord,
    RecordKind.CHORD_PART: _parse_chord_part,
    RecordKind.DEAD_LETTER: _parse_id_and_name,
    RecordKind.CURSOR: _parse_name,
    RecordKind.IDEMPOTENCY: _parse_hash,
    RecordKind.STAGED_JOB: _parse_name,
    RecordKind.STAGED_OBJECT: _parse_id,
    RecordKind.STAGED_EXPIRY: _parse_staged_expiry,
    RecordKind.HISTORY_LOG: _parse_numbers(U64, U64),
    RecordKind.HISTORY_POSTINGS: _parse_numbers(U8, U64, U64, U64),
    RecordKind.HISTORY_SEGMENT: _parse_numbers(U8, U64, U64),
    RecordKind.HISTORY_TRAIL: _parse_numbers(U64, U64),
    RecordKind.HISTORY_PAGE: _parse_numbers(U8, U64, U16),
    RecordKind.HISTORY_HEAD: _parse_fixed,
    RecordKind.HISTORY_HEADERS: _parse_numbers(U64, U64),
    RecordKind.NEWEST_TIME: _parse_fixed,
    RecordKind.LOG_RETENTION: _parse_fixed,
    RecordKind.REMOVAL: _parse_session,
    RecordKind.LARGE_VALUE: _parse_large_value,
    RecordKind.VALUE_CHUNK: _parse_value_chunk,
    RecordKind.QUEUE_COUNTS: _parse_name,
    RecordKind.ARCHIVED_FAILED: _parse_bucket,
}
