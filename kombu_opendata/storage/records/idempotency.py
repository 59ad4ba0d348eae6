"""Idempotency: the messages of a publish with an idempotency key, so that a repeated publish stores nothing.

==================  =========  ==========================================================
field               type       meaning
==================  =========  ==========================================================
version             u8         1
messages            u32        number of messages that were published together
expires at          i64        ms since the epoch; the key expires then
digest              16 bytes   of the messages, to detect a key that is used for others
queues              Array      of ``Array<Utf8>``: the queues of each message; a single
                               entry applies to all messages
ids                 i64 each   of the messages; -1 for an unroutable one
==================  =========  ==========================================================

The key of the record has a hash of exchange, routing key and idempotency key (:func:`name_of`). The deletion of a queue
is recorded in the same form, with an empty exchange, the queue's name as the routing key, an empty idempotency key, and
the newest message id at that time. The format is defined here.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

from ...errors import RequestError
from . import field_types

DIGEST_BYTES = 16
HASH_BYTES = 16

_FIXED = struct.Struct(f"<BIq{DIGEST_BYTES}s")


class Sending(NamedTuple):
    """The messages published under a key."""

    ids: tuple[int, ...]
    expires_at_ms: int
    digest: bytes
    queues: tuple[tuple[str, ...], ...]


def name_of(exchange: str, routing_key: str, key: str) -> bytes:
    """Return the hash that represents a key at its destination: BLAKE2b of the three texts, each terminated."""
    parts = (part.encode("utf-8", "surrogatepass") for part in (exchange, routing_key, key))
    return hashlib.blake2b(b"".join(map(field_types.terminated, parts)), digest_size=HASH_BYTES).digest()


def encode(sending: Sending) -> bytes:
    if len(sending.digest) != DIGEST_BYTES:
        raise RequestError(f"a digest has {DIGEST_BYTES} bytes, not {len(sending.digest)}")
    head = (len(sending.ids), sending.expires_at_ms, sending.digest)
    fixed = field_types.pack_versioned(_FIXED, "messages, expires at, digest", *head)
    parts = [fixed, field_types.array_count(len(sending.queues), "destinations")]
    for names in sending.queues:
        parts += field_types.array_count(len(names), "queues"), *map(field_types.utf8, names)
    return b"".join(parts) + field_types.pack_column("q", sending.ids)


def decode(key: bytes, value: bytes) -> Sending:
    messages, expires_at, digest = field_types.read_versioned(_FIXED, key, value)
    (count,) = field_types.read(field_types.COUNT, key, value, _FIXED.size)
    queues, offset = field_types.read_many(
        field_types.read_texts, key, value, _FIXED.size + field_types.COUNT.size, count
    )
    ids, end = field_types.read_column("q", key, value, offset, messages)
    field_types.check_end(key, value, end)
    return Sending(tuple(ids), expires_at, digest, tuple(map(tuple, queues)))
