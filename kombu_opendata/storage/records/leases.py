"""Leases: the messages that are leased to a consumer's session; they survive a restart of the broker.

===============  =========  ================================================================
field            type       meaning
===============  =========  ================================================================
consumer         ``Utf8``   the consumer's name
at               i64        the time of writing, ms since the epoch
groups           u16        number of queues that follow, each once
-- queue         ``Utf8``
-- count         u32        number of message ids; highest bit: deadlines follow, too
-- message ids   u64 each
-- deadlines     i64 each   expiry of each message, ms since the epoch; 0 means never
===============  =========  ================================================================

The format is defined here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import columns, types

_AT = struct.Struct("<q")
_COUNT = struct.Struct("<I")
_WITH_DEADLINES = 1 << 31


class SessionLeases(NamedTuple):
    """The messages that are leased to a session.

    Attributes:
        consumer: the name of the consumer.
        at_ms: the time of writing.
        held: message ids by queue.
        deadlines: by queue, if any of its messages expires: the expiry of each message in ``held``, 0 means never. The
            RFC's rows in flight have no deadline.
    """

    consumer: str
    at_ms: int
    held: Mapping[str, Sequence[int]]
    deadlines: Mapping[str, Sequence[int]] = {}


def encode(leases: SessionLeases) -> bytes:
    """Encode the leases of a session.

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
        parts += types.utf8(queue), types.pack(_COUNT, "count of messages", count)
        parts += columns.pack("Q", ids), columns.pack("q", deadlines)
    return b"".join(parts)


def decode(key: bytes, value: bytes) -> SessionLeases:
    """Decode the leases in ``value``."""
    consumer, offset = types.read_utf8(key, value, 0)
    (at_ms,) = types.read(_AT, key, value, offset)
    offset += _AT.size
    (groups,) = types.read(types.COUNT, key, value, offset)
    offset += types.COUNT.size
    ids_by_queue: dict[str, list[int]] = {}
    deadlines: dict[str, list[int]] = {}
    for _ in range(groups):
        queue, start = types.read_utf8(key, value, offset)
        if queue in ids_by_queue:
            raise types.corrupt(key, offset, "a queue that occurs twice")
        (count,) = types.read(_COUNT, key, value, start)
        with_deadlines, count = count & _WITH_DEADLINES, count & ~_WITH_DEADLINES
        ids, offset = columns.read("Q", key, value, start + _COUNT.size, count)
        ids_by_queue[queue] = ids.tolist()
        if with_deadlines:
            times, offset = columns.read("q", key, value, offset, count)
            deadlines[queue] = times.tolist()
    types.check_end(key, value, offset)
    return SessionLeases(consumer, at_ms, ids_by_queue, deadlines)
