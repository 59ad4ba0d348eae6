"""The envelope: all that a consumer gets back of a message; and the metadata headers: what is stored beside it.

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

Clients make envelopes. The broker opens one only to route it by its headers or to send it through a dead-letter
exchange, and then leaves the body as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import InvalidMessage

#: what an envelope decodes to; the body is bytes or text
Envelope = tuple[Any, str | None, str | None, dict[Any, Any], dict[Any, Any], str, str]
#: an envelope whose body was not decoded
Opened = tuple[msgspec.Raw, str | None, str | None, dict[Any, Any], dict[Any, Any], str, str]
_Closed = tuple[msgspec.Raw, str | None, str | None, msgspec.Raw, msgspec.Raw, str, str]

#: of an envelope, and of the result of a task
DEFAULT_MAX_MESSAGE_BYTES = 128 << 20
MAX_HEADERS = 255
MAX_HEADER_BYTES = 65_535

#: of headers and properties that a broker decodes: a million small values would take a second in which it serves nobody
MAX_OPENED_BYTES = 1 << 20

#: long texts that no filter is written for
_UNSEEN = ("argsrepr", "kwargsrepr")
#: as many characters can't be more bytes than a header may have
_SURELY_FITS = MAX_HEADER_BYTES // 4

#: raises what msgspec raises for values that it does not know
encode_fields = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Envelope).decode
_open = msgspec.msgpack.Decoder(_Closed).decode
_open_fields = msgspec.msgpack.Decoder(dict[Any, Any]).decode

#: what damaged or hostile bytes can raise on the way in, or on the way out again
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


def open_envelope(envelope: bytes, max_bytes: int = MAX_OPENED_BYTES) -> Opened | None:
    """The envelope without decoding its body; None when it is no envelope, as nobody checked what a client sent.

    Args:
        max_bytes: of headers and properties; with more it counts as none.
    """
    try:
        body, content_type, encoding, headers, properties, exchange, key = _open(envelope)
        if len(memoryview(headers)) + len(memoryview(properties)) > max_bytes:
            return None
        return body, content_type, encoding, _open_fields(headers), _open_fields(properties), exchange, key
    except UNREADABLE:
        return None


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
