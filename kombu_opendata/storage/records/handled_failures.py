"""Handled failures: those of 256 failed attempts that were retried or archived.

The key has the block (number of the attempt >> 8).

===========  ======  ==========================================================
field        type    meaning
===========  ======  ==========================================================
version      u8      1
count        u16     number of attempts that follow, each once, in the order of handling
place        u8      number of the attempt & 255
how          u8      1: its task was retried; 2: it was archived
at           i64     time of handling, ms since the epoch
message id   u64     of the message that retries the task; 0 if archived
===========  ======  ==========================================================

The format is defined here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import types

BLOCK_BITS = 8
_LOW = (1 << BLOCK_BITS) - 1
RETRIED, DISMISSED = 1, 2
#: the ways of handling a failure, by number
HOW = ("", "retried", "dismissed")

_HEAD = struct.Struct("<BH")
_ROW = struct.Struct("<BBqQ")


class Handled(NamedTuple):
    """A failed attempt that was handled. ``message_id`` is the message that retries its task, or 0."""

    number: int
    how: int
    at_ms: int
    message_id: int


def pack(row: Handled) -> bytes:
    """Pack one attempt, for :func:`join`."""
    return types.pack(_ROW, "place, how, at, message id", row.number & _LOW, *row[1:])


def join(packed: bytes) -> bytes:
    """Encode one block from its packed attempts."""
    return types.pack_versioned(_HEAD, "count", len(packed) // _ROW.size) + packed


def decode(key: bytes, value: bytes) -> list[Handled]:
    """Decode the attempts in ``value``."""
    (count,) = types.read_versioned(_HEAD, key, value)
    if not count:
        raise types.corrupt(key, 1, "no attempts")
    if len(value) < _HEAD.size + count * _ROW.size:
        raise types.corrupt(key, len(value), f"the end of {count} attempts that have {_ROW.size} bytes each")
    types.check_end(key, value, _HEAD.size + count * _ROW.size)
    base = int.from_bytes(key[2:10], "big") << BLOCK_BITS
    attempts = [Handled(base + place, how, at, id) for place, how, at, id in _ROW.iter_unpack(value[_HEAD.size :])]
    if len({row.number for row in attempts}) < len(attempts):
        raise types.corrupt(key, 1, "an attempt that was handled twice")
    if not all(0 < row.how < len(HOW) for row in attempts):
        raise types.corrupt(key, 1, "an attempt that was handled in an unknown way")
    return attempts
