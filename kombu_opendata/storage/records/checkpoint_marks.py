"""Journal position and newest time: the two numbers that every checkpoint writes.

================  ======  =====================================================================================
record            value   meaning
================  ======  =====================================================================================
journal position  u64     the last journal entry in the store, counted through all segments of the journal
newest time       i64     the latest time in the store's state, ms since the epoch; a broker whose host's clock
                          was set back continues from it
================  ======  =====================================================================================

The formats are defined here.
"""

from __future__ import annotations

import struct

from . import types

_POSITION = struct.Struct("<Q")
_TIME = struct.Struct("<q")


def encode_journal_position(sequence: int) -> bytes:
    """Encode the sequence of the last applied entry."""
    return types.pack(_POSITION, "journal sequence", sequence)


def decode_journal_position(key: bytes, value: bytes) -> int:
    """Decode the sequence of the last applied entry."""
    return int(types.read_all(_POSITION, key, value)[0])


def encode_newest_time(at_ms: int) -> bytes:
    """Encode this time."""
    return types.pack(_TIME, "at", at_ms)


def decode_newest_time(key: bytes, value: bytes) -> int:
    """Decode the time, ms since the epoch."""
    return int(types.read_all(_TIME, key, value)[0])
