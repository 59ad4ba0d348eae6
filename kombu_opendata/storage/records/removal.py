"""Removal: the progress of a session's last purge, deletion of a queue, redrive, move or copy.

=========  ======  ==========================================================
field      type    meaning
=========  ======  ==========================================================
version    u8      1
flags      u8      1: the call is done
call       u64     the number of the client's call
messages   u64     number removed, moved or copied so far
at         i64     the time of the last step, ms since the epoch
=========  ======  ==========================================================

A client that loses its connection repeats the call and receives the total count. The format is defined here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import types

_LAYOUT = struct.Struct("<BBQQq")
_OVER = 1


class Removal(NamedTuple):
    """The progress of a call."""

    call: int
    messages: int
    at_ms: int
    is_over: bool


def encode(removal: Removal) -> bytes:
    """Encode ``removal``."""
    call, messages, at_ms, is_over = removal
    return types.pack_versioned(_LAYOUT, "flags, call, messages, at", _OVER * is_over, call, messages, at_ms)


def decode(key: bytes, value: bytes) -> Removal:
    """Decode the removal in ``value``."""
    flags, call, messages, at_ms = types.read_all_versioned(_LAYOUT, key, value)
    if flags & ~_OVER:
        raise types.corrupt(key, 1, f"unknown flags {flags:#x}")
    return Removal(call, messages, at_ms, bool(flags))
