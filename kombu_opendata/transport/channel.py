"""Channel that publishes, consumes and settles as an AMQP channel does, over the client's connection.

Delivery tags count the channel's deliveries. Each tag stands for a lease (queue, message id, token) that survives a
reconnect, so a tag is valid as long as its lease. A tag that is settled, or belongs to another channel, is refused.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import msgspec
from kombu.exceptions import ResourceError
from kombu.transport import virtual

from ..client.publish_batch import Batch, current_batch, publish_owner
from ..client.published_task import PublishedTask, published_task, unique_conflict
from ..client.session.broker_connection import BrokerConnection
from ..client.session.publish_pipeline import PublishPipeline
from ..errors import OpenDataError, PreconditionFailed, RetryLater, Unroutable
from ..protocol import revocation
from ..protocol.messages import Cancelled, Consume, Delivery, Outcome, Publish, PublishConfirm
from ..url import Address
from . import kombu_message as messages
from .amqp_errors import ConsumerCancelled, translate, translated
from .kombu_message import OutgoingMessage, RetryPace, publish_request
from .virtual_channel import Delivered, QoS, VirtualChannel

log = logging.getLogger(__name__)

_consumer_numbers = count(1)


class Channel(VirtualChannel):
    """Channel of a connection.

    Attributes:
        connection: None once the channel is closed.
        no_ack_consumers: tags of consumers whose messages need no ack.
        delivered: unsettled messages, by tag; those that the broker delivered have a lease.
        can_consume: returns True to receive one more delivery; None means that only the prefetch limit applies.
        events: callbacks by name; ``basic_return`` receives mandatory messages that no queue accepts.
    """

    Message = messages.Message
    QoS = QoS

    def __init__(self, connection: BrokerConnection, **_kwargs: Any) -> None:
        # The base's constructor would set up polling.
        self.connection = connection
        self.channel_id = self._get_free_channel_id()
        self.exchange_types = {name: cls(self) for name, cls in self.exchange_types.items()}
        self._qos: QoS | None = None
        self._cycle = None
        self._consumers: set[str] = set()
        self._tag_to_queue: dict[str, str] = {}
        self._active_queues: list[str] = []
        self.no_ack_consumers: set[str] = set()
        self.events: defaultdict[str, set[Callable[..., Any]]] = defaultdict(set)
        self._callbacks: dict[str, Callable[[messages.Message], Any]] = {}
        self._on_cancel: dict[str, Callable[[str], Any]] = {}
        self.delivered = Delivered()
        self._last_tag = 0
        self._retry_pace = RetryPace()
        self.can_consume: Callable[[], bool] | None = None
        self._granted = False
        self._take_options(connection.client)

    def _take_options(self, client: Any) -> None:
        options = {} if client is None else client.transport_options or {}
        for name in self.from_transport_options:
            if name in options:
                setattr(self, name, options[name])

    def _get_free_channel_id(self) -> int:
        """Take the lowest free channel number of the connection.

        Raises:
            ResourceError: the connection has ``Transport.channel_max`` channels.
        """
        connection = self._connection()
        client = connection.client
        limit = virtual.Transport.channel_max if client is None else client.transport.channel_max
        if len(connection.channels) >= limit:
            raise ResourceError(f"the connection is at its limit of {limit} channels: close some of them", (20, 10))
        return connection.add_channel(self)

    @property
    def is_open(self) -> bool:
        return self.connection is not None

    @property
    def closed(self) -> bool:
        return self.connection is None

    def _next_delivery_tag(self) -> int:
        self._last_tag += 1
        return self._last_tag

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
    ) -> PublishConfirm | None:
        """Publish a message; return when it is durable in every queue that it is routed to.

        With ``publish_mode`` "pipeline", and in a batch, the method returns None once the message is sent. ``message``
        is a return value of :meth:`prepare_message`, or only a body. If another message holds its unique key, nothing
        is stored, and ``holder`` of the confirmation is not None.

        Raises:
            PublishFailed: earlier publishes without confirmation failed; this message was not sent.
            InvalidMessage, MessageTooLarge: it was not sent.
            Unroutable: it is mandatory and no queue accepts it (unless ``events["basic_return"]`` has a callback).
            RetryLater: the broker accepts no messages now.
            socket.timeout: no reply in time; the message may be stored nevertheless.
        """
        connection = self.connection or self._connection()
        if connection.link.reentrance.is_entered():
            connection = connection.free()
        exchange, routing_key = exchange or "", routing_key or ""
        try:
            sent = message if isinstance(message, dict) else messages.outgoing(message)
            task = published_task.get()
            if task is not None and task.task_id == sent["headers"].get("id"):
                sent = _with_result(sent, task, connection.address)
            request = publish_request(
                sent,
                exchange,
                routing_key,
                mandatory=bool(mandatory or self.deadletter_queue),  # Celery's retry passes on mandatory=None
                now_ms=int(connection.clock.wall() * 1000),
            )
            if (connection.options.pipelined or current_batch.get() is not None) and not self.deadletter_queue:
                owner = publish_owner(connection)
                if owner is not None:
                    self._publish_unconfirmed(request, sent, owner)
                    return None
            confirm = connection.io.publish(request, confirm_timeout if timeout is None else timeout)
            if confirm.holder is not None and (on_conflict := unique_conflict.get()) is not None:
                on_conflict(confirm.holder)
            return confirm
        except Unroutable as exc:
            if mandatory:
                self._return_unroutable(exc, sent, exchange, routing_key)
            else:
                self._put_undeliverable(sent, exchange, routing_key)
            return None
        except RetryLater as exc:
            self._retry_pace.refused(request)
            raise translate(exc) from exc
        except OpenDataError as exc:
            raise translate(exc) from exc

    def _publish_unconfirmed(self, request: Publish, message: OutgoingMessage, owner: Batch | PublishPipeline) -> None:
        pipeline = self._connection().pipeline
        if owner is pipeline:
            pipeline.raise_failures("; this message was not sent")
        properties, task_id = message["properties"], message["headers"].get("id")
        message_id = properties.get("message_id") or properties.get("correlation_id") or ""
        on_conflict = unique_conflict.get() if request.unique is not None else None
        ids = str(message_id), str(task_id or "")
        pipeline.publish(request, owner.failures, *ids, owner.count_in_flight, on_conflict)

    def _return_unroutable(
        self, unroutable: Unroutable, message: OutgoingMessage, exchange: str, routing_key: str
    ) -> None:
        error = translate(unroutable)
        if not self.events["basic_return"]:
            raise error from unroutable
        returned = messages.returned(message)
        for callback in self.events["basic_return"]:
            callback(error, exchange, routing_key, returned)

    basic_publish_confirm = basic_publish

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every publish of the connection is durable, including those without confirmation.

        Raises:
            PublishFailed: some are not durable.
            socket.timeout: not all of them were confirmed in time.
        """
        with translated:
            self._connection().flush(timeout)

    # ------------------------------------------------------------ consuming
    def basic_consume(
        self,
        queue: str = "",
        no_ack: bool = False,
        callback: Callable[[messages.Message], Any] | None = None,
        consumer_tag: str = "",
        no_local: bool = False,
        exclusive: bool = False,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
        on_cancel: Callable[[str], Any] | None = None,
        argsig: Any = None,
    ) -> str:
        """Start a consumer and return its tag.

        Args:
            callback: receives each message.
            on_cancel: receives the tag if the broker ends the consumer.

        Raises:
            ConsumerTagInUse: the channel has a consumer with this tag, which continues.
        """
        connection = self._connection()
        tag = consumer_tag or f"ctag{self.channel_id}.{next(_consumer_numbers)}"
        with translated:
            connection.check_tag(self.channel_id, tag)
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
        except BaseException:
            self._forget_consumer(tag)
            raise
        self._consumers.add(tag)
        self._tag_to_queue[tag] = queue
        self._active_queues.append(queue)
        self._reset_cycle()
        return tag

    def basic_cancel(self, consumer_tag: str, nowait: bool = False) -> None:
        """Cancel a consumer. Its deliveries that are not consumed yet are released; the others stay in flight."""
        if self.connection is None:
            return
        try:
            self.connection.cancel(self.channel_id, consumer_tag)
        except OpenDataError as exc:
            raise translate(exc) from exc
        finally:
            self._forget_consumer(consumer_tag)
        self._grant_again()

    # ------------------------------------------------------------ one delivery at a time
    def set_gate(self, can_consume: Callable[[], bool]) -> None:
        """Receive messages only when this function returns True."""
        connection = self._connection()
        self.can_consume = can_consume
        self._granted = False
        if self not in connection.gated:
            connection.gated.append(self)
        connection.set_credit(self.channel_id, 0)

    def grant(self) -> None:
        """Grant the broker credit for one more delivery, if the gate permits it and no credit is outstanding."""
        if self._granted or self.connection is None or self.can_consume is None or not self._callbacks:
            return
        if self.can_consume():
            self._granted = True
            self.connection.set_credit(self.channel_id, 1)

    def _grant_again(self) -> None:
        """Grant a delivery again, because the one for the last credit may have returned to its queue."""
        if self.can_consume is not None:
            self.set_gate(self.can_consume)
            self.grant()

    def _forget_consumer(self, tag: str) -> Callable[[str], Any] | None:
        self._callbacks.pop(tag, None)
        self.no_ack_consumers.discard(tag)
        if tag in self._consumers:
            self._consumers.remove(tag)
            with suppress(ValueError):
                self._active_queues.remove(self._tag_to_queue.pop(tag))
            self._reset_cycle()
        return self._on_cancel.pop(tag, None)

    def basic_get(self, queue: str = "", no_ack: bool = False, **_kwargs: Any) -> messages.Message | None:
        """Return one message of the queue; None if no message is ready."""
        connection = self._connection()
        with translated:
            delivery = connection.get(self.channel_id, queue, no_ack=bool(no_ack))
        return None if delivery is None else self._receive(delivery, held=not no_ack)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Limit the channel's unacknowledged messages, over all its consumers; 0 means no limit."""
        connection, count = self._connection(), max(0, int(prefetch_count or 0))
        with translated:
            connection.set_prefetch(self.channel_id, count)
            self.qos.limit = count

    def deliver(self, event: Any) -> None:
        """Pass an event to its consumer."""
        if type(event) is Cancelled:
            return self._consumer_ended(event)
        self._granted = False
        callback = self._callbacks.get(event.tag)
        if callback is None:
            return self._return_unwanted(event)
        message = self._receive(event, held=event.tag not in self.no_ack_consumers)
        if message is not None:
            callback(message)
        if self.can_consume is not None:
            self.grant()

    def _receive(self, delivery: Delivery, *, held: bool) -> messages.DeliveredMessage | None:
        self._last_tag = tag = self._last_tag + 1
        try:
            message = messages.DeliveredMessage(self, tag, delivery)
        except msgspec.MsgspecError as exc:
            log.error("message %d of queue %s can't be decoded and is rejected: %s", delivery.id, delivery.queue, exc)
            if held:
                self._connection().settle(self.channel_id, Outcome.REJECT, [delivery.lease])
            return None
        if held:
            self.delivered[tag] = message
        return message

    def hand_in(self, consumer_tag: str, payload: OutgoingMessage) -> None:
        """Pass a message that :meth:`_get` took off its queue to a consumer."""
        message = self.Message(payload, channel=self)
        if consumer_tag not in self.no_ack_consumers:
            self.qos.append(message, message.delivery_tag)
        callback = self._callbacks.get(consumer_tag)
        if callback is not None:
            callback(message)

    def _return_unwanted(self, delivery: Delivery) -> None:
        """Release a message without a callback, and end its consumer, or the broker would deliver the message again."""
        if self.connection is None:
            return
        tag, connection = delivery.tag, self.connection
        if tag in self._consumers:
            log.warning("consumer %s of queue %s has no callback and is cancelled", tag, delivery.queue)
        with translated:
            connection.end_consumer(self.channel_id, tag)
            if tag not in self.no_ack_consumers:
                connection.settle(self.channel_id, Outcome.RELEASE, [delivery.lease])
        self._forget_consumer(tag)
        self._grant_again()

    def _consumer_ended(self, event: Cancelled) -> None:
        known = event.tag in self._callbacks
        on_cancel = self._forget_consumer(event.tag)
        if on_cancel is not None:
            on_cancel(event.tag)
        elif known:
            raise ConsumerCancelled(f"the broker ended consumer {event.tag}: {event.reason}", tag=event.tag)

    # ------------------------------------------------------------ settling
    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        self._settle(delivery_tag, multiple, Outcome.ACK)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Return a message to its queue, which counts an attempt, or fail it."""
        self._settle(delivery_tag, False, Outcome.REQUEUE if requeue else Outcome.REJECT)

    def basic_nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> None:
        self._settle(delivery_tag, multiple, Outcome.REQUEUE if requeue else Outcome.REJECT)

    def basic_recover(self, requeue: bool = False) -> list[tuple[BaseException, Any]]:
        """Release all messages of the channel, without counting an attempt.

        Return the messages that could not be released, each with its error. Only messages that :meth:`_get` took can
        fail, because the broker releases the others.
        """
        if not requeue:
            raise NotImplementedError("basic_recover(requeue=False) is not supported: use requeue=True")
        return self.qos.restore_unacked()  # type: ignore[no-any-return]

    basic_recover_async = basic_recover

    @property
    def takes_reports(self) -> bool:
        return self.connection is not None and self.connection.takes_reports

    def release_leased(self) -> None:
        """Release all messages that the broker delivered."""
        self._settle(0, True, Outcome.RELEASE)

    def _leased(self) -> list[int]:
        """Return the tags of the messages that the broker delivered, in order."""
        return [tag for tag, message in self.delivered.items() if isinstance(message, messages.DeliveredMessage)]

    def _settle(self, tag: int, multiple: bool, outcome: Outcome) -> None:
        connection, delivered = self.connection or self._connection(), self.delivered
        leases = []
        if multiple:
            leases = [delivered.pop(t).lease for t in self._leased() if t <= tag or not tag]
        elif isinstance(message := delivered.get(tag), messages.DeliveredMessage):
            if message.run is not None:
                del delivered[tag]
                try:
                    connection.settle_message(self.channel_id, outcome, message)
                except OpenDataError as exc:
                    raise translate(exc) from exc
                return
            leases = [delivered.pop(tag).lease]
        if leases:
            try:
                connection.settle(self.channel_id, outcome, leases)
            except OpenDataError as exc:
                raise translate(exc) from exc
        elif tag in delivered:  # taken by _get: the broker has settled it already
            if outcome is Outcome.REQUEUE:
                self._restore_at_beginning(delivered[tag])
            delivered.pop(tag, None)
        elif tag or not multiple:
            raise translate(
                PreconditionFailed(
                    f"delivery tag {tag} is unknown on channel {self.channel_id}, or settled already", tag=tag
                )
            )

    # ------------------------------------------------------------ closing
    def close(self) -> None:
        """Cancel the consumers and return unacknowledged messages to their queues."""
        connection = self.connection
        if connection is None:
            return
        self._put_back_taken()
        self.detach()
        with translated:
            connection.close_channel(self.channel_id)

    def _put_back_taken(self) -> None:
        """Put back unacknowledged messages that :meth:`_get` took; the broker releases the others."""
        for message in self.delivered.values():
            if not isinstance(message, messages.DeliveredMessage):
                try:
                    self._restore(message)
                except Exception:
                    log.exception("a message that was taken off its queue could not be put back: %r", message)

    def detach(self) -> None:
        """Detach the channel from its closed connection."""
        if self.connection is not None and self.can_consume is not None:
            self.connection.gated.remove(self)
        self.connection = None
        self._forget_all()

    def after_fork_in_child(self) -> None:
        """Leave the deliveries and consumers of the parent's channel to the parent process."""
        self._forget_all()
        self.can_consume = None
        self._granted = False

    def _forget_all(self) -> None:
        self._callbacks.clear()
        self._on_cancel.clear()
        self._consumers.clear()
        self._tag_to_queue.clear()
        self._active_queues.clear()
        self._cycle = None
        self.no_ack_consumers.clear()
        self.delivered.clear()


def _with_result(message: OutgoingMessage, task: PublishedTask, broker: Address) -> OutgoingMessage:
    """Return the message; if this broker stores the task's result, with the property that names its destination."""
    if broker.place not in task.places:
        return message
    return {**message, "properties": {**message["properties"], revocation.PROPERTY: task.result}}
