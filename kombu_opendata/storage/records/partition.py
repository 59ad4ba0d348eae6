"""Partition of a queue: the value that its messages have in common.

==============  ========  ==============================================================================
field           type      meaning
==============  ========  ==============================================================================
version         u8        1
full at         i64       ns since the epoch; when the token bucket of its rate is full again; 0: none
delayed until   i64       ms since the epoch; a task, or a message that returned to a partition with one
                          slot, has delayed the partition until then; 0: none
expression      ``Utf8``  the queue's ``x-partition-by`` when the partition was made
key             ``Utf8``  the value of the expression; empty for messages without a value
==============  ========  ==============================================================================

Its messages are in the queue's active buckets from the partition's number × 2^32 on. The format is defined here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import field_types

_HEAD = struct.Struct("<Bqq")
_TIMES = "full at, delayed until"
_NO_TIMES = field_types.pack_versioned(_HEAD, _TIMES, 0, 0)


class PartitionRecord(NamedTuple):
    """One partition of a queue, whose number is in the key; see the module for its fields."""

    by: str
    key: str
    full_at_ns: int = 0
    delayed_until_ms: int = 0


def encode(record: PartitionRecord) -> bytes:
    times = record.full_at_ns, record.delayed_until_ms
    head = field_types.pack_versioned(_HEAD, _TIMES, *times) if any(times) else _NO_TIMES
    return head + field_types.utf8(record.by) + field_types.utf8(record.key)


def decode(key: bytes, value: bytes) -> PartitionRecord:
    times = field_types.read_versioned(_HEAD, key, value)
    by, offset = field_types.read_utf8(key, value, _HEAD.size)
    text, offset = field_types.read_utf8(key, value, offset)
    field_types.check_end(key, value, offset)
    return PartitionRecord(by, text, *times)
