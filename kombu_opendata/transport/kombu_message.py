"""Messages of Kombu: published by a caller, or delivered by the broker."""

from __future__ import annotations

from typing import Any

from kombu.message import Message as KombuMessage
from kombu.transport import virtual

from ..client.session.task_messages import TaskRun
from ..errors import InvalidMessage
from ..protocol.envelope import decode
from ..protocol.messages import Delivery
from ..protocol.task_reports import TaskReport

DELIVERY_COUNT = "x-delivery-count"

#: return value of ``prepare_message`` and argument of ``basic_publish`` in Kombu's virtual transports: ``body``,
#: ``content-type``, ``content-encoding``, ``headers``, ``properties``
OutgoingMessage = dict[str, Any]


def outgoing(message: Any) -> OutgoingMessage:
    """Return a message for a bare body, which ``basic_publish`` accepts in place of a prepared message.

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
    counts the earlier deliveries that failed; the header is absent if none did.

    Attributes:
        lease: queue, message id and token, by which the message is settled.
        run: the state of its task, if a worker reports it: the report for its settlement, or a :class:`.TaskRun`.
    """

    __slots__ = ("lease", "run")

    def __init__(self, channel: Any, delivery_tag: int, delivery: Delivery) -> None:
        self.lease = delivery[2:5]
        self.run: TaskReport | TaskRun | None = None
        body, content_type, content_encoding, headers, properties, exchange, routing_key = decode(delivery[6])
        if delivery[5] > 1:
            headers[DELIVERY_COUNT] = delivery[5] - 1
        else:
            headers.pop(DELIVERY_COUNT, None)  # set by the publisher, or copied from an earlier delivery
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
