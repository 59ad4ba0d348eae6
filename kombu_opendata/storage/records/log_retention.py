"""Log retention: how long messages stay in the metadata log when no queue needs them, and how far the log was swept.

============  ======  ============================================================================
field         type    meaning
============  ======  ============================================================================
version       u8      1
retention     i64     ms since a message was received; -1 for ever, 0 while no more are kept
position      u64     messages with ids below it were looked at: what was past its time went
swept at      i64     when the whole log was swept last, ms since the epoch; 0 never
kept          u64     how many messages are kept that no queue needs
============  ======  ============================================================================

There is none in a store that never kept such messages. The format is ours.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import types

_LAYOUT = struct.Struct("<BqQqQ")
#: the retention that never ends
FOREVER = -1


class LogRetention(NamedTuple):
    """What the record says."""

    retention_ms: int = 0
    position: int = 0
    swept_at_ms: int = 0
    kept: int = 0


def encode(retention: LogRetention) -> bytes:
    """The record."""
    return types.pack_versioned(_LAYOUT, ", ".join(LogRetention._fields), *retention)


def decode(key: bytes, value: bytes) -> LogRetention:
    """The retention in ``value``."""
    found = LogRetention(*types.read_all_versioned(_LAYOUT, key, value))
    if found.retention_ms < FOREVER:
        raise types.corrupt(key, 1, f"a retention of {found.retention_ms} ms")
    return found
