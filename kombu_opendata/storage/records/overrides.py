"""Overrides: an operator's changes of a queue, which replace values of its declaration.

=========  ======  ==============================================================
field      type    meaning
=========  ======  ==============================================================
version    u8      1
flags      u8      1: deliveries are paused; 2: publishes are refused
paused at  i64     the time of setting the flags, ms since the epoch; 0: none
arguments  JSON    values by argument; null: as if the argument were not declared
=========  ======  ==============================================================

JSON is one object as ``Utf8``. The format is defined here.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from . import types

_HEAD = struct.Struct("<BBq")
#: the flags
DELIVERIES, PUBLISHES = 1, 2
_FLAGS = DELIVERIES | PUBLISHES


class QueueOverrides(NamedTuple):
    """An operator's changes of one queue."""

    paused: int = 0
    paused_at_ms: int = 0
    arguments: Mapping[str, Any] = {}

    def over(self, declared: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments in effect: the declared ones with these in their place."""
        unchanged = {name: value for name, value in declared.items() if name not in self.arguments}
        return unchanged | {name: value for name, value in self.arguments.items() if value is not None}


#: the overrides of a queue without changes
NO_OVERRIDES = QueueOverrides()


def encode(overrides: QueueOverrides) -> bytes:
    """Encode ``overrides``."""
    head = types.pack_versioned(_HEAD, "flags, paused at", overrides.paused, overrides.paused_at_ms)
    return head + types.json_utf8(dict(overrides.arguments))


def decode(key: bytes, value: bytes) -> QueueOverrides:
    """Decode the overrides in ``value``."""
    flags, paused_at = types.read_versioned(_HEAD, key, value)
    if flags & ~_FLAGS:
        raise types.corrupt(key, 1, f"unknown flags {flags:#x}")
    arguments, end = types.read_json(key, value, _HEAD.size)
    types.check_end(key, value, end)
    return QueueOverrides(flags, paused_at, arguments)
