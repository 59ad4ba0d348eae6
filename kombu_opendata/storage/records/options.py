"""Queue options: the settings and limits of a queue that the RFC's queue config does not have.

=====================  ======  ===========================================================
field                  type    meaning
=====================  ======  ===========================================================
failed retention       u32     retention of a failed message in seconds; 0 means unlimited
lease                  u32     duration of a lease without a renewal in seconds
first done bucket      u64     done buckets below it, except bucket 0, are deleted
first failed bucket    u64     failed buckets below it, except bucket 0, are deleted
arguments              JSON    the arguments of the declaration
=====================  ======  ===========================================================

JSON is one object as ``Utf8``. The format is defined here.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from . import types

_HEAD = struct.Struct("<IIQQ")


class QueueOptionsRecord(NamedTuple):
    """The settings of a queue that the RFC does not have."""

    failed_retention_seconds: int
    lease_seconds: int
    first_done_bucket: int
    first_failed_bucket: int
    arguments: dict[str, Any]


def encode(options: QueueOptionsRecord) -> bytes:
    """Encode `options`."""
    fields = ", ".join(QueueOptionsRecord._fields[:-1])
    return types.pack(_HEAD, fields, *options[:-1]) + types.json_utf8(options.arguments)


def decode(key: bytes, value: bytes) -> QueueOptionsRecord:
    """Decode the options in `value`."""
    failed_retention, lease, first_done, first_failed = types.read(_HEAD, key, value, 0)
    arguments, end = types.read_json(key, value, _HEAD.size)
    types.check_end(key, value, end)
    return QueueOptionsRecord(failed_retention, lease, first_done, first_failed, arguments)
