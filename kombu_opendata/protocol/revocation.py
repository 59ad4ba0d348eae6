"""Revoked tasks: the result REVOKED of a Celery task that expires before a worker receives it, and revoked ids.

A client whose result backend is on the same broker describes the result in the envelope's properties, under
:data:`PROPERTY`: ``[name of the result, prefix of chord names, TTL in ms]``. When the task expires, the broker stores
:data:`MARK`, followed by the result as JSON. No serializer's output and no compressed result begins with this mark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from .envelope import open_envelope

PROPERTY = "x-opendata-result"
MARK = b"\0opendata\0"
#: result that Celery's worker stores for a task that expired
_EXPIRED = {"exc_type": "TaskRevokedError", "exc_message": ["expired"], "exc_module": "celery.exceptions"}
#: end of the name of the exchange of Celery's remote control
CONTROL_EXCHANGE = ".pidbox"
_MAX_COMMAND_BYTES = 1 << 20


class _Command(msgspec.Struct):
    """Command of Celery's remote control to all workers."""

    method: str
    arguments: dict[str, Any]
    destination: None = None
    pattern: None = None


class Revocation(NamedTuple):
    """Description of the result of a task that expires."""

    name: bytes
    ttl_ms: int
    task_id: str
    chord: bytes  # name of the task's chord; empty if there is none
    place: int  # index of the task in the chord's header; -1 if unknown


def read(headers: Mapping[Any, Any], properties: Mapping[Any, Any]) -> Revocation | None:
    """Return the result that a message describes; None if its property is missing or invalid."""
    match properties.get(PROPERTY), headers.get("id"), headers.get("group"), headers.get("group_index"):
        case [str(name), str(prefix), int(ttl_ms)], str(id), group, index:
            chord = (prefix + group).encode() if isinstance(group, str) and group else b""
            return Revocation(name.encode(), ttl_ms, id, chord, index if type(index) is int else -1)
    return None


def revoked_ids(envelope: bytes) -> list[str]:
    """Return the ids of the tasks that a command of remote control revokes for all workers."""
    opened = open_envelope(envelope) if len(envelope) <= _MAX_COMMAND_BYTES else None
    if opened is None:
        return []
    try:
        command = msgspec.json.decode(msgspec.msgpack.decode(opened[0]), type=_Command)
    except (msgspec.MsgspecError, TypeError, RecursionError):  # for some workers, or not of JSON
        return []
    ids = command.arguments.get("task_id") if command.method == "revoke" else None
    return [id for id in (ids if isinstance(ids, list) else [ids]) if isinstance(id, str)]


def value(task_id: str, date_done: str) -> bytes:
    """Return the result of a task that expired."""
    return _value(task_id, date_done, "REVOKED", _EXPIRED)


def failed_chord(body_id: str, task_id: str, date_done: str) -> bytes:
    """Return the result of a chord's body when a task of its header has expired."""
    text = f"Dependency {task_id} raised TaskRevokedError('expired')"
    error = {"exc_type": "ChordError", "exc_message": [text], "exc_module": "celery.exceptions"}
    return _value(body_id, date_done, "FAILURE", error)


def _value(task_id: str, date_done: str, status: str, error: dict[str, Any]) -> bytes:
    meta: dict[str, Any] = {
        "status": status, "result": error, "traceback": None, "children": [], "date_done": date_done,
        "task_id": task_id,
    }  # fmt: skip
    return MARK + json.dumps(meta).encode()


def decode(encoded: bytes) -> dict[str, Any]:
    """Return the result metadata in a value that begins with :data:`MARK`."""
    return dict(json.loads(encoded[len(MARK) :]))
