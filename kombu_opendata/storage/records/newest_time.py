"""Newest time: the latest time in the store's state, so that time does not go back at a restart.

======  ======  =======================
field   type    meaning
======  ======  =======================
at      i64     ms since the epoch
======  ======  =======================

The format is ours. Every checkpoint writes it; a broker whose host's clock was set back continues from it.
"""

from __future__ import annotations

import struct

from . import types

_AT = struct.Struct("<q")


def encode(at_ms: int) -> bytes:
    """The record of this time."""
    return types.pack(_AT, "at", at_ms)


def decode(key: bytes, value: bytes) -> int:
    """The time, ms since the epoch."""
    (at_ms,) = types.read_all(_AT, key, value)
    return int(at_ms)
