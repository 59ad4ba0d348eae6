"""Request that publishes a message of Kombu: its envelope, metadata headers, priority and times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidMessage
from ..protocol import revocation
from ..protocol.envelope import encode_envelope, encode_fields, metadata_headers
from ..protocol.message_properties import priority_of, ttl_ms_of, visible_at_ms_of
from ..protocol.messages import Publish
from .kombu_message import OutgoingMessage

#: the properties of AMQP 0-9-1; all others are private to clients
AMQP_PROPERTIES = frozenset((
    "content_type", "content_encoding", "application_headers", "delivery_mode", "priority", "correlation_id",
    "reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
))  # fmt: skip

_BODY_TYPES = (bytes, str, bytearray, memoryview)
#: exceptions that msgspec raises for values that it can't encode
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)


def publish_request(
    message: OutgoingMessage, exchange: str, routing_key: str, *, mandatory: bool, now_ms: int
) -> Publish:
    """Return the request for a message; the session numbers it.

    Raises:
        InvalidMessage: a value can't be encoded, or is invalid for its property.
    """
    content_type, headers, properties = message.get("content-type"), message["headers"], message["properties"]
    priority, expiration = properties.get("priority", 0), properties.get("expiration")
    priority = priority_of(priority) if priority != 0 else 0
    visible_at_ms = visible_at_ms_of(headers) if headers.get("eta") is not None else 0
    ttl_ms = ttl_ms_of(expiration) if expiration is not None else -1
    encoding = message.get("content-encoding")
    envelope = encode(message["body"], content_type, encoding, headers, properties, exchange, routing_key)
    return Publish(
        0,
        0,
        exchange,
        routing_key,
        envelope,
        metadata_headers(headers, exchange, routing_key, priority, content_type),
        priority,
        now_ms,
        visible_at_ms,
        ttl_ms,
        mandatory,
        revocation.PROPERTY in properties,
    )


def encode(
    body: Any,
    content_type: str | None,
    content_encoding: str | None,
    headers: Mapping[Any, Any],
    properties: Mapping[Any, Any],
    exchange: str,
    routing_key: str,
) -> bytes:
    """Return the envelope of a message.

    A property that AMQP does not define and msgpack can't encode is omitted, as in clients of RabbitMQ.

    Raises:
        InvalidMessage: msgpack can't encode another value; the text names the header or property.
    """
    if not isinstance(body, _BODY_TYPES):
        raise InvalidMessage(f"the body must be bytes or text, not {type(body).__name__}", name="body")
    try:
        return encode_envelope(body, content_type, content_encoding, headers, properties, exchange, routing_key)
    except _UNENCODABLE as exc:
        sent = {name: value for name, value in properties.items() if name in AMQP_PROPERTIES or _is_encodable(value)}
        if len(sent) < len(properties):
            return encode(body, content_type, content_encoding, headers, sent, exchange, routing_key)
        raise _culprit(body, headers, properties, exc) from exc


def _is_encodable(value: Any) -> bool:
    try:
        encode_fields(value)
    except _UNENCODABLE:
        return False
    return True


def _culprit(body: Any, headers: Mapping[Any, Any], properties: Mapping[Any, Any], exc: Exception) -> InvalidMessage:
    for kind, values in (("header", headers), ("property", properties)):
        for name, value in values.items():
            try:
                encode_fields({name: value})
            except _UNENCODABLE as reason:
                return InvalidMessage(f"{kind} {name!r} can't be encoded: {reason}", kind=kind, name=str(name))
    try:
        encode_fields(body)
    except (TypeError, ValueError, OverflowError) as reason:
        return InvalidMessage(f"the body can't be encoded: {reason}", name="body")
    return InvalidMessage(f"the message can't be encoded: {exc}")
