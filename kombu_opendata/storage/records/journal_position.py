"""Journal position: up to which entry the journal is in the store.

=========  ======  =============================================================
field      type    meaning
=========  ======  =============================================================
sequence   u64     the last journal entry applied, whatever segment it was in
=========  ======  =============================================================

The format is ours.
"""

from __future__ import annotations

import struct

from . import types

_SEQUENCE = struct.Struct("<Q")


def encode(sequence: int) -> bytes:
    """The record of the last applied entry."""
    return types.pack(_SEQUENCE, "journal sequence", sequence)


def decode(key: bytes, value: bytes) -> int:
    """The sequence of the last applied entry."""
    (sequence,) = types.read_all(_SEQUENCE, key, value)
    return int(sequence)
