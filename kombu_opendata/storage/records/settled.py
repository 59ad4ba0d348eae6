"""Settled messages: one bucket of the done, failed or archived failed messages of a queue.

===========  ======  =======================================================
field        type    meaning
===========  ======  =======================================================
count        u16     entries that follow
message id   u64
settled at   i64     the time at which it was done or failed, ms since the epoch
attempts     u16     number of claims
===========  ======  =======================================================

Source: RFC 0001. The entries of a tail bucket remain packed (:func:`pack_entry`) and are joined at each write.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from . import field_types

_ENTRY = struct.Struct("<QqH")
ENTRY_BYTES = _ENTRY.size


class SettledEntry(NamedTuple):
    """A message that is done or failed."""

    message_id: int
    settled_at_ms: int
    attempts: int


def pack_entry(message_id: int, at_ms: int, attempts: int) -> bytes:
    """Pack one entry, for :func:`join`."""
    try:
        return _ENTRY.pack(message_id, at_ms, attempts)
    except struct.error:  # packs again, for an error that names the field
        return field_types.pack(_ENTRY, "message id, settled at, attempts", message_id, at_ms, attempts)


def join(packed: Sequence[bytes]) -> bytes:
    """Encode one bucket from packed entries."""
    return field_types.array_count(len(packed), "settled messages") + b"".join(packed)


def pack_entries(entries: Iterable[tuple[int, int, int]]) -> list[bytes]:
    return [pack_entry(*entry) for entry in entries]


def count_of(value: bytes) -> int:
    """Return the number of entries in the record of a bucket."""
    return len(value) // ENTRY_BYTES


def decode(key: bytes, value: bytes) -> list[SettledEntry]:
    """Decode the entries of one bucket, in stored order."""
    (count,) = field_types.read(field_types.COUNT, key, value, 0)
    if field_types.COUNT.size + count * ENTRY_BYTES != len(value):
        raise field_types.corrupt(key, 0, f"{count} settled messages in a record of {len(value)} bytes")
    return list(map(SettledEntry._make, _ENTRY.iter_unpack(value[field_types.COUNT.size :])))
