"""Queue counts: what happened in a queue, and since when it is counted.

================  =====  ===========================================================================================
field             type   meaning
================  =====  ===========================================================================================
version           u8     1
created at        i64    ms since the epoch; when the queue was declared; 0 where that is not known
counted since     i64    ms since the epoch
counters          u8     how many follow
counter           u64    each, in the order of :data:`kombu_opendata.storage.state.queue_counters.NAMES`
================  =====  ===========================================================================================

A reader takes the counters that a record does not have for 0. The format is ours.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import types

VERSION = 1
_HEAD = struct.Struct("<BqqB")
_COUNTER = struct.Struct("<Q")


class StoredCounts(NamedTuple):
    """The counters of a queue; see the module for the fields."""

    created_at_ms: int
    since_ms: int
    values: tuple[int, ...]


def encode(counts: StoredCounts) -> bytes:
    """The record of a queue's counters.

    Raises:
        RequestError: a number out of range.
    """
    fields = "version, created at, counted since, counters"
    head = types.pack(_HEAD, fields, VERSION, counts.created_at_ms, counts.since_ms, len(counts.values))
    return head + types.pack(struct.Struct(f"<{len(counts.values)}Q"), "counters", *counts.values)


def decode(key: bytes, value: bytes) -> StoredCounts:
    """The counters in ``value``."""
    version, created_at_ms, since_ms, number = types.read(_HEAD, key, value, 0)
    if version != VERSION:
        raise types.corrupt(key, 0, f"queue counts of version {version}")
    end = _HEAD.size + number * _COUNTER.size
    if end > len(value):
        raise types.corrupt(key, _HEAD.size, f"{number} counters expected, {len(value) - _HEAD.size} bytes found")
    types.check_end(key, value, end)
    values = tuple(counter for (counter,) in _COUNTER.iter_unpack(value[_HEAD.size :]))
    return StoredCounts(created_at_ms, since_ms, values)
