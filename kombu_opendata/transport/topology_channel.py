"""Channel methods that declare and delete exchanges, queues and bindings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.transport import base, virtual

from ..client.session.broker_connection import BrokerConnection
from ..errors import ConnectionLost, UnknownArgumentWarning
from ..protocol.messages import (
    Bind,
    Count,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    ListBindings,
    Ok,
    PurgeQueue,
    QueueDeclared,
    Unbind,
)
from .amqp_errors import translate, translated

#: limit for the number of warnings that this process remembers
_MAX_WARNED = 10_000
_warned: set[str] = set()


def _warn(texts: list[str]) -> None:
    """Emit the broker's warnings about a declaration, once for each text in a process."""
    for text in texts:
        if text not in _warned:
            if len(_warned) >= _MAX_WARNED:
                _warned.clear()
            _warned.add(text)
            warnings.warn(text, UnknownArgumentWarning, stacklevel=4)


class TopologyChannel(virtual.Channel):
    """Calls of a channel about topology. ``nowait`` is ignored: the broker replies to each call."""

    connection: BrokerConnection | None = None
    channel_id: int = 0

    def _connection(self) -> BrokerConnection:
        if self.connection is None:
            raise translate(ConnectionLost("the channel is closed"))
        return self.connection

    def _call(self, message: Any) -> Any:
        connection = self._connection()
        with translated:
            return connection.call(message)

    # ------------------------------------------------------------ exchanges
    def exchange_declare(
        self,
        exchange: str = "",
        type: str = "direct",
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = True,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare an exchange; ``passive`` only checks that it exists. The default exchange always exists."""
        if exchange:
            flags = bool(durable), bool(auto_delete)
            answer: Ok = self._call(DeclareExchange(0, exchange, type, *flags, dict(arguments or {}), bool(passive)))
            _warn(answer.warnings)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        self._call(DeleteExchange(0, exchange, bool(if_unused)))

    def exchange_bind(self, destination: str, source: str = "", *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"exchange {destination!r} can't be bound to {source!r}: the opendata transport binds queues to exchanges, "
            "not exchanges to each other; bind the queue to both"
        )

    def exchange_unbind(self, destination: str, source: str = "", *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("the opendata transport has no bindings between exchanges")

    # ------------------------------------------------------------ queues
    def queue_declare(
        self,
        queue: str = "",
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = True,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> queue_declare_ok_t:
        """Declare a queue and return its name, its number of ready messages and its number of consumers.

        Without a name, the broker generates one.
        """
        flags = bool(durable), bool(exclusive), bool(auto_delete)
        info: QueueDeclared = self._call(DeclareQueue(0, queue, *flags, dict(arguments or {}), bool(passive)))
        _warn(info.warnings)
        return queue_declare_ok_t(info.queue, info.ready, info.consumers)

    def queue_bind(
        self,
        queue: str,
        exchange: str = "",
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Bind a queue to an exchange; every queue is bound to the default exchange by its name."""
        if exchange:
            self._call(Bind(0, queue, exchange, routing_key or "", dict(arguments or {})))

    def queue_unbind(
        self,
        queue: str,
        exchange: str,
        routing_key: str = "",
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._call(Unbind(0, queue, exchange, routing_key or "", dict(arguments or {})))

    def queue_delete(
        self, queue: str = "", if_unused: bool = False, if_empty: bool = False, nowait: bool = False
    ) -> int:
        """Delete a queue and return the number of its messages."""
        answer: Count = self._call(DeleteQueue(0, queue, bool(if_unused), bool(if_empty)))
        return answer.count

    def queue_purge(self, queue: str = "", nowait: bool = False) -> int:
        """Remove a queue's ready messages and return their number."""
        answer: Count = self._call(PurgeQueue(0, queue))
        return answer.count

    def prepare_queue_arguments(self, arguments: Any, **kwargs: Any) -> Any:
        return base.to_rabbitmq_queue_arguments(arguments, **kwargs)

    def list_bindings(self) -> list[tuple[str, str, str]]:
        """Return queue, exchange and routing key of every binding."""
        bindings: list[tuple[str, str, str]] = self._call(ListBindings(0)).bindings
        return bindings

    def get_bindings(self) -> list[dict[str, str]]:
        return [{"destination": q, "source": e, "routing_key": key} for q, e, key in self.list_bindings()]

    def after_reply_message_received(self, queue: str) -> None:
        """Do nothing: a reply queue is deleted when its last consumer leaves, or it expires, as over AMQP."""

    # ------------------------------------------------------------ other methods of AMQP
    def confirm_select(self, nowait: bool = False) -> None:
        """Do nothing: every publish is confirmed."""

    def flow(self, active: bool = True) -> None:
        raise NotImplementedError("the opendata transport has no flow control by channel: use basic_qos")

    def tx_select(self) -> None:
        raise NotImplementedError("the opendata transport has no transactions")
