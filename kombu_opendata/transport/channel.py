"""The channel: publishing, consuming and settling, as AMQP's, over the client's connection.

Delivery tags count the channel's deliveries. Each stands for a lease (queue, message id, token) that survives a
reconnect, so a tag stays good for as long as its lease does; one that is settled, or not of this channel, is refused.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import msgspec

from ..batching import collector_for
from ..client.connection import BrokerConnection
from ..errors import ConnectionLost, OpenDataError, PreconditionFailed, Unroutable
from ..protocol.messages import Cancelled, Consume, Delivery, Lease, Outcome, Publish, Published
from . import message as messages
from .declare import DeclaringChannel
from .envelope import encode, metadata_headers, priority_of, ttl_ms_of, visible_at_ms_of
from .errors import ConsumerCancelled, translate
from .message import OutgoingMessage

logger = logging.getLogger(__name__)

_consumer_numbers = count(1)


class Gate:
    """What Celery's ``worker_disable_prefetch`` replaces: ``can_consume`` says whether one more message is wanted."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def can_consume(self) -> Callable[[], bool]:
        return self._channel.can_consume or _always

    @can_consume.setter
    def can_consume(self, function: Callable[[], bool]) -> None:
        self._channel.set_gate(function)


def _always() -> bool:
    return True


class Channel(DeclaringChannel):
    """A channel of a connection.

    Attributes:
        connection: the BrokerConnection, None once closed.
        channel_id: its number on the connection.
        no_ack_consumers: tags of consumers whose messages need no ack.
        qos: its ``can_consume`` may be replaced.
        can_consume: asked before each delivery whether it is wanted; None: the prefetch limit alone counts.
        events: callbacks by name; ``basic_return`` gets mandatory messages that no queue takes.
    """

    Message = messages.Message

    def __init__(self, connection: BrokerConnection) -> None:
        self.connection: BrokerConnection | None = connection
        self.channel_id = connection.add_channel(self)
        self.no_ack_consumers: set[str] = set()  # type: ignore[assignment]
        self.events: defaultdict[str, set[Callable[..., Any]]] = defaultdict(set)
        self._callbacks: dict[str, Callable[[messages.Message], Any]] = {}
        self._on_cancel: dict[str, Callable[[str], Any]] = {}
        self._unacked: dict[int, Lease] = {}
        self._last_tag = 0
        self.qos = Gate(self)
        self.can_consume: Callable[[], bool] | None = None
        self._granted = False

    @property
    def is_open(self) -> bool:
        return self.connection is not None

    @property
    def closed(self) -> bool:
        return self.connection is None

    def _connection(self) -> BrokerConnection:
        if self.connection is None:
            raise translate(ConnectionLost("the channel is closed"))
        return self.connection

    # ------------------------------------------------------------ publishing
    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> OutgoingMessage:
        """A message for :meth:`basic_publish`."""
        properties = properties or {}
        if priority is not None:
            properties["priority"] = priority
        return {
            "body": body,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(
        self,
        message: OutgoingMessage | str | bytes,
        exchange: str = "",
        routing_key: str = "",
        mandatory: bool = False,
        immediate: bool = False,
        timeout: float | None = None,
        confirm_timeout: float | None = None,
        **_kwargs: Any,
    ) -> Published | None:
        """Publish; returns when the message is durable in every queue that takes it.

        With ``publish_mode`` "pipeline" and in a batch it returns None once the message is sent. ``message`` is what
        :meth:`prepare_message` made, or just a body.

        Raises:
            PublishFailed: earlier ones, sent without waiting, failed; this one was not sent.
            InvalidMessage, MessageTooLarge: it was not sent.
            Unroutable: mandatory, and no queue takes it (unless ``events["basic_return"]`` has a callback).
            RetryLater: the broker takes nothing now.
            socket.timeout: no answer in time; it may be stored all the same.
        """
        connection = self._connection()
        exchange, routing_key = exchange or "", routing_key or ""
        try:
            sent = message if isinstance(message, dict) else messages.outgoing(message)
            # Celery's retry passes on mandatory=None
            request = _request(sent, exchange, routing_key, bool(mandatory), int(connection.clock.wall() * 1000))
            failures = collector_for(connection)
            if failures is None:
                return connection.publish(request, confirm_timeout if timeout is None else timeout)
            if failures is connection.failures:
                connection.raise_failures("; this message was not sent")
            properties = sent["properties"]
            message_id = properties.get("message_id") or properties.get("correlation_id") or ""
            connection.publish_later(request, failures, str(message_id))
            return None
        except Unroutable as exc:
            error = translate(exc)
            if not self.events["basic_return"]:
                raise error from exc
            returned = messages.returned(sent)
            for callback in self.events["basic_return"]:
                callback(error, exchange, routing_key, returned)
            return None
        except OpenDataError as exc:
            raise translate(exc) from exc

    basic_publish_confirm = basic_publish

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every publish of the connection is durable, those that were not waited for included.

        Raises:
            PublishFailed: some are not.
            socket.timeout: not all of them were answered in time.
        """
        try:
            self._connection().flush(timeout)
        except OpenDataError as exc:
            raise translate(exc) from exc

    # ------------------------------------------------------------ consuming
    def basic_consume(
        self,
        queue: str = "",
        consumer_tag: str = "",
        no_local: bool = False,
        no_ack: bool = False,
        exclusive: bool = False,
        nowait: bool = False,
        callback: Callable[[messages.Message], Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        on_cancel: Callable[[str], Any] | None = None,
        argsig: Any = None,
    ) -> str:
        """Start a consumer; returns its tag. ``callback`` gets each message, ``on_cancel`` the tag if it ends."""
        connection = self._connection()
        tag = consumer_tag or f"ctag{self.channel_id}.{next(_consumer_numbers)}"
        if callback is not None:
            self._callbacks[tag] = callback
        if on_cancel is not None:
            self._on_cancel[tag] = on_cancel
        if no_ack:
            self.no_ack_consumers.add(tag)
        try:
            connection.consume(
                Consume(0, self.channel_id, tag, queue, bool(no_ack), bool(exclusive), dict(arguments or {}))
            )
        except OpenDataError as exc:
            self._forget_consumer(tag)
            raise translate(exc) from exc
        return tag

    def basic_cancel(self, consumer_tag: str, nowait: bool = False) -> None:
        """Stop a consumer. What it delivered stays the caller's; what nobody has read yet goes back."""
        if self.connection is None:
            return
        try:
            self.connection.cancel(self.channel_id, consumer_tag)
        except OpenDataError as exc:
            raise translate(exc) from exc
        finally:
            self._forget_consumer(consumer_tag)
        if self.can_consume is not None:
            self.set_gate(self.can_consume)  # the delivery that was granted may have gone back
            self.grant()

    # ------------------------------------------------------------ one delivery at a time
    def set_gate(self, can_consume: Callable[[], bool]) -> None:
        """From now on, take a message only when this says so."""
        connection = self._connection()
        self.can_consume = can_consume
        self._granted = False
        if self not in connection.gated:
            connection.gated.append(self)
        connection.set_credit(self.channel_id, 0)

    def grant(self) -> None:
        """Let the broker deliver one more message, if it is wanted and none is on its way."""
        if self._granted or self.connection is None or self.can_consume is None or not self._callbacks:
            return
        if self.can_consume():
            self._granted = True
            self.connection.set_credit(self.channel_id, 1)

    def _forget_consumer(self, tag: str) -> Callable[[str], Any] | None:
        self._callbacks.pop(tag, None)
        self.no_ack_consumers.discard(tag)
        return self._on_cancel.pop(tag, None)

    def basic_get(self, queue: str = "", no_ack: bool = False, **_kwargs: Any) -> messages.Message | None:
        """Take one message, or None."""
        connection = self._connection()
        try:
            delivery = connection.get(self.channel_id, queue, no_ack=bool(no_ack))
        except OpenDataError as exc:
            raise translate(exc) from exc
        return None if delivery is None else self._receive(delivery, held=not no_ack)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """How many unacknowledged messages the channel takes, over all its consumers; 0 is no limit."""
        connection = self._connection()
        try:
            connection.set_prefetch(self.channel_id, max(0, int(prefetch_count or 0)))
        except OpenDataError as exc:
            raise translate(exc) from exc

    def deliver(self, event: Any) -> None:
        """Hand one event to the consumer it is for."""
        if type(event) is Cancelled:
            return self._consumer_ended(event)
        self._granted = False
        callback = self._callbacks.get(event[1])
        if callback is None:
            return self._return_unwanted(event)
        message = self._receive(event, held=event[1] not in self.no_ack_consumers)
        if message is not None:
            callback(message)
        if self.can_consume is not None:
            self.grant()

    def _receive(self, delivery: Delivery, *, held: bool) -> messages.Message | None:
        self._last_tag = tag = self._last_tag + 1
        if held:
            self._unacked[tag] = delivery[2:5]
        try:
            return messages.Message(self, tag, delivery)
        except msgspec.MsgspecError as exc:
            logger.error("message %d of queue %s can't be decoded and is rejected: %s", delivery[3], delivery[2], exc)
            if held:
                self.basic_reject(tag, requeue=False)
            return None

    def _return_unwanted(self, delivery: Delivery) -> None:
        if self.connection is not None and delivery[1] not in self.no_ack_consumers:
            self.connection.settle(self.channel_id, Outcome.RELEASE, [delivery[2:5]])

    def _consumer_ended(self, event: Cancelled) -> None:
        known = event.tag in self._callbacks
        on_cancel = self._forget_consumer(event.tag)
        if on_cancel is not None:
            on_cancel(event.tag)
        elif known:
            raise ConsumerCancelled(f"the broker ended consumer {event.tag}: {event.reason}", tag=event.tag)

    def message_to_python(self, raw_message: messages.Message) -> messages.Message:
        return raw_message

    # ------------------------------------------------------------ settling
    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        """The message is done."""
        self._settle(delivery_tag, multiple, Outcome.ACK)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Back to its queue, which costs an attempt; or to the failed ones."""
        self._settle(delivery_tag, False, Outcome.REQUEUE if requeue else Outcome.REJECT)

    def basic_nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> None:
        self._settle(delivery_tag, multiple, Outcome.REQUEUE if requeue else Outcome.REJECT)

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back all that the channel holds; it is delivered again, at no cost of an attempt."""
        if not requeue:
            raise NotImplementedError("basic_recover(requeue=False) is not supported: use requeue=True")
        if self._unacked:
            self._settle(0, True, Outcome.RELEASE)

    basic_recover_async = basic_recover

    def _settle(self, tag: int, multiple: bool, outcome: Outcome) -> None:
        connection = self._connection()
        unacked = self._unacked
        tags = [t for t in unacked if t <= tag or not tag] if multiple else [tag] if tag in unacked else []
        if not tags:
            if multiple and not tag:
                return
            raise translate(
                PreconditionFailed(f"delivery tag {tag} is unknown on channel {self.channel_id}, or settled", tag=tag)
            )
        try:
            connection.settle(self.channel_id, outcome, [unacked.pop(t) for t in tags])
        except OpenDataError as exc:
            raise translate(exc) from exc

    # ------------------------------------------------------------ the end
    def close(self) -> None:
        """Cancel the consumers and give back what is not acknowledged."""
        connection = self.connection
        if connection is None:
            return
        self.detach()
        try:
            connection.close_channel(self.channel_id)
        except OpenDataError as exc:
            raise translate(exc) from exc

    def detach(self) -> None:
        """The connection ended."""
        if self.connection is not None and self.can_consume is not None:
            self.connection.gated.remove(self)
        self.connection = None
        self._callbacks.clear()
        self._on_cancel.clear()
        self.no_ack_consumers.clear()
        self._unacked.clear()

    def after_fork_in_child(self) -> None:
        """What the parent's channel received and consumed stays the parent's."""
        self._callbacks.clear()
        self._on_cancel.clear()
        self.no_ack_consumers.clear()
        self._unacked.clear()
        self.can_consume = None
        self._granted = False


def _request(message: OutgoingMessage, exchange: str, routing_key: str, mandatory: bool, now_ms: int) -> Publish:
    """The request for :meth:`Channel.basic_publish`; the client numbers it."""
    content_type, headers, properties = message.get("content-type"), message["headers"], message["properties"]
    priority = priority_of(properties.get("priority"))
    return Publish(
        0,
        0,
        exchange,
        routing_key,
        encode(
            message["body"],
            content_type,
            message.get("content-encoding"),
            headers,
            properties,
            exchange,
            routing_key,
        ),
        metadata_headers(headers, exchange, routing_key, priority, content_type),
        priority,
        now_ms,
        visible_at_ms_of(headers),
        ttl_ms_of(properties.get("expiration")),
        mandatory,
    )
