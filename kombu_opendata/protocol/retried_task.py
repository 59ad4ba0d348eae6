"""Message that runs a task again: what a retry of a failed task keeps of the task's message, and what it changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from ..errors import InvalidMessage
from . import messages as m
from .envelope import SPARK_JOB, SPARK_MESSAGE, Opened, encode_envelope, metadata_headers, open_envelope
from .message_properties import priority_of
from .revocation import PROPERTY

_DEATHS = ("x-death", "x-first-death-", "x-last-death-")
_GROUP = ("group", "group_index")
#: a task's body: its positional and keyword arguments, and its callbacks
_Body = tuple[msgspec.Raw, msgspec.Raw, dict[str, msgspec.Raw]]
_DECODERS: dict[str, Any] = {
    "application/json": msgspec.json.Decoder(_Body).decode,
    "application/x-msgpack": msgspec.msgpack.Decoder(_Body).decode,
}
_NOTHING = (b"null", b"\xc0")


def retried_task(
    envelope: bytes, now_ms: int, *, new_id: str = "", job_id: str = "", queue: str = ""
) -> m.Publish | None:
    """Return the publish that retries the task in an envelope; None if it is not a task of Celery.

    It is the same task: its id, ``root_id``, ``parent_id`` and body (arguments, callbacks, the rest of its chain) do
    not change. ``retries`` begins at 0. ``eta``, the headers of dead letters and an ``expires`` in the past are
    omitted. A member of a chord runs without its ``group``: the chord has counted its first run, and must not count a
    second run. Raise InvalidMessage if the headers can't be stored.

    Args:
        new_id: makes it another task, with the first task as its parent.
        job_id: the staged job of that task.
        queue: the queue; by default, the message is routed as before.
    """
    fields = open_envelope(envelope)
    if fields is None:
        return None
    body, kind, encoding, old, properties, exchange, key = (*fields[:5], "", queue) if queue else fields
    id = old.get("id")
    if not isinstance(old.get("task"), str) or not isinstance(id, str) or not id:
        return None
    left_out = (*_GROUP, *_DEATHS) if _may_be_in_chord(fields) else _DEATHS
    headers = {name: value for name, value in old.items() if not str(name).startswith(left_out)}
    ttl_ms = _time_left_ms(old.get("expires"), now_ms)
    headers |= {"retries": 0, "eta": None, "expires": old["expires"] if ttl_ms >= 0 else None}
    about = {name: value for name, value in properties.items() if name not in ("expiration", "timestamp")}
    if ttl_ms >= 0:
        about["expiration"] = str(ttl_ms)
    if new_id:
        headers |= {"id": new_id, "parent_id": id, "root_id": old.get("root_id") or id}
        headers[SPARK_JOB] = job_id
        headers.pop(SPARK_MESSAGE, None)
        about["correlation_id"] = new_id
        about.pop(PROPERTY, None)
    try:
        priority = priority_of(properties.get("priority"))
    except InvalidMessage:
        priority = 0
    new_envelope = encode_envelope(body, kind, encoding, headers, about, exchange, key)
    texts = metadata_headers(headers, exchange, key, priority, kind)
    return m.Publish(0, 0, exchange, key, new_envelope, texts, priority, now_ms, 0, ttl_ms, False, PROPERTY in about)


def _time_left_ms(expires: Any, now_ms: int) -> int:
    """Return the remaining time in which the task may start; -1 if it does not expire, or has expired."""
    try:
        at = datetime.fromisoformat(expires)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        remaining_ms = int(at.timestamp() * 1000) - now_ms
    except (TypeError, ValueError, OverflowError):
        return -1
    return remaining_ms if remaining_ms > 0 else -1


def _may_be_in_chord(opened: Opened) -> bool:
    """Return True if the body marks the task as a member of a chord, or can't be read without loading a pickle."""
    decode = _DECODERS.get(opened[1] or "")
    if decode is None or "compression" in opened[3]:
        return True
    try:
        body = msgspec.msgpack.decode(opened[0])
        chord = decode(body)[2].get("chord")
    except (ValueError, TypeError, RecursionError):
        return True
    return chord is not None and bytes(chord) not in _NOTHING
