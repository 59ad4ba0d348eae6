"""The envelope: all that a consumer gets back of a message; and the metadata headers: what the broker sees of it.

========================  ===========================================================
envelope (msgpack array)  type
========================  ===========================================================
body                      bytes, or text as the serializer made it
content_type              text or nil
content_encoding          text or nil
headers                   map, any values msgpack knows
properties                map, AMQP's: priority, correlation_id, reply_to, …
exchange                  text
routing_key               text
========================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import ceil
from typing import Any

import msgspec

from ..errors import InvalidMessage

#: what an envelope decodes to; the body is bytes or text
Envelope = tuple[Any, str | None, str | None, dict[Any, Any], dict[Any, Any], str, str]

MAX_HEADERS = 255
MAX_HEADER_BYTES = 65_535
MAX_PRIORITY = 255

#: long texts that no filter is written for
_UNSEEN = ("argsrepr", "kwargsrepr")
#: as many characters can't be more bytes than a header may have
_SURELY_FITS = MAX_HEADER_BYTES // 4
_BODY_TYPES = (bytes, str, bytearray, memoryview)

_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Envelope).decode


def encode(
    body: Any,
    content_type: str | None,
    content_encoding: str | None,
    headers: Mapping[Any, Any],
    properties: Mapping[Any, Any],
    exchange: str,
    routing_key: str,
) -> bytes:
    """The envelope of a message.

    Raises:
        InvalidMessage: a value that msgpack does not know; the text names the header or property.
    """
    if not isinstance(body, _BODY_TYPES):
        raise InvalidMessage(f"the body must be bytes or text, not {type(body).__name__}", name="body")
    try:
        return _encode((body, content_type, content_encoding, headers, properties, exchange, routing_key))
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise _culprit(body, headers, properties, exc) from exc


def _culprit(body: Any, headers: Mapping[Any, Any], properties: Mapping[Any, Any], exc: Exception) -> InvalidMessage:
    for kind, values in (("header", headers), ("property", properties)):
        for name, value in values.items():
            try:
                _encode({name: value})
            except (TypeError, ValueError, OverflowError, RecursionError) as reason:
                return InvalidMessage(f"{kind} {name!r} can't be encoded: {reason}", kind=kind, name=str(name))
    try:
        _encode(body)
    except (TypeError, ValueError, OverflowError) as reason:
        return InvalidMessage(f"the body can't be encoded: {reason}", name="body")
    return InvalidMessage(f"the message can't be encoded: {exc}")


def metadata_headers(
    headers: Mapping[Any, Any], exchange: str, routing_key: str, priority: int, content_type: str | None
) -> dict[str, str]:
    """The headers that the broker stores beside the message and that queue filters see: scalars, as text.

    Booleans are ``true`` and ``false``; nested values, None, argsrepr and kwargsrepr are left out.

    Raises:
        InvalidMessage: too many, or one is too long.
    """
    seen: dict[str, str] = {}
    for name, value in headers.items():
        if value is None:
            continue
        kind = type(value)
        if kind is str:
            text = value
            if len(text) > _SURELY_FITS:
                _check_length(name, text)
        elif kind is bool:
            text = "true" if value else "false"
        elif kind is int or kind is float:
            text = repr(value)
        elif kind is list or kind is dict or not isinstance(value, (str, int, float)):
            continue
        else:
            text = str(value)  # a subclass, e.g. an Enum or a lazy string
        if type(name) is not str:
            name = str(name)
        if len(name) > _SURELY_FITS:
            _check_length(name, "")
        seen[name] = text
    for name in _UNSEEN:
        seen.pop(name, None)
    seen["exchange"] = exchange
    seen["routing_key"] = routing_key
    seen["priority"] = str(priority)
    if content_type:
        seen["content_type"] = content_type
    if len(seen) > MAX_HEADERS:
        raise InvalidMessage(
            f"the message has {len(seen)} headers and the limit is {MAX_HEADERS} (four of them are the broker's own)",
            count=len(seen),
            limit=MAX_HEADERS,
        )
    return seen


def _check_length(name: str, text: str) -> None:
    if name in _UNSEEN:
        return
    for what, value in (("name", name), ("value", text)):
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > MAX_HEADER_BYTES:
            raise InvalidMessage(
                f"the {what} of header {name[:80]!r} has {size} bytes and the limit is {MAX_HEADER_BYTES}",
                name=name[:80],
                size=size,
                limit=MAX_HEADER_BYTES,
            )


def priority_of(value: Any) -> int:
    """A message's priority, 0 (lowest) to 255; raises InvalidMessage."""
    if value is None:
        return 0
    if type(value) is int and 0 <= value <= MAX_PRIORITY:
        return value
    try:
        number = int(value)
        if 0 <= number <= MAX_PRIORITY:
            return number
    except (TypeError, ValueError):
        pass
    raise InvalidMessage(f"priority {value!r} is no number from 0 to {MAX_PRIORITY}", name="priority")


def visible_at_ms_of(headers: Mapping[Any, Any]) -> int:
    """When a Celery task with an ``eta`` header (ISO 8601; UTC where it names no zone) is due, ms since the epoch.

    0 when there is none: at once. Such a message waits in the store, not in a worker's memory.

    Raises:
        InvalidMessage: the header is no time.
    """
    eta = headers.get("eta")
    if eta is None or "task" not in headers:
        return 0
    try:
        due = datetime.fromisoformat(eta)
        if due.tzinfo is None:
            due = due.replace(tzinfo=UTC)
        return max(0, ceil(due.timestamp() * 1000))  # never early: a worker would hold it for the rest
    except (TypeError, ValueError, OverflowError) as exc:
        raise InvalidMessage(f"the eta header {eta!r} is no ISO 8601 time", name="eta") from exc


def ttl_ms_of(expiration: Any) -> int:
    """AMQP's ``expiration`` property, milliseconds as text; -1 when there is none; raises InvalidMessage."""
    if expiration is None or expiration == "":
        return -1
    try:
        ttl_ms = int(expiration)
    except (TypeError, ValueError):
        ttl_ms = -1
    if ttl_ms < 0:
        raise InvalidMessage(f"expiration {expiration!r} is no number of milliseconds from 0 up", name="expiration")
    return ttl_ms
