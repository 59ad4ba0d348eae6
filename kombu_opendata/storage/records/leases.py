"""Leases: the messages that a consumer's session holds, so that they outlive a restart of the broker.

===============  =========  =========================================
field            type       meaning
===============  =========  =========================================
consumer         ``Utf8``   the consumer's name
at               i64        when this was written, ms since the epoch
groups           u16        queues that follow, each once
-- queue         ``Utf8``
-- count         u32        message ids that follow
-- message ids   u64 each
===============  =========  =========================================

The format is ours.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from kombu_opendata.errors import RequestError
from kombu_opendata.storage.records import types

_AT = struct.Struct("<q")
_COUNT = struct.Struct("<I")
_ID_BYTES = 8


def encode(consumer: str, at_ms: int, leases: Mapping[str, Sequence[int]]) -> bytes:
    """The record of a session: message ids by queue."""
    parts = [types.utf8(consumer), types.pack(_AT, "at", at_ms), types.array_count(len(leases), "queues")]
    for queue, ids in leases.items():
        parts += types.utf8(queue), types.pack(_COUNT, "count of messages", len(ids)), _pack_ids(ids)
    return b"".join(parts)


def _pack_ids(ids: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(ids)}Q", *ids)
    except struct.error as error:
        raise RequestError(f"a message id out of range: {error}") from error


def decode(key: bytes, value: bytes) -> tuple[str, int, dict[str, list[int]]]:
    """(consumer, written at, message ids by queue)."""
    consumer, offset = types.read_utf8(key, value, 0)
    (at_ms,) = types.read(_AT, key, value, offset)
    offset += _AT.size
    (groups,) = types.read(types.COUNT, key, value, offset)
    offset += types.COUNT.size
    leases: dict[str, list[int]] = {}
    for _ in range(groups):
        queue, start = types.read_utf8(key, value, offset)
        if queue in leases:
            raise types.corrupt(key, offset, "a queue that is there twice")
        leases[queue], offset = _read_ids(key, value, start)
    types.check_end(key, value, offset)
    return consumer, at_ms, leases


def _read_ids(key: bytes, value: bytes, offset: int) -> tuple[list[int], int]:
    (count,) = types.read(_COUNT, key, value, offset)
    start = offset + _COUNT.size
    end = start + count * _ID_BYTES
    if end > len(value):
        raise types.corrupt(key, offset, f"{count} message ids in the {len(value) - start} bytes that are left")
    return list(struct.unpack_from(f"<{count}Q", value, start)), end
