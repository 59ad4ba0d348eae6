"""The right that each call needs: the ``needs`` of :func:`.registry.handles`. docs/permissions.md has the table.

A function gets the call's context and its message, and raises :class:`.AccessRefused`. It runs before the handler does,
so a client that may not use a name does not learn whether it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...protocol import messages as m
from ...storage.routing.exchange import ALTERNATE_EXCHANGE
from ...storage.routing.queue_filters import ANY, FILTER, FILTER_MODE
from ..access.rights import ALL_EXCHANGES
from ..model.argument_table import DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY
from .context import Context

Needs = Callable[[Context, Any], None]


def entry(_call: Context, _msg: Any) -> None:
    """Nothing but the user's entry for the instance, which the greeting has checked."""


def read_queue(call: Context, msg: Any) -> None:
    """Read on the queue."""
    call.session.rights.check_read(msg.queue)


def configure_queue(call: Context, msg: Any) -> None:
    """Configure on the queue."""
    call.session.rights.check_configure("queue", msg.queue)


def publish(call: Context, msg: Any) -> None:
    """Write on the exchange; see :meth:`.Rights.check_publish`."""
    rights = call.session.rights
    if not rights.write[msg.exchange]:
        rights.check_publish(msg.exchange, msg.routing_key)


def declare_queue(call: Context, msg: m.DeclareQueue) -> None:
    """Configure on the queue; for a dead-letter exchange, also read on the queue and write on the exchange.

    A queue in a filter's mode "any" gets messages of all exchanges, so it needs read on :data:`.ALL_EXCHANGES`. A
    passive declaration needs nothing, as in RabbitMQ.
    """
    if not msg.passive and msg.queue:
        check_declaration(call, msg.queue, msg.arguments)


def check_declaration(call: Context, queue: str, arguments: Mapping[str, Any]) -> None:
    """Check the rights that a queue with these arguments needs."""
    rights = call.session.rights
    rights.check_configure("queue", queue)
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    if isinstance(exchange, str):
        rights.check_read(queue)
        key = arguments.get(DEAD_LETTER_ROUTING_KEY)
        rights.check_publish(exchange, key if isinstance(key, str) else "")
    if arguments.get(FILTER) is not None and arguments.get(FILTER_MODE, ANY) == ANY:
        rights.check_read(ALL_EXCHANGES, "exchange")


def declare_exchange(call: Context, msg: m.DeclareExchange) -> None:
    """Configure on the exchange; for an alternate exchange, also read on the exchange and write on the alternate."""
    if msg.passive:
        return
    rights = call.session.rights
    rights.check_configure("exchange", msg.exchange)
    alternate = msg.arguments.get(ALTERNATE_EXCHANGE)
    if isinstance(alternate, str):
        rights.check_read(msg.exchange, "exchange")
        rights.check_publish(alternate, "")
