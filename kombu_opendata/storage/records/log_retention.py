"""Log retention: the time for which the metadata log keeps unneeded messages, and the progress of its sweep.

============  ======  ============================================================================
field         type    meaning
============  ======  ============================================================================
version       u8      1
retention     i64     ms since a message was received; -1 means unlimited, 0 that no more are kept
position      u64     messages with ids below it were swept
swept at      i64     the end of the last full sweep, ms since the epoch; 0 means never
kept          u64     number of messages that only the log keeps
============  ======  ============================================================================

A store that never kept such messages has no record. The format is defined here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import types

_LAYOUT = struct.Struct("<BqQqQ")
#: an unlimited retention
FOREVER = -1


class LogRetention(NamedTuple):
    """The retention and its progress."""

    retention_ms: int = 0
    position: int = 0
    swept_at_ms: int = 0
    kept: int = 0


def encode(retention: LogRetention) -> bytes:
    """Encode the retention."""
    return types.pack_versioned(_LAYOUT, ", ".join(LogRetention._fields), *retention)


def decode(key: bytes, value: bytes) -> LogRetention:
    """Decode the retention in ``value``."""
    record = LogRetention(*types.read_all_versioned(_LAYOUT, key, value))
    if record.retention_ms < FOREVER:
        raise types.corrupt(key, 1, f"a retention of {record.retention_ms} ms")
    return record
