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
_VERSION = 1
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
    return types.pack(_LAYOUT, "version, retention, position, swept at, kept", _VERSION, *retention)


def decode(key: bytes, value: bytes) -> LogRetention:
    """The retention in ``value``."""
    version, retention_ms, position, swept_at_ms, kept = types.read_all(_LAYOUT, key, value)
    if version != _VERSION:
        raise types.corrupt(key, 0, f"record version {version}")
    if retention_ms < FOREVER:
        raise types.corrupt(key, 1, f"a retention of {retention_ms} ms")
    return LogRetention(retention_ms, position, swept_at_ms, kept)
