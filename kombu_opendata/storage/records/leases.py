"""Leases: the messages that a consumer's session holds, so that they outlive a restart of the broker.

===============  =========  ================================================================
field            type       meaning
===============  =========  ================================================================
consumer         ``Utf8``   the consumer's name
at               i64        when this was written, ms since the epoch
groups           u16        queues that follow, each once
-- queue         ``Utf8``
-- count         u32        message ids that follow; highest bit: and their deadlines
-- message ids   u64 each
-- deadlines     i64 each   ms since the epoch: when the message of each id expires, 0 for never
===============  =========  ================================================================

The format is ours.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...errors import RequestError
from . import types

_AT = struct.Struct("<q")
_COUNT = struct.Struct("<I")
_WITH_DEADLINES = 1 << 31


class Leases(NamedTuple):
    """What a session holds.

    Attributes:
        consumer: its name.
        at_ms: when this was written.
        held: message ids by queue.
        deadlines: of queues with a message that expires: when each one of ``held`` does, 0 for never. A row in flight
            of the RFC has no deadline.
    """

    consumer: str
    at_ms: int
    held: Mapping[str, Sequence[int]]
    deadlines: Mapping[str, Sequence[int]] = {}


def encode(leases: Leases) -> bytes:
    """The record of a session.

    Raises:
        RequestError: a value out of range.
    """
    parts = [
        types.utf8(leases.consumer),
        types.pack(_AT, "at", leases.at_ms),
        types.array_count(len(leases.held), "queues"),
    ]
    for queue, ids in leases.held.items():
        deadlines = leases.deadlines.get(queue, ())
        count = len(ids) | (_WITH_DEADLINES if deadlines else 0)
        parts += types.utf8(queue), types.pack(_COUNT, "count of messages", count), _pack("Q", ids)
        parts.append(_pack("q", deadlines))
    return b"".join(parts)


def _pack(kind: str, numbers: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(numbers)}{kind}", *numbers)
    except struct.error as error:
        raise RequestError(f"a message id or a deadline out of range: {error}") from error


def decode(key: bytes, value: bytes) -> Leases:
    """The leases in ``value``."""
    consumer, offset = types.read_utf8(key, value, 0)
    (at_ms,) = types.read(_AT, key, value, offset)
    offset += _AT.size
    (groups,) = types.read(types.COUNT, key, value, offset)
    offset += types.COUNT.size
    held: dict[str, list[int]] = {}
    deadlines: dict[str, list[int]] = {}
    for _ in range(groups):
        queue, start = types.read_utf8(key, value, offset)
        if queue in held:
            raise types.corrupt(key, offset, "a queue that is there twice")
        (count,) = types.read(_COUNT, key, value, start)
        with_deadlines, count = count & _WITH_DEADLINES, count & ~_WITH_DEADLINES
        held[queue], offset = _read("Q", key, value, start + _COUNT.size, count)
        if with_deadlines:
            deadlines[queue], offset = _read("q", key, value, offset, count)
    types.check_end(key, value, offset)
    return Leases(consumer, at_ms, held, deadlines)


def _read(kind: str, key: bytes, value: bytes, start: int, count: int) -> tuple[list[int], int]:
    end = start + count * 8
    if end > len(value):
        raise types.corrupt(key, start, f"{count} message ids or deadlines in the {len(value) - start} bytes left")
    return list(struct.unpack_from(f"<{count}{kind}", value, start)), end
