"""Handled failures: which of 256 attempts failed and were run again or dismissed since.

The key has the block (number of the attempt >> 8).

===========  ======  ==========================================================
field        type    meaning
===========  ======  ==========================================================
version      u8      1
count        u16     attempts that follow, each once, in the order of their handling
place        u8      number of the attempt & 255
how          u8      1: its task was run again; 2: it was dismissed
at           i64     when, ms since the epoch
message id   u64     of the message that runs the task again; 0 if dismissed
===========  ======  ==========================================================

The format is ours.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import types

BLOCK_BITS = 8
_LOW = (1 << BLOCK_BITS) - 1
RETRIED, DISMISSED = 1, 2
#: how a failure was handled, by number
HOW = ("", "retried", "dismissed")

_HEAD = struct.Struct("<BH")
_ROW = struct.Struct("<BBqQ")


class Handled(NamedTuple):
    """A failed attempt that was handled. ``message_id`` is the message that runs its task again, or 0."""

    number: int
    how: int
    at_ms: int
    message_id: int


def pack(row: Handled) -> bytes:
    """One attempt, for :func:`join`."""
    return types.pack(_ROW, "place, how, at, message id", row.number & _LOW, *row[1:])


def join(packed: bytes) -> bytes:
    """The record of one block, from its packed attempts."""
    return types.pack_versioned(_HEAD, "count", len(packed) // _ROW.size) + packed


def decode(key: bytes, value: bytes) -> list[Handled]:
    """The attempts in ``value``."""
    (count,) = types.read_versioned(_HEAD, key, value)
    if not count:
        raise types.corrupt(key, 1, "no attempts")
    if len(value) < _HEAD.size + count * _ROW.size:
        raise types.corrupt(key, len(value), f"the end of {count} attempts that have {_ROW.size} bytes each")
    types.check_end(key, value, _HEAD.size + count * _ROW.size)
    base = int.from_bytes(key[2:10], "big") << BLOCK_BITS
    found = [Handled(base + place, how, at, id) for place, how, at, id in _ROW.iter_unpack(value[_HEAD.size :])]
    if len({row.number for row in found}) < len(found):
        raise types.corrupt(key, 1, "an attempt that was handled twice")
    if not all(0 < row.how < len(HOW) for row in found):
        raise types.corrupt(key, 1, "an attempt that was handled in an unknown way")
    return found
