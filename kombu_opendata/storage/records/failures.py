"""Records of failed attempts of tasks: their errors, and those that were retried or archived.

===========  ========  ==========================================================
failure      type      the error of an attempt; the key has the attempt's number
===========  ========  ==========================================================
version      u8        1
error        ``Utf8``  the exception's message
traceback    ``Utf8``  as Python prints it; or empty
task         ``Utf8``  its name; missing if unknown
===========  ========  ==========================================================

The exception's type is in the history log, with the attempt.

===========  ========  ==========================================================
handled      type      of 256 attempts; the key has the block (number of the attempt >> 8)
===========  ========  ==========================================================
version      u8        1
count        u16       number of attempts that follow, each once, in the order of handling
place        u8        number of the attempt & 255
how          u8        1: its task was retried; 2: it was archived
at           i64       time of handling, ms since the epoch
message id   u64       of the message that retries the task; 0 if archived
===========  ========  ==========================================================

The formats are defined here.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from . import field_types

BLOCK_BITS = 8
_LOW = (1 << BLOCK_BITS) - 1
RETRIED, DISMISSED = 1, 2
#: the ways of handling a failure, by number
HOW = ("", "retried", "dismissed")

_HEAD = struct.Struct("<BH")
_ROW = struct.Struct("<BBqQ")


class TaskFailure(msgspec.Struct, array_like=True, frozen=True, gc=False):
    error: str
    traceback: str
    task: str = ""


NO_FAILURE = TaskFailure("", "")


def encode_task_failure(failure: TaskFailure) -> bytes:
    task = field_types.utf8(failure.task) if failure.task else b""
    return field_types.VERSION_ONLY + field_types.utf8(failure.error) + field_types.utf8(failure.traceback) + task


def decode_task_failure(key: bytes, value: bytes) -> TaskFailure:
    field_types.check_version(key, value[0] if value else 0)
    texts, offset = field_types.read_many(field_types.read_utf8, key, value, 1, 2)
    if offset < len(value):
        task, offset = field_types.read_utf8(key, value, offset)
        texts.append(task)
    field_types.check_end(key, value, offset)
    return TaskFailure(*texts)


class Handled(NamedTuple):
    """A failed attempt that was handled. ``message_id`` is the message that retries its task, or 0."""

    number: int
    how: int
    at_ms: int
    message_id: int


def pack_handled(row: Handled) -> bytes:
    """Pack one attempt, for :func:`join_handled`."""
    return field_types.pack(_ROW, "place, how, at, message id", row.number & _LOW, *row[1:])


def join_handled(packed: bytes) -> bytes:
    """Encode one block from its packed attempts."""
    return field_types.pack_versioned(_HEAD, "count", len(packed) // _ROW.size) + packed


def decode_handled(key: bytes, value: bytes) -> list[Handled]:
    (count,) = field_types.read_versioned(_HEAD, key, value)
    if not count:
        raise field_types.corrupt(key, 1, "no attempts")
    if len(value) < _HEAD.size + count * _ROW.size:
        raise field_types.corrupt(key, len(value), f"the end of {count} attempts that have {_ROW.size} bytes each")
    field_types.check_end(key, value, _HEAD.size + count * _ROW.size)
    base = int.from_bytes(key[2:10], "big") << BLOCK_BITS
    attempts = [Handled(base + place, how, at, id) for place, how, at, id in _ROW.iter_unpack(value[_HEAD.size :])]
    if len({row.number for row in attempts}) < len(attempts):
        raise field_types.corrupt(key, 1, "an attempt that was handled twice")
    if not all(0 < row.how < len(HOW) for row in attempts):
        raise field_types.corrupt(key, 1, "an attempt that was handled in an unknown way")
    return attempts
