"""The messages about queues, exchanges, bindings and filters."""

from __future__ import annotations

from typing import Any

import msgspec

from .message_base import Numbered, WireMessage


# ------------------------------------------------------------------ client → broker
class DeclareQueue(Numbered, tag=4):
    """Declare a queue. Answer: QueueInfo. An empty name asks the broker to make one up (transient queues only).

    ``strict`` refuses unknown ``x-`` arguments; otherwise they become warnings in the answer. ``again``, here and in
    DeclareExchange and Bind, says that the session had declared this in the same run of the instance, so that it was
    deleted if it does not exist: then it is not created (``not_found``).
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
    """Delete a queue. Answer: Count (of messages removed)."""

    queue: str
    if_unused: bool
    if_empty: bool


class PurgeQueue(Numbered, tag=6):
    """Remove the waiting messages of a queue. Answer: Count (of messages removed)."""

    queue: str


class DeclareExchange(Numbered, tag=7):
    """Declare an exchange. Answer: Ok."""

    exchange: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    passive: bool
    again: bool = False


class DeleteExchange(Numbered, tag=8):
    """Delete an exchange. Answer: Ok."""

    exchange: str
    if_unused: bool


class Bind(Numbered, tag=9):
    """Bind a queue to an exchange. Answer: Ok.

    With ``checked``, the routing key for a topic exchange must follow the rules of :mod:`..topic_syntax`.
    """

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any]
    checked: bool = False
    again: bool = False


class Unbind(Numbered, tag=10):
    """Remove a binding. Answer: Ok, even if there was no such binding."""

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any]


class ListBindings(Numbered, tag=17):
    """List all bindings and exchanges. Answer: Bindings."""


class Explain(Numbered, tag=90):
    """Ask why a queue gets a message or not. Answer: Explained.

    The message is the stored one with this id, or one with these metadata headers; a ``message_id`` of -1 means the
    headers. Without a ``queue``, the ``filter`` is explained.
    """

    queue: str = ""
    message_id: int = -1
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    filter: str = ""


# ------------------------------------------------------------------ broker → client
class QueueDeclared(Numbered, tag=105):
    """The queue that was declared."""

    queue: str
    ready: int
    consumers: int
    warnings: list[str] = msgspec.field(default_factory=list)  # about the declaration, which was accepted


class Count(Numbered, tag=106):
    """How many messages, objects or consumers a call affected."""

    count: int


class Undeclared(WireMessage, tag=116):
    """Something that the session had declared, and that was only in memory, was deleted.

    That is a queue with its bindings, an exchange with its bindings, or if both are named, a binding. The broker sends
    it to a session whose Hello had ``undeclared``.
    """

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class Bindings(Numbered, tag=113):
    """All bindings, and all exchanges but the default one."""

    bindings: list[tuple[str, str, str]]  # queue, exchange, routing key
    arguments: list[dict[str, Any]] = msgspec.field(default_factory=list)  # of each binding
    #: name, type, durable, auto_delete, arguments
    exchanges: list[tuple[str, str, bool, bool, dict[str, Any]]] = msgspec.field(default_factory=list)


class Explained(Numbered, tag=190):
    """The explanation: see kombu_opendata.client.calls.explain_routing."""

    report: dict[str, Any]
