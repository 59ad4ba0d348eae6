"""Queue options: the settings and limits of a queue that the RFC's queue config has no field for.

=====================  ======  ===========================================================
field                  type    meaning
=====================  ======  ===========================================================
failed retention       u32     seconds that a failed message is kept; 0 means forever
lease                  u32     seconds that a lease lasts without a renewal
first done bucket      u64     done buckets below it, except bucket 0, are gone
first failed bucket    u64     failed buckets below it, except bucket 0, are gone
arguments              JSON    the arguments of the declaration
=====================  ======  ===========================================================

JSON is one object as ``Utf8``. The format is ours.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from . import types

_HEAD = struct.Struct("<IIQQ")


class QueueOptionsRecord(NamedTuple):
    """Our part of a queue's settings."""

    failed_retention_seconds: int
    lease_seconds: int
    first_done_bucket: int
    first_failed_bucket: int
    arguments: dict[str, Any]


def encode(options: QueueOptionsRecord) -> bytes:
    """The record of `options`."""
    fields = ", ".join(QueueOptionsRecord._fields[:-1])
    return types.pack(_HEAD, fields, *options[:-1]) + types.json_utf8(options.arguments)


def decode(key: bytes, value: bytes) -> QueueOptionsRecord:
    """The options in `value`."""
    failed_retention, lease, first_done, first_failed = types.read(_HEAD, key, value, 0)
    arguments, end = types.read_json(key, value, _HEAD.size)
    types.check_end(key, value, end)
    return QueueOptionsRecord(failed_retention, lease, first_done, first_failed, arguments)
