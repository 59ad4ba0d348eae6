"""Routing cursor: the progress of the background routing of stored messages into one queue.

=============  ========  ===============================================================================
field          type      meaning
=============  ========  ===============================================================================
version        u8        1
flags          u8        1: messages that are done or failed in the queue are routed again;
                         2: some of the messages before the end may already be in the queue
start          u64       the first message id to examine
position       u64       the next message id to examine; the routing is over when it is the end
end            u64       the first message id that is not examined: it was routed when it was published
from           i64       ms since the epoch; messages received before are skipped
until          i64       ms since the epoch; messages received from then on are skipped; 0 means none
started at     i64       ms since the epoch
changed at     i64       ms since the epoch; when it last advanced
seen           u64       messages examined
routed         u64       messages added to the queue
selector       ``Utf8``  must match besides the queue's filter; empty means none
=============  ========  ===============================================================================

The format is defined here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import field_types

_AGAIN, _CHECKS = 1, 2
_HEAD = struct.Struct("<BBQQQqqqqQQ")


class Cursor(NamedTuple):
    """A queue's routing cursor; see the module for its fields."""

    start: int
    position: int
    end: int
    from_ms: int = 0
    until_ms: int = 0
    started_at_ms: int = 0
    changed_at_ms: int = 0
    seen: int = 0
    routed: int = 0
    again: bool = False
    checks: bool = False
    selector: str = ""

    @property
    def is_done(self) -> bool:
        """True if all messages were examined."""
        return self.position >= self.end


def encode(cursor: Cursor) -> bytes:
    flags = _AGAIN * cursor.again | _CHECKS * cursor.checks
    fields = ", ".join(("flags", *Cursor._fields[:9]))
    return field_types.pack_versioned(_HEAD, fields, flags, *cursor[:9]) + field_types.utf8(cursor.selector)


def decode(key: bytes, value: bytes) -> Cursor:
    flags, *numbers = field_types.read_versioned(_HEAD, key, value)
    if flags & ~(_AGAIN | _CHECKS):
        raise field_types.corrupt(key, 1, f"unknown flags {flags}")
    selector, offset = field_types.read_utf8(key, value, _HEAD.size)
    field_types.check_end(key, value, offset)
    return Cursor._make([*numbers, bool(flags & _AGAIN), bool(flags & _CHECKS), selector])
