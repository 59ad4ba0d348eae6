"""Messages about queues, exchanges, bindings and filters."""

from __future__ import annotations

from typing import Any

import msgspec

from .message_base import Numbered, WireMessage


# ------------------------------------------------------------------ client → broker
class DeclareQueue(Numbered, tag=4):
    """Request to declare a queue.

    Reply: QueueDeclared. For an empty name the broker generates one (transient queues only).

    ``strict`` refuses unknown ``x-`` arguments; otherwise they become warnings in the reply. ``again``, here and in
    DeclareExchange and Bind, means that the session had declared this in the same run of the instance. If it does not
    exist, it was deleted and is not created (``not_found``).
    """

    queue: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]
    passive: bool
    strict: bool = False
    again: bool = False


class DeleteQueue(Numbered, tag=5):
    """Request to delete a queue. Reply: Count (of messages removed)."""

    queue: str
    if_unused: bool
    if_empty: bool


class PurgeQueue(Numbered, tag=6):
    """Request to purge the ready messages of a queue. Reply: Count (of messages removed)."""

    queue: str


class DeclareExchange(Numbered, tag=7):
    """Request to declare an exchange. Reply: Ok."""

    exchange: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    passive: bool
    again: bool = False


class DeleteExchange(Numbered, tag=8):
    """Request to delete an exchange. Reply: Ok."""

    exchange: str
    if_unused: bool


class Bind(Numbered, tag=9):
    """Request to bind a queue to an exchange. Reply: Ok.

    With ``checked``, the routing key for a topic exchange must follow the rules of :mod:`..topic_syntax`.
    """

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any]
    checked: bool = False
    again: bool = False


class Unbind(Numbered, tag=10):
    """Request to remove a binding. Reply: Ok, even if there was no such binding."""

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any]


class ListBindings(Numbered, tag=17):
    """Request to list all bindings and exchanges. Reply: Bindings."""


class Explain(Numbered, tag=90):
    """Request to explain why a queue receives a message or not. Reply: Explained.

    The message is the stored message with this id, or a message with these metadata headers; a ``message_id`` of -1
    means the headers. Without a ``queue``, the ``filter`` is explained.
    """

    queue: str = ""
    message_id: int = -1
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    filter: str = ""


# ------------------------------------------------------------------ broker → client
class QueueDeclared(Numbered, tag=105):
    """Declared queue."""

    queue: str
    ready: int
    consumers: int
    warnings: list[str] = msgspec.field(default_factory=list)  # about the accepted declaration


class Count(Numbered, tag=106):
    """Number of messages, objects or consumers that a call affected."""

    count: int


class Undeclared(WireMessage, tag=116):
    """Notice that a transient entity that the session had declared was deleted.

    The entity is a queue with its bindings, an exchange with its bindings, or a binding if both are named. The broker
    sends the notice to sessions whose Hello had ``undeclared``.
    """

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class Bindings(Numbered, tag=113):
    """List of all bindings, and of all exchanges but the default one."""

    bindings: list[tuple[str, str, str]]  # queue, exchange, routing key
    arguments: list[dict[str, Any]] = msgspec.field(default_factory=list)  # of each binding
    #: name, type, durable, auto_delete, arguments
    exchanges: list[tuple[str, str, bool, bool, dict[str, Any]]] = msgspec.field(default_factory=list)


class Explained(Numbered, tag=190):
    """Explanation: see kombu_opendata.client.calls.explain_routing."""

    report: dict[str, Any]
