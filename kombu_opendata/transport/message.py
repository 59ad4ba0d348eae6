"""Messages on their way in and out, as Kombu sees them."""

from __future__ import annotations

from typing import Any

from kombu.message import Message as KombuMessage

from ..errors import InvalidMessage
from ..protocol.messages import Delivery
from .envelope import decode

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


class Message(KombuMessage):
    """A delivered message. ``delivery_tag`` counts the channel's deliveries; ``delivery_info`` is AMQP's.

    The header ``x-delivery-count`` says how many deliveries before this one failed; there is none before the first did.
    """

    def __init__(self, channel: Any, delivery_tag: int, delivery: Delivery) -> None:
        body, content_type, content_encoding, headers, properties, exchange, routing_key = decode(delivery[6])
        if delivery[5] > 1:
            headers[DELIVERY_COUNT] = delivery[5] - 1
        else:
            headers.pop(DELIVERY_COUNT, None)  # a publisher's, or that of a copy of an earlier delivery
        super().__init__(  # type: ignore[no-untyped-call]
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
