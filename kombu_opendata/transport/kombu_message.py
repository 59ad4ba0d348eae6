"""Messages of Kombu: published by a caller, or delivered by the broker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kombu.message import Message as KombuMessage
from kombu.transport import virtual

from ..client.session.unconfirmed import TaskRun, content_of
from ..errors import InvalidMessage
from ..protocol import revocation
from ..protocol.envelope import SPARK_JOB, SPARK_MESSAGE, check_headers, decode, encode_envelope, encode_fields
from ..protocol.message_properties import priority_of, ttl_ms_of, visible_at_ms_of
from ..protocol.messages import Delivery, Publish
from ..protocol.task_reports import TaskReport
from ..protocol.unique_key import HEADER as UNIQUE
from ..protocol.unique_key import unique_key_of

DELIVERY_COUNT = "x-delivery-count"

#: return value of ``prepare_message`` and argument of ``basic_publish`` in Kombu's virtual transports: ``body``,
#: ``content-type``, ``content-encoding``, ``headers``, ``properties``
OutgoingMessage = dict[str, Any]


def outgoing(message: Any) -> OutgoingMessage:
    """Return the message for a bare body, which ``basic_publish`` accepts in place of a prepared message.

    Raises:
        InvalidMessage: the argument is not a body.
    """
    if isinstance(message, (str, bytes, bytearray, memoryview)):
        return {"body": message, "headers": {}, "properties": {}}
    raise InvalidMessage(
        f"basic_publish takes what prepare_message returns, or a body as text or bytes, not {type(message).__name__}"
    )


def returned(message: OutgoingMessage) -> KombuMessage:
    """Return an unroutable message in the form for ``basic_return`` callbacks."""
    return KombuMessage(  # type: ignore[no-untyped-call]
        message["body"],
        content_type=message.get("content-type"),
        content_encoding=message.get("content-encoding"),
        properties=message["properties"],
        headers=message["headers"],
    )


def unpacked(channel: Any, message: OutgoingMessage) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the decoded body, properties and ``delivery_info`` of a message in the form of virtual transports."""
    properties = dict(message.get("properties") or {})
    properties.pop("delivery_tag", None)
    info = properties.pop("delivery_info", None) or {}
    return channel.decode_body(message["body"], properties.pop("body_encoding", None)), properties, info


class Message(virtual.Message):
    """Message in the form of virtual transports: ``Message(payload, channel=channel)``."""


class DeliveredMessage(Message):
    """Message that the broker delivered.

    ``delivery_tag`` counts the channel's deliveries; ``delivery_info`` is AMQP's. The header ``x-delivery-count``
    counts the earlier deliveries that failed; without such deliveries it is absent.

    Attributes:
        lease: queue, message id and token, by which the message is settled.
        run: see :class:`.TaskMessage`.
    """

    __slots__ = ("lease", "run")

    def __init__(self, channel: Any, delivery_tag: int, delivery: Delivery) -> None:
        self.lease = delivery.queue, delivery.id, delivery.token
        self.run: TaskReport | TaskRun | None = None
        body, content_type, content_encoding, headers, properties, exchange, routing_key = decode(delivery.envelope)
        if delivery.attempts > 1:
            headers[DELIVERY_COUNT] = delivery.attempts - 1
        else:
            headers.pop(DELIVERY_COUNT, None)  # set by the publisher, or copied from an earlier delivery
        if SPARK_JOB in headers:
            headers[SPARK_MESSAGE] = f"{delivery.id}/{headers.get('id') or ''}"
        KombuMessage.__init__(  # type: ignore[no-untyped-call]
            self,
            body,
            delivery_tag,
            content_type,
            content_encoding,
            {
                "consumer_tag": delivery.tag,
                "delivery_tag": delivery_tag,
                "redelivered": delivery.redelivered,
                "exchange": exchange,
                "routing_key": routing_key,
            },
            properties,
            headers,
            channel=channel,
        )

    def serializable(self) -> OutgoingMessage:
        """Return the message in the form of virtual transports, its body encoded by ``body_encoding``."""
        body, encoding = self.channel.encode_body(self.body, self.channel.body_encoding)
        info = {name: self.delivery_info.get(name) for name in ("exchange", "routing_key")}
        properties = {
            **self.properties, "body_encoding": encoding, "delivery_info": info, "delivery_tag": self.delivery_tag,
        }  # fmt: skip
        return {
            "body": body,
            "content-encoding": self.content_encoding,
            "content-type": self.content_type,
            "headers": {name: value for name, value in self.headers.items() if name != "compression"},
            "properties": properties,
        }


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
    check_headers(envelope, headers, exchange, routing_key, priority, content_type)
    return Publish(
        0,
        0,
        exchange,
        routing_key,
        envelope,
        {},
        priority,
        now_ms,
        visible_at_ms,
        ttl_ms,
        mandatory,
        revocation.PROPERTY in properties,
        unique_key_of(headers) if UNIQUE in headers else None,
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
        rest = {name: value for name, value in properties.items() if name in AMQP_PROPERTIES or _is_encodable(value)}
        if len(rest) < len(properties):
            return encode(body, content_type, content_encoding, headers, rest, exchange, routing_key)
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


#: the default of Celery's ``task_publish_retry_policy``
WAIT_SECONDS = 0.2


class RetryPace:
    """Pace of publishes that are repeated after a refusal; it keeps the last refused message of a channel."""

    __slots__ = ("_content",)

    def __init__(self) -> None:
        self._content = b""

    def refused(self, message: Publish) -> None:
        """Record a refused message; wait if it has the same content as the last refused message."""
        content = content_of(message)
        if content == self._content:
            time.sleep(WAIT_SECONDS)
        self._content = content
