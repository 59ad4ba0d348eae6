"""Messages on their way in and out, as Kombu sees them."""

from __future__ import annotations

from typing import Any, NamedTuple

from kombu.message import Message as KombuMessage

from ..protocol.messages import Delivery
from .envelope import decode

DELIVERY_COUNT = "x-delivery-count"


class OutgoingMessage(NamedTuple):
    """What ``prepare_message`` makes and ``basic_publish`` takes."""

    body: Any
    content_type: str | None
    content_encoding: str | None
    headers: dict[str, Any]
    properties: dict[str, Any]


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
