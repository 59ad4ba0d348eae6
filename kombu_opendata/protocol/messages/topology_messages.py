"""Messages about queues, their arguments and pauses, exchanges, bindings and filters."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from .. import permissions
from ..permissions import LISTED, on_exchange, on_queue
from .message_base import Numbered, Request, Texts, WireMessage, moment, operation
from .session_messages import Ok


# ------------------------------------------------------------------ broker → client
class QueueDeclared(Numbered, tag=105):
    """Declared queue."""

    queue: str
    ready: int
    consumers: int
    warnings: list[str] = msgspec.field(default_factory=list)  # about the accepted declaration


class Count(Numbered, tag=106):
    """Number of messages, objects or consumers that a call changed."""

    count: int


class Undeclared(WireMessage, tag=116):
    """Notice that a transient entity that the session had declared was deleted.

    The entity is a queue with its bindings, an exchange with its bindings or, if ``queue`` and ``exchange`` are set, a
    binding. The broker sends the notice to sessions whose Hello had ``undeclared``.
    """

    queue: str = ""
    exchange: str = ""
    routing_key: str = ""
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class Bindings(Numbered, tag=113):
    """List of all bindings, and of all exchanges except the default exchange."""

    bindings: list[tuple[str, str, str]]  # queue, exchange, routing key
    arguments: list[dict[str, Any]] = msgspec.field(default_factory=list)  # of each binding
    #: name, type, durable, auto_delete, arguments
    exchanges: list[tuple[str, str, bool, bool, dict[str, Any]]] = msgspec.field(default_factory=list)


class Explained(Numbered, tag=190):
    """Explanation: see :meth:`kombu_opendata.queue_client.QueueClient.explain`."""

    report: dict[str, Any]


class QueueAltered(Numbered, tag=223):
    """Effect of an AlterQueue, or its predicted effect with ``dry_run``.

    Attributes:
        declared: the arguments of the declaration.
        overrides: the changes of operators, including this change; None stands for a removed argument.
        before, after: the arguments in effect before and after the change.
        counts: the numbers of messages that the change affects: ``waiting``, ``dropped``, ``excess``, ``examined``,
            ``unmatched``, ``done`` and ``failed``; see docs/queue-arguments.md.
        notes: the effect on the messages in sentences.
    """

    declared: dict[str, Any]
    overrides: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    counts: dict[str, int]
    notes: list[str]


class QueuePauseReply(Numbered, tag=224):
    """State of a queue's pause.

    Attributes:
        deliveries: True if deliveries to consumers and reads are paused.
        publishes: True if publishes are refused.
        since_ms: the time of the pause; 0 if the queue is not paused.
        changed: True if the call changed the state.
    """

    deliveries: bool
    publishes: bool
    since_ms: int
    changed: bool

    @property
    def since(self) -> datetime | None:
        return moment(self.since_ms)


class QueueList(Numbered, tag=178):
    """List of all queues; the other lists have an entry for each queue.

    An older broker does not send ``overrides`` and ``paused``.
    """

    #: name, durable, exclusive, auto delete, arguments, consumers
    queues: list[tuple[str, bool, bool, bool, dict[str, Any], int]]
    created_at_ms: list[int] = msgspec.field(default_factory=list)  # 0: unknown
    overrides: list[dict[str, Any]] = msgspec.field(default_factory=list)  # arguments that operators changed
    #: True for paused deliveries, True for paused publishes, time of the pause in ms
    paused: list[tuple[bool, bool, int]] = msgspec.field(default_factory=list)


class Routed(Numbered, tag=179):
    """Names of the queues that the user may see, and the number of others."""

    queues: list[str]
    hidden: int = 0


# ------------------------------------------------------------------ client → broker
@operation("declare a queue, also one that exists", permissions.declare_queue, definition=True)
class DeclareQueue(Request[QueueDeclared], tag=4):
    """Request to declare a queue.

    For an empty name the broker generates one (transient queues only).

    ``strict`` refuses unknown ``x-`` arguments; otherwise they become warnings in the reply. ``again`` (also of
    DeclareExchange and Bind) means that the session declared the same entity before, in the same run of the instance.
    If the entity does not exist, it was deleted: the broker does not create it, and replies ``not_found``.
    """

    queue: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]
    passive: bool
    strict: bool = False
    again: bool = False


@operation("delete a queue", on_queue("configure"))
class DeleteQueue(Request[Count], tag=5):
    """Request to delete a queue. Reply: Count (of messages removed)."""

    queue: str
    if_unused: bool
    if_empty: bool


@operation("purge a queue", on_queue("read", or_role="operator"))
class PurgeQueue(Request[Count], tag=6):
    """Request to purge the ready messages of a queue. Reply: Count (of messages removed)."""

    queue: str


@operation("declare an exchange, also one that exists", permissions.declare_exchange, definition=True)
class DeclareExchange(Request[Ok], tag=7):
    """Request to declare an exchange."""

    exchange: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    passive: bool
    again: bool = False


@operation("delete an exchange", on_exchange("configure"), definition=True)
class DeleteExchange(Request[Ok], tag=8):
    """Request to delete an exchange."""

    exchange: str
    if_unused: bool


@operation("bind a queue", permissions.bind, definition=True)
class Bind(Request[Ok], tag=9):
    """Request to bind a queue to an exchange.

    With ``checked``, the routing key for a topic exchange must follow the rules of :mod:`..topic_syntax`.
    """

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any]
    checked: bool = False
    again: bool = False


@operation("unbind a queue", permissions.bind, definition=True)
class Unbind(Request[Ok], tag=10):
    """Request to remove a binding. Reply: Ok, even if there was no such binding."""

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any]


@operation("list exchanges and bindings", LISTED, query=True)
class ListBindings(Request[Bindings], tag=17):
    """Request to list all bindings and exchanges."""


@operation("explain the routing of a message", permissions.explain, query=True, filter="filter")
class Explain(Request[Explained], tag=90):
    """Request to explain why a queue receives a message or not.

    The message is the stored message with ``message_id`` or, if that is -1, a message with these metadata headers.
    Without a ``queue``, the reply explains the ``filter``.
    """

    queue: str = ""
    message_id: int = -1
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    filter: str = ""


@operation("alter a queue", permissions.alter_queue, query=True)
class AlterQueue(Request[QueueAltered], tag=220):
    """Request to override declared arguments of a queue.

    A value of None removes the argument. ``unset`` has the names of arguments that return to their declared values;
    ``reset`` returns all arguments to their declared values before the change. A change that deletes messages is
    refused without ``force``. With ``dry_run`` nothing is changed.
    """

    queue: str
    arguments: dict[str, Any]
    unset: list[str]
    reset: bool = False
    force: bool = False
    dry_run: bool = False


@operation("pause a queue", on_queue("configure", or_role="operator"), once=True)
class PauseQueue(Request[QueuePauseReply], tag=221):
    """Request to pause the deliveries of a queue; with ``publishes``, refuse publishes too."""

    queue: str
    publishes: bool = False


@operation("resume a queue", on_queue("configure", or_role="operator"), once=True)
class ResumeQueue(Request[QueuePauseReply], tag=222):
    """Request to undo PauseQueue; with ``publishes_only``, deliveries stay paused."""

    queue: str
    publishes_only: bool = False


@operation("list queues", LISTED, query=True)
class ListQueues(Request[QueueList], tag=78):
    """Request to list all queues."""


@operation("test where a message would go", permissions.test_routing, large=True)
class AskRoutes(Request[Routed], tag=79):
    """Request to get the names of the queues that would receive a message."""

    exchange: str
    routing_key: str
    envelope: bytes  # for a headers exchange
    texts: Texts  # the metadata headers
