"""Calls about queues, exchanges and bindings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from ..errors import NotFound, RequestError
from ..protocol import messages as m
from ..protocol.messages.message_base import moment
from ..protocol.topic_syntax import check_routing_key, check_topic_pattern
from . import checks
from .base import Base
from .queue_options import QueueOptions


@dataclass(frozen=True)
class QueueInfo:
    """Queue as it was declared, with the changes of operators.

    Attributes:
        arguments: the ``x-`` arguments of docs/queue-arguments.md, as they were declared.
        consumers: the number of connected consumers.
        created_at: the time of creation; None if the store is from a version that did not record it.
        overrides: the arguments that an operator has changed; None stands for a removed one.
        paused: whether deliveries to consumers and reads are paused.
        publishes_paused: whether publishes are refused.
        paused_at: the time of the pause; None if it is not paused.
    """

    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]
    consumers: int
    created_at: datetime | None = None
    overrides: dict[str, Any] = field(default_factory=dict, hash=False)
    paused: bool = False
    publishes_paused: bool = False
    paused_at: datetime | None = None

    @property
    def effective(self) -> dict[str, Any]:
        """Arguments in effect."""
        arguments = self.arguments | self.overrides
        return {name: value for name, value in arguments.items() if self.overrides.get(name, value) is not None}


@dataclass(frozen=True)
class Binding:
    """Binding of a queue, which receives the exchange's messages with this routing key or one that matches it.

    For a headers exchange, ``arguments`` are the headers that a message must have, and ``x-match``.
    """

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ExchangeInfo:
    """Exchange of type ``direct``, ``topic``, ``fanout`` or ``headers``, with the number of its bindings."""

    name: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    bindings: int


class QueueAdministration(Base):
    """Calls about queues, and about the routing of messages to them."""

    def create(self, queue: str, options: QueueOptions | None = None, *, force: bool = False) -> None:
        """Create a queue; nothing happens if it exists with the same options.

        Args:
            force: accept ``x-`` arguments that this broker does not support, such as those of another broker. They have
                no effect.

        Raises:
            PreconditionFailed: it exists with other options: :meth:`alter` or :meth:`delete_queue` it first.
            RequestError: a name, an option or an argument is not valid.
        """
        checks.name(queue, "the queue's name")
        chosen = QueueOptions() if options is None else options
        if not isinstance(chosen, QueueOptions):
            raise RequestError(f"the options must be QueueOptions, not {type(chosen).__name__}", name="options")
        kind = chosen.durable, chosen.exclusive, chosen.auto_delete
        self.calls.call(m.DeclareQueue(0, queue, *kind, chosen.as_arguments(), False, not force))

    def delete_queue(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue with all its messages and return its backlog. Finished attempts stay in the history.

        Args:
            if_unused: delete it only if it has no consumers; otherwise its consumers are cancelled.
            if_empty: delete it only if its backlog is empty.

        Raises:
            PreconditionFailed: it has consumers, or is not empty.
        """
        checks.name(queue, "the queue's name")
        self.calls.call(m.DeclareQueue(0, queue, True, False, False, {}, True))
        return self.calls.call(m.DeleteQueue(0, queue, if_unused, if_empty)).count

    def list_queues(self) -> list[QueueInfo]:
        """Return all queues, by name."""
        answer = self.calls.call(m.ListQueues(0))
        return _queue_infos(answer)

    def get_queue(self, queue: str) -> QueueInfo:
        """Return a queue as it was declared, with the changes of operators."""
        for info in self.list_queues():
            if info.name == queue:
                return info
        raise NotFound(f"no queue {queue!r}: create it first", queue=queue)

    def purge(self, queue: str) -> int:
        """Purge all ready and delayed messages; messages in flight stay.

        The call returns the number of removed messages, even if the broker ended during it, because its successor
        continues.
        """
        return self.calls.call(m.PurgeQueue(0, checks.name(queue, "the queue's name"))).count

    # ------------------------------------------------------------ changes of a queue
    def alter(
        self,
        queue: str,
        arguments: QueueOptions | Mapping[str, Any] | None = None,
        *,
        unset: Iterable[str] = (),
        reset: bool = False,
        force: bool = False,
        dry_run: bool = False,
    ) -> m.QueueAltered:
        """Override declared arguments of a queue; apps may continue to declare the old ones.

        The change stays in effect until it is undone or the queue is deleted. See docs/queue-arguments.md for the
        effect of each argument on messages in the queue.

        Args:
            arguments: the ``x-`` arguments to set, or the options. A value of None removes the argument.
            unset: arguments that return to their declared values.
            reset: return all arguments to their declared values, before the others are set.
            force: apply the change even if it deletes messages.
            dry_run: change nothing; the result is the same.

        Raises:
            PreconditionFailed: the change would delete messages, and ``force`` is not set.
            RequestError: an argument can't be altered, or a value is not valid.
        """
        checks.name(queue, "the queue's name")
        overrides = arguments.as_arguments() if isinstance(arguments, QueueOptions) else dict(arguments or {})
        if isinstance(unset, str):
            raise RequestError(f"unset must be a list of arguments, not {unset!r}", name="unset")
        message = m.AlterQueue(0, queue, overrides, list(unset), reset, force, dry_run)
        return self.calls.call(message)

    def delay_key(self, queue: str, seconds: checks.Seconds, *, key: str | None = None) -> datetime | None:
        """Deliver nothing of a partition, or of the whole queue without a key, for a time; return its end.

        A later end of an earlier delay stays. With 0 seconds, the delay is removed, and the result is None.
        """
        delay_ms = checks.milliseconds(seconds, "seconds")
        return moment(self.calls.call(m.DelayKey(0, checks.name(queue, "the queue's name"), delay_ms, key)).until_ms)

    def list_partitions(
        self,
        queue: str,
        *,
        order: Literal["backlog", "in_flight", "oldest", "key"] = "backlog",
        search: str = "",
        offset: int = 0,
        limit: int = 50,
    ) -> m.PartitionPage:
        """Return a page of the partitions of a queue, without those that are empty and idle.

        Args:
            order: the largest backlog first, the most messages in flight, the oldest ready message, or the key.
            search: a part of the key.
            limit: the number of partitions, 1 to 1,000.
        """
        checks.name(queue, "the queue's name")
        return self.calls.call(m.ListPartitions(0, queue, order, search, offset, limit))

    def pause(self, queue: str, *, publishes: bool = False) -> m.QueuePauseReply:
        """Pause a queue: consumers and reads receive nothing until it is resumed. Messages in flight may be settled.

        With ``publishes``, publishes are refused as well; they raise :class:`.QueuePaused`.
        """
        return self.calls.call(m.PauseQueue(0, checks.name(queue, "the queue's name"), publishes))

    def resume(self, queue: str, *, publishes_only: bool = False) -> m.QueuePauseReply:
        """Undo :meth:`pause`; nothing happens if the queue is not paused.

        With ``publishes_only``, publishes are accepted again, while consumers and reads still receive nothing.
        """
        message = m.ResumeQueue(0, checks.name(queue, "the queue's name"), publishes_only)
        return self.calls.call(message)

    # ------------------------------------------------------------ exchanges and bindings
    def declare_exchange(
        self,
        exchange: str,
        type: Literal["direct", "topic", "fanout", "headers"] = "topic",
        *,
        durable: bool = True,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Create an exchange; nothing happens if it exists with the same properties.

        Raises PreconditionFailed if it exists with other properties.
        """
        message = m.DeclareExchange(0, exchange, type, durable, auto_delete, dict(arguments or {}), False)
        self.calls.call(message)

    def list_exchanges(self) -> list[ExchangeInfo]:
        """Return all exchanges except the default one, by name; the names of built-in ones begin with ``amq.``."""
        answer = self.calls.call(m.ListBindings(0))
        bindings = Counter(exchange for _queue, exchange, _key in answer.bindings)
        infos = (ExchangeInfo(*row, bindings[row[0]]) for row in answer.exchanges)
        return sorted(infos, key=lambda info: info.name)

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings; nothing happens if it does not exist.

        With ``if_unused``, raise PreconditionFailed if it has bindings.
        """
        self.calls.call(m.DeleteExchange(0, exchange, if_unused))

    def bind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Bind a queue to an exchange: the queue receives messages with a matching routing key.

        In a pattern of a topic exchange, ``*`` is one word and ``#`` is any number of words; dots separate words.

        Raises:
            RequestError: the pattern for a topic exchange is not valid; see :meth:`validate_topic_pattern`.
        """
        self.calls.call(m.Bind(0, queue, exchange, routing_key, dict(arguments or {}), checked=True))

    def validate_topic_pattern(self, pattern: str) -> None:
        """Validate a pattern for a topic exchange as :meth:`bind` does; raise RequestError with the reason.

        Nothing is sent. A pattern has up to 255 characters: words separated by single dots. A word consists of ASCII
        letters, digits, ``-`` and ``_``, or is ``*`` or ``#``.
        """
        check_topic_pattern(pattern)

    def validate_routing_key(self, routing_key: str) -> None:
        """Validate a routing key for a topic exchange, like a pattern without wildcards. Nothing is sent.

        The check is optional: :meth:`publish` accepts any routing key of AMQP.
        """
        check_routing_key(routing_key)

    def unbind(
        self, queue: str, exchange: str, routing_key: str = "", arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Undo :meth:`bind`; nothing happens if there is no such binding."""
        self.calls.call(m.Unbind(0, queue, exchange, routing_key, dict(arguments or {})))

    def list_bindings(self, queue: str | None = None) -> list[Binding]:
        """Return all bindings, or those of one queue."""
        answer = self.calls.call(m.ListBindings(0))
        arguments = answer.arguments or [{} for _ in answer.bindings]
        bindings = [Binding(*names, more) for names, more in zip(answer.bindings, arguments, strict=True)]
        return [each for each in bindings if queue is None or each.queue == queue]

    def test_routing(self, exchange: str, routing_key: str = "", headers: Mapping[str, Any] | None = None) -> list[str]:
        """Return the queues that would receive such a message; nothing is sent."""
        sent, _digest = checks.outgoing(
            b"", headers, exchange, routing_key, priority=0, due_ms=0, ttl=None, now_ms=self._now_ms()
        )
        return self.calls.call(m.AskRoutes(0, exchange, routing_key, sent[0], sent[1])).queues


def _queue_infos(answer: m.QueueList) -> list[QueueInfo]:
    """Return all queues, by name."""
    created = answer.created_at_ms or [0] * len(answer.queues)  # absent from an older broker
    changed = answer.overrides or [{}] * len(answer.queues)
    paused = answer.paused or [(False, False, 0)] * len(answer.queues)
    infos = [
        QueueInfo(*queue, moment(at), overrides, deliveries, publishes, moment(since))
        for queue, at, overrides, (deliveries, publishes, since) in zip(
            answer.queues, created, changed, paused, strict=True
        )
    ]
    return sorted(infos, key=lambda info: info.name)
