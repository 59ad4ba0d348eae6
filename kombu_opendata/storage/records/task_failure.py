"""Task failure: the error of an attempt whose task failed; its key has the attempt's number.

=========  ========  =============================
field      type      meaning
=========  ========  =============================
version    u8        1
error      ``Utf8``  the exception's message
traceback  ``Utf8``  as Python prints it; or empty
task       ``Utf8``  its name; missing if unknown
=========  ========  =============================

The exception's type is in the history log, with the attempt. The format is defined here.
"""

from __future__ import annotations

import msgspec

from . import types


class TaskFailure(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The texts of a failed task."""

    error: str
    traceback: str
    task: str = ""


NONE = TaskFailure("", "")


def encode(failure: TaskFailure) -> bytes:
    """Encode a failure."""
    task = types.utf8(failure.task) if failure.task else b""
    return bytes((types.VERSION,)) + types.utf8(failure.error) + types.utf8(failure.traceback) + task


def decode(key: bytes, value: bytes) -> TaskFailure:
    """Decode the failure in ``value``."""
    types.check_version(key, value[0] if value else 0)
    error, offset = types.read_utf8(key, value, 1)
    traceback, offset = types.read_utf8(key, value, offset)
    task, offset = types.read_utf8(key, value, offset) if offset < len(value) else ("", offset)
    types.check_end(key, value, offset)
    return TaskFailure(error, traceback, task)
