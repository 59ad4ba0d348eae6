"""Messages on their way in and out, as Kombu sees them."""

from __future__ import annotations

from typing import Any

from kombu.message import Message as KombuMessage
from kombu.transport import virtual

from ..errors import InvalidMessage
from ..protocol.messages import Delivery
from .publish_request import decode

DELIVERY_COUNT = "x-delivery-count"


#: what ``prepare_message`` makes and ``basic_publish`` takes, as Kombu's virtual transports have it: ``body``,
#: ``content-type``, ``content-encoding``, ``headers``, ``properties``
OutgoingMessage = dict[str, Any]


def outgoing(message: Any) -> OutgoingMessage:
    """What a caller of ``basic_publish`` gave instead of a prepared message: a bare body.

    Raises:
        InvalidMessage: it is neither.
    """
    if isinstance(message, (str, bytes, bytearray, memoryview)):
        return {"body": message, "headers": {}, "properties": {}}
    raise InvalidMessage(
        f"basic_publish takes what prepare_message makes, or a body as text or bytes, not {type(message).__name__}"
    )


def returned(message: OutgoingMessage) -> KombuMessage:
    """A message that no queue takes, as callbacks for ``basic_return`` get it."""
    return KombuMessage(  # type: ignore[no-untyped-call]
        message["body"],
        content_type=message.get("content-type"),
        content_encoding=message.get("content-encoding"),
        properties=message["properties"],
        headers=message["headers"],
    )


def unpacked(channel: Any, message: OutgoingMessage) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The decoded body, the properties and the ``delivery_info`` of a message as virtual transports store it."""
    properties = dict(message.get("properties") or {})
    properties.pop("delivery_tag", None)
    info = properties.pop("delivery_info", None) or {}
    return channel.decode_body(message["body"], properties.pop("body_encoding", None)), properties, info


class Message(virtual.Message):
    """A message, made from what virtual transports store: ``Message(payload, channel=channel)``."""


class DeliveredMessage(Message):
    """A message that the broker delivered.

    ``delivery_tag`` counts the channel's deliveries; ``delivery_info`` is AMQP's. The header
    ``x-delivery-count`` says how many deliveries before this one failed; there is none before the first did.

    Attributes:
        lease: queue, message id and token, which settle it.
    """

    __slots__ = ("lease",)

    def __init__(self, channel: Any, delivery_tag: int, delivery: Delivery) -> None:
        self.lease = delivery[2:5]
        body, content_type, content_encoding, headers, properties, exchange, routing_key = decode(delivery[6])
        if delivery[5] > 1:
            headers[DELIVERY_COUNT] = delivery[5] - 1
        else:
            headers.pop(DELIVERY_COUNT, None)  # a publisher's, or that of a copy of an earlier delivery
        KombuMessage.__init__(  # type: ignore[no-untyped-call]
            self,
            body,
            delivery_tag,
            content_type,
            content_encoding,
            {
                "consumer_tag": delivery[1],
                "delivery_tag": delivery_tag,
                "redelivered": delivery[7],
                "exchange": exchange,
                "routing_key": routing_key,
            },
            properties,
            headers,
            channel=channel,
        )

    def serializable(self) -> OutgoingMessage:
        """The message as virtual transports store it, its body encoded as ``body_encoding`` says."""
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
