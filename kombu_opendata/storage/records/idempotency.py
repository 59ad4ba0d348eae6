"""Idempotency: the messages of a publish with an idempotency key, so that a repeated publish stores nothing.

==================  =========  ==========================================================
field               type       meaning
==================  =========  ==========================================================
version             u8         1, or 2 with the fields of a unique key
messages            u32        number of messages that were published together
expires at          i64        ms since the epoch; the key expires then
digest              16 bytes   of the messages, to detect a key that is used for others
queues              Array      of ``Array<Utf8>``: the queues of each message; a single
                               entry applies to all messages
ids                 i64 each   of the messages; -1 for an unroutable one
until               u8         2 only: 0 a time, 1 the start of the message, 2 its end
flags               u8         2 only: bit 0: a publish may replace the message
task id             Utf8       2 only: of Celery, or empty
buckets             u64 each   2 only: of the message, in each of its queues
==================  =========  ==========================================================

The key of the record has a hash of exchange, routing key and idempotency key (:func:`name_of`). The deletion of a queue
is recorded in the same form, with an empty exchange, the queue's name as the routing key, an empty idempotency key, and
the newest message id at that time. A unique key has another hash (:func:`unique_name_of`). Its message holds the key
until the time, or as long as it is in its buckets (:mod:`..operations.unique_keys`). The format is defined here.
"""

from __future__ import annotations

import hashlib
import struct
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from ...errors import RequestError
from . import field_types

DIGEST_BYTES = 16
HASH_BYTES = 16

_FIXED = struct.Struct(f"<BIq{DIGEST_BYTES}s")
_UNIQUE_VERSION = 2
_UNTIL = struct.Struct("<BB")


class Until(IntEnum):
    """The end of a unique key."""

    TIME = 0
    STARTED = 1
    DONE = 2


class UniqueHold(NamedTuple):
    """The hold of a message on a unique key. ``buckets`` has the message's bucket in each of its queues."""

    until: int
    is_replaceable: bool
    task_id: str
    buckets: tuple[int, ...]


class Sending(NamedTuple):
    """The messages published under a key; the only message of a unique key has a ``hold``."""

    ids: tuple[int, ...]
    expires_at_ms: int
    digest: bytes
    queues: tuple[tuple[str, ...], ...]
    hold: UniqueHold | None = None


def name_of(exchange: str, routing_key: str, key: str) -> bytes:
    """Return the hash that represents a key at its destination: BLAKE2b of the three texts, each terminated."""
    parts = (part.encode("utf-8", "surrogatepass") for part in (exchange, routing_key, key))
    return hashlib.blake2b(b"".join(map(field_types.terminated, parts)), digest_size=HASH_BYTES).digest()


def unique_name_of(key: str, exchange: str = "", routing_key: str = "") -> bytes:
    """Return the hash that represents a unique key at its destination, which differs from that of :func:`name_of`."""
    digest = _destination(exchange, routing_key).copy()
    digest.update(field_types.terminated(key.encode("utf-8", "surrogatepass")))
    return digest.digest()


@lru_cache(maxsize=1024)
def _destination(exchange: str, routing_key: str) -> hashlib.blake2b:
    """Return the beginning of the hashes of unique keys with this destination."""
    parts = (part.encode("utf-8", "surrogatepass") for part in (exchange, routing_key))
    return hashlib.blake2b(b"".join(map(field_types.terminated, parts)), digest_size=HASH_BYTES, person=b"unique")


def encode(sending: Sending) -> bytes:
    if len(sending.digest) != DIGEST_BYTES:
        raise RequestError(f"a digest has {DIGEST_BYTES} bytes, not {len(sending.digest)}")
    version = field_types.VERSION if sending.hold is None else _UNIQUE_VERSION
    head = (version, len(sending.ids), sending.expires_at_ms, sending.digest)
    fixed = field_types.pack(_FIXED, "version, messages, expires at, digest", *head)
    value = fixed + _encode_queues(sending.queues) + field_types.pack_column("q", sending.ids)
    if sending.hold is None:
        return value
    until, is_replaceable, task_id, buckets = sending.hold
    flags = field_types.pack(_UNTIL, "until, flags", until, is_replaceable)
    return value + flags + field_types.utf8(task_id) + field_types.pack_column("Q", buckets)


def _encode_queues(queues: tuple[tuple[str, ...], ...]) -> bytes:
    return field_types.array_count(len(queues), "destinations") + b"".join(map(_encode_names, queues))


@lru_cache(maxsize=256)
def _encode_names(names: tuple[str, ...]) -> bytes:
    return field_types.array_count(len(names), "queues") + b"".join(map(field_types.utf8, names))


def decode(key: bytes, value: bytes) -> Sending:
    is_unique = value[:1] == bytes((_UNIQUE_VERSION,))
    fixed = field_types.VERSION_ONLY + value[1:] if is_unique else value
    messages, expires_at, digest = field_types.read_versioned(_FIXED, key, fixed)
    (count,) = field_types.read(field_types.COUNT, key, value, _FIXED.size)
    queues, offset = field_types.read_many(
        field_types.read_texts, key, value, _FIXED.size + field_types.COUNT.size, count
    )
    ids, end = field_types.read_column("q", key, value, offset, messages)
    hold = None
    if is_unique:
        until, flags = field_types.read(_UNTIL, key, value, end)
        task_id, end = field_types.read_utf8(key, value, end + _UNTIL.size)
        buckets, end = field_types.read_column("Q", key, value, end, len(queues[0]) if queues else 0)
        hold = UniqueHold(until, bool(flags), task_id, tuple(buckets))
    field_types.check_end(key, value, end)
    return Sending(tuple(ids), expires_at, digest, tuple(map(tuple, queues)), hold)
