"""Queue config: the filter of a queue's messages, and their retention.

================  =========  ==========================================================
field             type       meaning
================  =========  ==========================================================
filter type       u8         ``01``: the filter is a selector text
filter            ``Utf8``   the selector
max attempts      u16        claims after which a message moves to the failed messages
done retention    u32        retention of a done message in seconds; 0 means unlimited
================  =========  ==========================================================

Source: RFC 0001, which leaves the encoding of its FilterExpression open: here the first two fields.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from . import types

_SELECTOR = b"\x01"
_LIMITS = struct.Struct("<HI")


class QueueConfig(NamedTuple):
    """The RFC's part of a queue's settings."""

    filter: str
    max_attempts: int
    done_retention_seconds: int


def encode(config: QueueConfig) -> bytes:
    """Encode `config`."""
    limits = types.pack(
        _LIMITS, "max attempts, done retention seconds", config.max_attempts, config.done_retention_seconds
    )
    return _SELECTOR + types.utf8(config.filter) + limits


def decode(key: bytes, value: bytes) -> QueueConfig:
    """Decode the config in `value`."""
    if value[:1] != _SELECTOR:
        raise types.corrupt(key, 0, f"filter type {value[:1].hex() or '(none)'}")
    selector, offset = types.read_utf8(key, value, 1)
    max_attempts, done_retention = types.read(_LIMITS, key, value, offset)
    types.check_end(key, value, offset + _LIMITS.size)
    return QueueConfig(selector, max_attempts, done_retention)
