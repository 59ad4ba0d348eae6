"""Message that a job sends when it has ended: a task of Celery that gets the job's counts as a keyword argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import InvalidMessage
from . import messages as m
from .envelope import SPARK_JOB, SPARK_MESSAGE, encode_envelope, metadata_headers, open_envelope
from .message_properties import priority_of, ttl_ms_of, visible_at_ms_of
from .revocation import PROPERTY

#: limit for the envelope, which is part of the job's record
MAX_COMPLETION_BYTES = 32 << 10
#: keyword argument that the broker adds
JOB_ARGUMENT = "job"
#: a task's body: its positional and keyword arguments, and its callbacks
_Body = tuple[msgspec.Raw, dict[str, msgspec.Raw], msgspec.Raw]
_CODECS: dict[str, tuple[Any, Any]] = {
    "application/json": (msgspec.json.Decoder(_Body).decode, msgspec.json.encode),
    "application/x-msgpack": (msgspec.msgpack.Decoder(_Body).decode, msgspec.msgpack.encode),
}


def completion_task(envelope: bytes, job: Mapping[str, Any], now_ms: int) -> m.Publish:
    """Return the publish of the task in an envelope, with the keyword argument ``job``.

    Raises:
        InvalidMessage: the envelope has no task to which the argument can be added.
    """
    if len(envelope) > MAX_COMPLETION_BYTES:
        text = f"the task on completion has {len(envelope)} bytes; the limit is {MAX_COMPLETION_BYTES}"
        raise InvalidMessage(text, size=len(envelope), limit=MAX_COMPLETION_BYTES)
    fields = open_envelope(envelope)
    if fields is None or not isinstance(fields[3].get("task"), str) or not isinstance(fields[3].get("id"), str):
        raise InvalidMessage("the message on completion is not a task of Celery", name="on_complete")
    raw, kind, encoding, headers, properties, exchange, key = fields
    if kind not in _CODECS or "compression" in headers:
        text = f"the task on completion is serialized as {kind!r:.100} or compressed: use json or msgpack"
        raise InvalidMessage(text, name="on_complete")
    decode, encode = _CODECS[kind]
    try:
        body = msgspec.msgpack.decode(raw)
        args, kwargs, callbacks = decode(body)
        new: bytes = encode((args, {**kwargs, JOB_ARGUMENT: msgspec.Raw(encode(job))}, callbacks))
        priority, ttl_ms = priority_of(properties.get("priority")), ttl_ms_of(properties.get("expiration"))
    except (ValueError, TypeError, RecursionError) as exc:
        text = f"the body of the task on completion is not that of a task: {exc}"
        raise InvalidMessage(text, name="on_complete") from exc
    headers = {name: value for name, value in headers.items() if name not in (SPARK_JOB, SPARK_MESSAGE)}
    made = new.decode() if isinstance(body, str) else new
    texts = metadata_headers(headers, exchange, key, priority, kind)
    final = encode_envelope(made, kind, encoding, headers, properties, exchange, key)
    visible_at_ms, is_revocable = visible_at_ms_of(headers), PROPERTY in properties
    return m.Publish(0, 0, exchange, key, final, texts, priority, now_ms, visible_at_ms, ttl_ms, False, is_revocable)
