"""Queue counts: counters of the events of a queue, and the start of counting.

================  =====  ===========================================================================================
field             type   meaning
================  =====  ===========================================================================================
version           u8     1
created at        i64    ms since the epoch; declaration of the queue; 0 if unknown
counted since     i64    ms since the epoch
counters          u8     number of counters that follow
counter           u64    each, in the order of :data:`kombu_opendata.storage.state.queue_counters.NAMES`
================  =====  ===========================================================================================

Counters that a record does not have are 0. The format is defined here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import columns, types

_HEAD = struct.Struct("<BqqB")


class StoredCounts(NamedTuple):
    """The counters of a queue; see the module for the fields."""

    created_at_ms: int
    since_ms: int
    values: tuple[int, ...]


def encode(counts: StoredCounts) -> bytes:
    """Encode a queue's counters.

    Raises:
        RequestError: a number out of range.
    """
    head = (counts.created_at_ms, counts.since_ms, len(counts.values))
    fixed = types.pack_versioned(_HEAD, "created at, counted since, counters", *head)
    return fixed + columns.pack("Q", counts.values)


def decode(key: bytes, value: bytes) -> StoredCounts:
    """Decode the counters in ``value``."""
    created_at_ms, since_ms, number = types.read_versioned(_HEAD, key, value)
    values, end = columns.read("Q", key, value, _HEAD.size, number)
    types.check_end(key, value, end)
    return StoredCounts(created_at_ms, since_ms, tuple(values))
