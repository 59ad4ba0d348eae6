"""Methods of Kombu's virtual channels and their QoS that AMQP does not have, mapped to the broker's calls.

Consumers do not use these methods, because the broker pushes messages. A message has two forms: the wire's envelope,
and the dictionary of virtual transports, which is the argument of ``_put`` and the result of ``_get``.

===============================================  ==================================  ===================================
virtual method                                   call to the broker                  records that change
===============================================  ==================================  ===================================
``basic_publish``, ``_put_fanout``               ``Publish``                         payload, metadata; active of each
                                                                                     queue
``typeof(x).deliver``                            the same
``_put(queue, message)``                         ``Publish`` to the default          payload, metadata; active of the
                                                 exchange, mandatory                 queue
``basic_get``, ``basic_consume`` (pushed)        ``Get``; ``Consume``, then          active: available to in-flight;
                                                 ``Deliver``                         attempts
``_get(queue)``                                  ``Get`` without an ack              active, attempts, done: as a
                                                                                     delivery and an ack
``_get_many``, ``drain_events``                  none: returns pushed messages
``_poll(cycle, callback)``                       as ``_get``, of each consumed       as ``_get``
                                                 queue in turn
``basic_ack``, ``qos.ack``                       ``Settle`` ack                      active to done
``basic_reject``, ``qos.reject``                 ``Settle`` reject; with             active to failed; in-flight to
                                                 ``requeue``, requeue                available
``basic_recover``, ``qos.restore_unacked``       ``Settle`` release                  in-flight to available, no attempt
                                                                                     counted
``_restore``                                     the same
``_restore_at_beginning``; ``close``             ``Settle`` release;                 the same
                                                 ``CloseChannel``
the same for a message that ``_get`` took        ``_put`` to its queue               payload, metadata, active: a new
                                                                                     message
``qos.append``, ``qos.get``                      none: this client's messages
``qos.can_consume``                              the same
``basic_qos``, ``qos.prefetch_count``            ``Qos``
``_size``, ``_has_queue``                        ``DeclareQueue`` passive
``queue_declare(passive=True)``                  the same
``_new_queue``, ``queue_declare``                ``DeclareQueue``                    config, queue options
``_purge``, ``queue_purge``                      ``PurgeQueue``                      active
``_delete``, ``queue_delete``                    ``DeleteQueue``                     active, done, failed, config
``_queue_bind``, ``queue_bind``                  ``Bind``, ``Unbind``                binding
``queue_unbind``                                 the same
``exchange_declare``, ``exchange_delete``        ``DeclareExchange``,                exchange, binding
                                                 ``DeleteExchange``
``state``, ``get_table``, ``typeof``             ``ListBindings``: a copy, each
                                                 time
``get_exchanges``, ``list_bindings``             the same
``_lookup``                                      ``AskRoutes``, for a message
                                                 without headers
``exchange_bind``, ``exchange_unbind``           ``NotImplementedError``
``flow``, ``basic_recover(requeue=False)``       the same
===============================================  ==================================  ===================================

A message that ``_get`` returned has no lease: if the process dies, it is lost, as with every virtual transport.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from queue import Empty
from types import SimpleNamespace
from typing import Any

from kombu.transport import virtual
from kombu.transport.virtual import base
from kombu.transport.virtual import exchange as kombu_exchanges

from ..errors import NotFound
from ..protocol.envelope import metadata_headers
from ..protocol.message_properties import priority_of, ttl_ms_of, visible_at_ms_of
from ..protocol.messages import AskRoutes, ListBindings, Outcome, Publish, Routed
from . import kombu_message as messages
from .amqp_errors import translated
from .kombu_message import OutgoingMessage, encode
from .topology_channel import TopologyChannel


class DirectExchange(kombu_exchanges.DirectExchange):
    """Exchange that routes to queues that are bound with the same key."""

    def deliver(self, message: OutgoingMessage, exchange: str, routing_key: str, **kwargs: Any) -> None:
        self.channel._put_fanout(exchange, message, routing_key, **kwargs)


class FanoutExchange(kombu_exchanges.FanoutExchange):
    """Exchange that routes to every queue that is bound to it."""

    deliver = DirectExchange.deliver


class TopicExchange(kombu_exchanges.TopicExchange):
    """Exchange with patterns in which ``#`` also matches zero words, as in AMQP but not in Kombu's class."""

    deliver = DirectExchange.deliver

    def lookup(self, table: Any, exchange: str, routing_key: str, default: str | None) -> set[str]:
        from ..selectors.topic_match import topic_matches  # loads a parser, which few clients need

        return {queue for pattern, _regex, queue in table if topic_matches(pattern, routing_key)}


class HeadersExchange(kombu_exchanges.ExchangeType):
    """Exchange that routes by the headers of a message."""

    type = "headers"
    deliver = DirectExchange.deliver

    def lookup(self, table: Any, exchange: str, routing_key: str, default: str | None) -> set[str]:
        raise NotImplementedError(
            f"exchange {exchange!r} routes by headers, and a lookup by routing key has none: publish to it"
        )


class VirtualChannel(TopologyChannel):
    """Internal methods of a virtual channel.

    Their messages are the dictionaries that virtual transports store: ``body`` (in the encoding
    ``properties["body_encoding"]``), ``content-type``, ``content-encoding``, ``headers`` and ``properties``, with
    ``delivery_info`` and ``delivery_tag`` among the latter. The broker receives the same message as from any other
    publish.
    """

    exchange_types = {  # noqa: RUF012 - as in the base
        cls.type: cls for cls in (DirectExchange, TopicExchange, FanoutExchange, HeadersExchange)
    }
    supports_fanout = True
    max_priority = 255

    #: unsettled messages, by tag
    delivered: Delivered

    # ------------------------------------------------------------ messages
    def _put(self, queue: str, message: OutgoingMessage, **_kwargs: Any) -> None:
        """Publish a message to one queue and wait until it is durable.

        The exchange and routing key in its ``delivery_info`` are kept if the user has all permissions; otherwise the
        broker sets those of this publish.

        Raises:
            Unroutable: there is no such queue, or its filter does not match the message.
        """
        connection = self._connection()
        body, properties, info = messages.unpacked(self, message)
        headers, content_type = message.get("headers") or {}, message.get("content-type")
        exchange, routing_key = info.get("exchange") or "", info.get("routing_key") or queue
        with translated:
            priority = priority_of(properties.get("priority"))
            content_encoding = message.get("content-encoding")
            request = Publish(
                0,
                0,
                "",
                queue,
                encode(body, content_type, content_encoding, headers, properties, exchange, routing_key),
                {},
                priority,
                int(connection.clock.wall() * 1000),
                visible_at_ms_of(headers),
                ttl_ms_of(properties.get("expiration")),
                mandatory=True,
            )
            connection.publish(request)

    def _put_fanout(self, exchange: str, message: OutgoingMessage, routing_key: str = "", **_kwargs: Any) -> None:
        """Publish a message to an exchange of any type; the broker routes it and stores it once."""
        body, properties, _info = messages.unpacked(self, message)
        self.basic_publish({**message, "body": body, "properties": properties}, exchange, routing_key)

    def _get(self, queue: str, timeout: float | None = None) -> OutgoingMessage:
        """Take a message off a queue permanently: the broker counts it as done. ``timeout`` is ignored.

        Raises:
            queue.Empty: no message is ready, or there is no such queue.
        """
        try:
            message = self.basic_get(queue, no_ack=True)
        except NotFound:
            message = None
        if message is None:
            raise Empty
        payload: OutgoingMessage = message.serializable()
        payload["properties"]["delivery_info"]["queue"] = queue
        return payload

    def _get_many(self, queues: Sequence[str], timeout: float | None = None) -> None:
        """Pass a message that the broker pushed to its consumer; it may be from another queue.

        Without a timeout, the call does not wait.

        Raises:
            queue.Empty: no message arrived.
        """
        connection = self._connection()
        try:
            connection.client.transport.drain_events(connection, timeout=timeout or 0)
        except TimeoutError:
            raise Empty from None

    def drain_events(self, timeout: float | None = None, callback: Callable[..., Any] | None = None) -> None:
        """Call :meth:`_get_many`, unless there are no consumers; ``callback`` is ignored, as each consumer has one.

        Raises:
            queue.Empty: no message arrived.
        """
        if not self._consumers or not self.qos.can_consume():
            raise Empty
        self._get_many(self._active_queues, timeout=timeout)

    def _restore(self, message: Any) -> None:
        """Release a message; a message that :meth:`_get` took is published to its queue again."""
        if isinstance(message, messages.DeliveredMessage):
            self.delivered.pop(message.delivery_tag, None)
            self._connection().settle(self.channel_id, Outcome.RELEASE, [message.lease])
            return
        info = message.delivery_info
        queues = [info["queue"]] if "queue" in info else self._lookup(info["exchange"], info["routing_key"])
        for queue in queues:
            self._put(queue, message.serializable())

    def _inplace_augment_message(self, message: OutgoingMessage, exchange: str, routing_key: str) -> None:
        message["properties"].setdefault("delivery_info", {})
        super()._inplace_augment_message(message, exchange, routing_key)

    # ------------------------------------------------------------ queues
    def _size(self, queue: str) -> int:
        """Return the number of ready messages; 0 for a queue that does not exist."""
        try:
            return int(self.queue_declare(queue, passive=True).message_count)
        except NotFound:
            return 0

    def _has_queue(self, queue: str, **_kwargs: Any) -> bool:
        try:
            self.queue_declare(queue, passive=True)
        except NotFound:
            return False
        return True

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        """Create a queue, by default a durable one, unless it exists."""
        if not self._has_queue(queue):
            options = {name: kwargs[name] for name in ("exclusive", "arguments") if name in kwargs}
            durable, auto_delete = kwargs.get("durable", True), kwargs.get("auto_delete", False)
            self.queue_declare(queue, durable=durable, auto_delete=auto_delete, **options)

    def _purge(self, queue: str) -> int:
        """Remove all ready messages and return their number, 0 for a queue that does not exist."""
        try:
            return self.queue_purge(queue)
        except NotFound:
            return 0

    def _delete(self, queue: str, *_binding: Any, **_kwargs: Any) -> None:
        """Delete a queue with its bindings and messages."""
        self.queue_delete(queue)

    # ------------------------------------------------------------ exchanges and bindings
    @property
    def state(self) -> virtual.BrokerState:
        """Copy of the broker's current exchanges and bindings; each access sends a request to the broker."""
        answer = self._call(ListBindings(0))
        state = virtual.BrokerState()
        for name, type, durable, auto_delete, arguments in answer.exchanges:
            state.exchanges[name] = {
                "type": type, "durable": durable, "auto_delete": auto_delete, "arguments": arguments, "table": [],
            }  # fmt: skip
        for (queue, exchange, key), arguments in zip(answer.bindings, answer.arguments, strict=True):
            state.binding_declare(queue, exchange, key, arguments)
            definition = state.exchanges[exchange]
            row = self.exchange_types[definition["type"]].prepare_bind(queue, exchange, key, arguments)
            definition["table"].append(row)
        return state

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> list[str]:
        """Return the queues that would receive a message without headers: the broker applies bindings and filters."""
        if default is None:
            default = self.deadletter_queue
        if not exchange:
            return [routing_key or default or ""]
        headers = metadata_headers({}, exchange, routing_key, 0, None)
        try:
            empty = encode(b"", None, None, {}, {}, exchange, routing_key)
            answer: Routed = self._call(AskRoutes(0, exchange, routing_key, empty, headers))
            queues = answer.queues
            is_lost = not (answer.queues or answer.hidden)
        except NotFound:
            queues = []
            is_lost = True
        if is_lost and default is not None:
            self._warn_undeliverable(exchange, routing_key)
            self._new_queue(default)
            return [default]
        return queues

    def _put_undeliverable(self, message: OutgoingMessage, exchange: str, routing_key: str) -> None:
        """Publish a message that no queue accepts to the queue of the transport option ``deadletter_queue``."""
        self._warn_undeliverable(exchange, routing_key)
        self._new_queue(self.deadletter_queue)
        info = {"exchange": exchange, "routing_key": routing_key}
        self._put(self.deadletter_queue, {**message, "properties": {**message["properties"], "delivery_info": info}})

    def _warn_undeliverable(self, exchange: str, routing_key: str) -> None:
        text = base.UNDELIVERABLE_FMT.format(exchange=exchange, routing_key=routing_key)
        warnings.warn(virtual.UndeliverableWarning(text), stacklevel=4)

    def _queue_bind(self, exchange: str, routing_key: str, pattern: Any, queue: str) -> None:
        self.queue_bind(queue, exchange, routing_key)


class Delivered(dict[Any, Any]):
    """Unacknowledged messages by delivery tag.

    Attributes:
        restored: True after ``restore_unacked_once`` has restored them.
    """

    restored = False


class QoS(virtual.QoS):
    """Unacknowledged messages of a channel, and their limit.

    Messages that the broker delivered have a lease: the broker returns them to their queue when the channel closes or
    its process dies. Messages that :meth:`append` adds exist only in the client, because ``Channel._get`` has taken
    them off their queue. They count towards the limit of :meth:`can_consume`. The close of the channel publishes them
    to their queue again; a process that dies loses them.
    """

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        # The base's constructor would register an exit handler that restores messages, which the broker does.
        self.channel = channel
        self.limit = prefetch_count or 0
        self._delivered = channel.delivered
        self._dirty: set[Any] = set()
        self._quick_ack = self._dirty.add
        self._quick_append = self._delivered.__setitem__
        self._on_collect = SimpleNamespace(cancel=lambda: None)

    @property
    def prefetch_count(self) -> int:
        """Limit for the channel's unacknowledged messages; 0 means no limit."""
        return self.limit

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        self.channel.basic_qos(prefetch_count=count)

    @property
    def can_consume(self) -> Callable[[], bool]:
        """Function that returns True to receive one more message; Celery's ``worker_disable_prefetch`` replaces it."""
        gate: Callable[[], bool] | None = self.channel.can_consume
        return gate or super().can_consume

    @can_consume.setter
    def can_consume(self, function: Callable[[], bool]) -> None:
        self.channel.set_gate(function)

    def _has_lease(self, delivery_tag: Any) -> bool:
        return getattr(self._delivered.get(delivery_tag), "lease", None) is not None

    def ack(self, delivery_tag: Any) -> None:
        if self._has_lease(delivery_tag):
            self.channel.basic_ack(delivery_tag)
        else:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        if self._has_lease(delivery_tag):
            self.channel.basic_reject(delivery_tag, requeue=requeue)
        else:
            super().reject(delivery_tag, requeue=requeue)

    def restore_unacked(self) -> list[tuple[BaseException, Any]]:
        """Release all unacknowledged messages; return those that could not be put back, each with its error."""
        self.channel.release_leased()
        failed: list[tuple[BaseException, Any]] = super().restore_unacked()
        return failed
