"""Envelope (the message that a consumer receives) and metadata headers, which the broker stores next to it.

========================  ===========================================================
envelope (msgpack array)  type
========================  ===========================================================
body                      bytes, or text as the serializer made it
content_type              text or nil
content_encoding          text or nil
headers                   map with any values that msgpack supports, or extensions (header_types.py)
properties                map of AMQP's properties: priority, correlation_id, reply_to, …
exchange                  text
routing_key               text
========================  ===========================================================

Clients make envelopes. The broker derives the metadata headers from the envelope of each publish
(:func:`broker_headers`), and it never decodes the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

import msgspec

from ..errors import InvalidMessage
from .header_types import PLAIN, base_value, restore, with_extensions

#: decoded envelope; the body is bytes or text
Envelope = tuple[Any, str | None, str | None, dict[Any, Any], dict[Any, Any], str, str]
#: envelope with an undecoded body
Opened = tuple[msgspec.Raw, str | None, str | None, dict[Any, Any], dict[Any, Any], str, str]
_Closed = tuple[msgspec.Raw, str | None, str | None, msgspec.Raw, msgspec.Raw, str, str]

#: limit for an envelope, and for the result of a task
DEFAULT_MAX_MESSAGE_BYTES = 128 << 20
MAX_HEADERS = 255
MAX_HEADER_BYTES = 65_535

#: limit for headers and properties that a broker decodes: a million small values would block the broker for a second
MAX_OPENED_BYTES = 1 << 20
#: limit for the headers of any type in a published envelope, including those that the metadata omits
MAX_ENVELOPE_HEADERS = 1000
#: limit for the properties of a published envelope
MAX_PROPERTIES_BYTES = 64 << 10
#: numbers of headers and bytes by which a stored envelope may exceed these limits, as dead letters have more headers
_MORE_HEADERS, _MORE_BYTES = 16, 64 << 10
#: limit for an envelope that is decoded in one pass, and for headers whose arrays and maps are decoded
SMALL_BYTES = 2048
#: with up to this number of headers, a small envelope is within all limits for headers
_FEW_HEADERS = 100
#: offset of the items of a msgpack array of seven, by its first byte
_ARRAYS = {0x97: 1, 0xDC: 3, 0xDD: 5}
#: bytes of the length of msgpack bytes or text, by its first byte
_TEXT_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
#: possible first bytes of a msgpack array or map
_NESTED = frozenset((*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF))

#: header of the messages of a staged job, and of later messages of its tasks: the job's id
SPARK_JOB = "spark_job"
#: header of a delivered message of a staged job, which a retry repeats: the ids of the message and of its task, as in
#: ``17/5ad8…``
SPARK_MESSAGE = "spark_message"

#: headers with long texts that no filter reads; the metadata omits them
_LONG_HEADERS = ("argsrepr", "kwargsrepr")
#: header ``traceparent`` of W3C Trace Context: version and trace id
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})(?![^-])")
#: a text of at most this number of characters can't exceed the limit of bytes for a header
_SURELY_FITS = MAX_HEADER_BYTES // 4

#: raises msgspec's errors for values without an encoding
encode_fields = msgspec.msgpack.Encoder(enc_hook=base_value).encode
decode = msgspec.msgpack.Decoder(Envelope, ext_hook=restore).decode
_open_all = msgspec.msgpack.Decoder(_Closed).decode
_open_small = msgspec.msgpack.Decoder(
    tuple[msgspec.Raw, str | None, str | None, dict[str, Any], msgspec.Raw, str, str]
).decode
_open_fields = msgspec.msgpack.Decoder(dict[Any, Any]).decode
_open_values = msgspec.msgpack.Decoder(
    Annotated[dict[Any, msgspec.Raw], msgspec.Meta(max_length=MAX_ENVELOPE_HEADERS + _MORE_HEADERS)]
).decode
_open_value = msgspec.msgpack.Decoder().decode

#: exceptions for damaged or hostile bytes when they are decoded or encoded again
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


def encode_envelope(
    body: Any,
    content_type: str | None,
    content_encoding: str | None,
    headers: Mapping[Any, Any],
    properties: Mapping[Any, Any],
    exchange: str,
    routing_key: str,
) -> bytes:
    """Return an envelope; raise msgspec's errors for values without an encoding."""
    if not PLAIN.issuperset(map(type, headers.values())):
        headers = with_extensions(headers)
    if not PLAIN.issuperset(map(type, properties.values())):
        properties = with_extensions(properties)
    return encode_fields((body, content_type, content_encoding, headers, properties, exchange, routing_key))


def open_envelope(envelope: bytes, max_bytes: int = 0) -> Opened | None:
    """Return the envelope with an undecoded body; None for invalid bytes, or if headers or properties are too large.

    Extensions in headers and properties stay :class:`msgspec.msgpack.Ext`.

    Args:
        max_bytes: limit for headers and properties, which are decoded completely. With 0, the limits of a stored
            envelope apply, and large headers are decoded as by :func:`open_headers`.
    """
    try:
        if not max_bytes:
            body, content_type, encoding, headers, properties, exchange, key = _open(envelope)
            if len(memoryview(properties)) > MAX_PROPERTIES_BYTES:
                return None
            fields = open_headers(headers, MAX_OPENED_BYTES + _MORE_BYTES)
            return body, content_type, encoding, fields, _open_fields(properties), exchange, key
        body, content_type, encoding, headers, properties, exchange, key = _open_all(envelope)
        if len(memoryview(headers)) + len(memoryview(properties)) > max_bytes:
            return None
        return body, content_type, encoding, _open_fields(headers), _open_fields(properties), exchange, key
    except (InvalidMessage, *UNREADABLE):
        return None


def _open(envelope: bytes) -> _Closed:
    """Decode an envelope except for its body, headers and properties. The time does not depend on the body's size.

    Raises:
        InvalidMessage: the body is neither bytes nor text, or the rest is too large.
        MsgspecError, ValueError, TypeError, OverflowError, RecursionError: the bytes are not an envelope.
    """
    if len(envelope) > SMALL_BYTES:
        offset = _ARRAYS.get(envelope[0])
        if offset is None:
            raise ValueError("not an array")
        kind = envelope[offset]
        if kind in _TEXT_LENGTHS:
            size = _TEXT_LENGTHS[kind]
            end = offset + 1 + size + int.from_bytes(envelope[offset + 1 : offset + 1 + size], "big")
        elif 0xA0 <= kind <= 0xBF:
            end = offset + 1 + (kind & 0x1F)
        else:
            raise InvalidMessage("the body of the message must be bytes or text", name="body")
        rest = len(envelope) - end
        if rest > 2 * MAX_OPENED_BYTES:
            raise _too_large(rest)
    opened: _Closed = _open_all(envelope)
    return opened


def broker_headers(
    envelope: bytes, exchange: str, routing_key: str, priority: int, may_publish: Callable[[str, str], bool]
) -> tuple[dict[str, str], bytes]:
    """Return the metadata headers that the broker stores for a publish, and the envelope that it stores.

    The exchange and routing key in the stored envelope are those of the publish. The envelope may keep another address
    if the publisher may publish there too: Kombu's ``_put`` returns a message to a queue with its original address.

    A client can't choose the metadata, because permissions and filters depend on it. Bytes that are not an envelope get
    only the broker's own headers; no consumer can decode them.

    Args:
        may_publish: returns True if the publisher may publish to an exchange with a routing key.

    Raises:
        InvalidMessage: the headers can't be stored, or have too many bytes or items to be decoded.
    """
    if len(envelope) <= SMALL_BYTES:
        try:
            _body, content_type, _encoding, decoded, _properties, own_exchange, own_key = _open_small(envelope)
        except UNREADABLE:
            pass  # the code below raises the error, if there is one
        else:
            if (own_exchange == exchange and own_key == routing_key) or may_publish(own_exchange, own_key):
                return _texts_of(decoded, exchange, routing_key, priority, content_type), envelope
    try:
        body, content_type, encoding, raw, properties, own_exchange, own_key = _open(envelope)
    except RecursionError as exc:
        raise _too_deep() from exc
    except UNREADABLE:
        return metadata_headers({}, exchange, routing_key, priority, None), envelope
    headers = _published_headers(raw)
    if len(headers) > MAX_ENVELOPE_HEADERS:
        raise _too_many_of_any_type()
    _check_size(properties)
    texts = metadata_headers(headers, exchange, routing_key, priority, content_type)
    if (own_exchange != exchange or own_key != routing_key) and not may_publish(own_exchange, own_key):
        envelope = encode_fields((body, content_type, encoding, raw, properties, exchange, routing_key))
    return texts, envelope


def _published_headers(raw: msgspec.Raw) -> dict[Any, Any]:
    """Return the headers of a published message as :func:`open_headers`.

    Raises:
        InvalidMessage: the broker can't decode the headers, although a consumer might.
    """
    try:
        return open_headers(raw)
    except RecursionError as exc:
        raise _too_deep() from exc
    except UNREADABLE as exc:
        text = "the message's headers can't be decoded: use texts as their names"
        raise InvalidMessage(text, name="headers") from exc


def open_properties(envelope: bytes, names: Collection[bytes]) -> dict[Any, Any]:
    """Return the properties of a published message; empty if they contain none of these names.

    Raises:
        InvalidMessage: the properties are too large, or the broker can't decode them.
    """
    if len(envelope) <= SMALL_BYTES and not _has_some(envelope, names):
        return {}
    try:
        properties = _open(envelope)[4]
    except RecursionError as exc:
        raise _too_deep() from exc
    except UNREADABLE:
        return {}  # not an envelope: no consumer can decode it
    encoded = bytes(properties)
    if not _has_some(encoded, names):
        return {}
    _check_size(properties)
    try:
        fields: dict[Any, Any] = _open_fields(encoded)
    except UNREADABLE as exc:
        text = "the message's properties can't be decoded: use texts as their names"
        raise InvalidMessage(text, name="properties") from exc
    return fields


def _has_some(data: bytes, names: Collection[bytes]) -> bool:
    return any(map(data.__contains__, names))


def _check_size(properties: msgspec.Raw) -> None:
    size = len(memoryview(properties))
    if size > MAX_PROPERTIES_BYTES:
        text = f"the message's properties have {size} bytes; the limit is {MAX_PROPERTIES_BYTES}"
        raise InvalidMessage(text, size=size, limit=MAX_PROPERTIES_BYTES)


def headers_of(envelope: bytes) -> Mapping[Any, Any] | None:
    """Return the headers that a headers exchange compares; None if the broker can't decode them."""
    try:
        return open_headers(_open(envelope)[3])
    except (InvalidMessage, *UNREADABLE):
        return None


def _texts_of(
    decoded: dict[str, Any], exchange: str, routing_key: str, priority: int, content_type: str | None
) -> dict[str, str]:
    """Return the same as :func:`metadata_headers` in half the time, for short headers that msgpack decoded.

    The result is the argument, in which the other values become texts.
    """
    for name in [name for name, value in decoded.items() if type(value) is not str]:
        value = decoded[name]
        kind = type(value)
        if kind is bool:
            decoded[name] = "true" if value else "false"
        elif kind is int or kind is float:
            decoded[name] = repr(value)
        else:
            del decoded[name]
    return _with_own_headers(decoded, exchange, routing_key, priority, content_type)


def _with_own_headers(
    texts: dict[str, str], exchange: str, routing_key: str, priority: int, content_type: str | None
) -> dict[str, str]:
    """Add the broker's own headers and remove those that no filter reads.

    Raises:
        InvalidMessage: there are too many headers.
    """
    texts.pop("argsrepr", None)
    texts.pop("kwargsrepr", None)
    texts["exchange"] = exchange
    texts["routing_key"] = routing_key
    texts["priority"] = str(priority)
    if content_type:
        texts["content_type"] = content_type
    if "traceparent" in texts:
        match = _TRACEPARENT.match(texts["traceparent"])
        if match is not None:
            texts.setdefault("trace_id", match[1])
    if len(texts) > MAX_HEADERS:
        raise _too_many(len(texts))
    return texts


def _too_large(size: int) -> InvalidMessage:
    text = f"the message's headers have {size} bytes; the limit is {MAX_OPENED_BYTES}: put large values in the body"
    return InvalidMessage(text, size=size, limit=MAX_OPENED_BYTES)


def _too_deep() -> InvalidMessage:
    return InvalidMessage("the message's headers are nested too deeply: send flat headers")


def _too_many(count: int) -> InvalidMessage:
    text = f"the message has {count} headers; the limit is {MAX_HEADERS} (up to five of them are the broker's own)"
    return InvalidMessage(text, count=count, limit=MAX_HEADERS)


def _too_many_of_any_type() -> InvalidMessage:
    text = f"the message has more than {MAX_ENVELOPE_HEADERS} headers: put large values in the body"
    return InvalidMessage(text, limit=MAX_ENVELOPE_HEADERS)


def open_headers(raw: msgspec.Raw, max_bytes: int = MAX_OPENED_BYTES) -> dict[Any, Any]:
    """Return the headers of an envelope; in large headers, arrays and maps stay undecoded.

    Raises:
        InvalidMessage: the headers have too many bytes or items.
        MsgspecError, ValueError, TypeError, OverflowError, RecursionError: the headers are not valid.
    """
    size = len(memoryview(raw))
    if size <= SMALL_BYTES:
        fields: dict[Any, Any] = _open_fields(raw)
        return fields
    if size > max_bytes:
        raise _too_large(size)
    try:
        values = _open_values(raw)
    except msgspec.ValidationError as exc:
        if "length" not in str(exc):
            raise
        raise _too_many_of_any_type() from exc
    return {name: value if memoryview(value)[0] in _NESTED else _open_value(value) for name, value in values.items()}


def metadata_headers(
    headers: Mapping[Any, Any], exchange: str, routing_key: str, priority: int, content_type: str | None
) -> dict[str, str]:
    """Return the headers that the broker stores next to the message and that filters read: scalars, as text.

    Booleans are ``true`` and ``false``; nested values, None, argsrepr and kwargsrepr are omitted.

    Raises:
        InvalidMessage: there are too many headers, or a header is too long.
    """
    texts: dict[str, str] = {}
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
        texts[name] = text
    return _with_own_headers(texts, exchange, routing_key, priority, content_type)


def check_headers(
    envelope: bytes,
    headers: Mapping[Any, Any],
    exchange: str,
    routing_key: str,
    priority: int,
    content_type: str | None,
) -> None:
    """Raise what the broker would raise for the headers of an envelope; it derives the metadata itself."""
    if len(envelope) > SMALL_BYTES or len(headers) > _FEW_HEADERS:
        metadata_headers(headers, exchange, routing_key, priority, content_type)


def header_text(value: Any) -> str | None:
    """Return a header's value as text for the metadata; None for a value that the metadata omits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if type(value) in (int, float):
        return repr(value)
    return str(value) if isinstance(value, (str, int, float)) else None


def headers_in(envelope: bytes | None, priority: int) -> dict[str, str] | None:
    """Return the metadata headers that a Kombu producer or a queue client derives from an envelope."""
    if envelope is None:
        return None
    opened = open_envelope(envelope)
    return metadata_headers(opened[3], opened[5], opened[6], priority, opened[1]) if opened is not None else {}


def _check_length(name: str, text: str) -> None:
    if name in _LONG_HEADERS:
        return
    for part, value in (("name", name), ("value", text)):
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > MAX_HEADER_BYTES:
            raise InvalidMessage(
                f"the {part} of header {name[:80]!r} has {size} bytes; the limit is {MAX_HEADER_BYTES}",
                name=name[:80],
                size=size,
                limit=MAX_HEADER_BYTES,
            )
