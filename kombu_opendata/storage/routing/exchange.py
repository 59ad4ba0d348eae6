"""One exchange and its bindings. Memory only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import header_match
from .topic_index import TopicIndex

ALTERNATE_EXCHANGE = "alternate-exchange"


@dataclass(slots=True, eq=False)
class Exchange:
    """One exchange.

    ``bindings`` maps a routing key (or pattern) to the queues bound with it, in order of binding, and each queue to its
    bindings: identity → arguments. The arguments are part of a binding's identity at a headers exchange only;
    elsewhere a queue has one binding with a key, whose identity is empty. :meth:`add` and :meth:`remove` change it.
    """

    name: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    bindings: dict[str, dict[str, dict[str, dict[str, Any]]]] = field(default_factory=dict, init=False)
    _patterns: TopicIndex = field(default_factory=TopicIndex, init=False, repr=False)  # keys of a topic exchange

    def add(self, queue: str, routing_key: str) -> dict[str, dict[str, Any]]:
        """Return the bindings of a queue with this key, to which the caller adds one."""
        if routing_key not in self.bindings:
            self.bindings[routing_key] = {}
            if self.type == "topic":
                self._patterns.add(routing_key)
        return self.bindings[routing_key].setdefault(queue, {})

    def remove(self, queue: str, routing_key: str) -> int:
        """Remove the bindings of a queue with this key, if any; return their number."""
        bound = self.bindings.get(routing_key)
        if bound is None:
            return 0
        count = len(bound.pop(queue, ()))
        if not bound:
            del self.bindings[routing_key]
            if self.type == "topic":
                self._patterns.remove(routing_key)
        return count

    def identity(self, arguments: dict[str, Any]) -> str:
        """Return the identity of a binding with these arguments among those of the same queue and key."""
        return header_match.identity(arguments) if self.type == "headers" else ""

    @property
    def alternate(self) -> str | None:
        """The exchange for messages that match no queue of this one."""
        name = self.arguments.get(ALTERNATE_EXCHANGE)
        return name if isinstance(name, str) else None

    def queues_by_headers(self, headers: Mapping[Any, Any]) -> Iterator[str]:
        """Yield the queues for a message with these headers, at a headers exchange; some may occur twice."""
        for bound in self.bindings.values():
            for queue, bindings in bound.items():
                if any(header_match.matches(arguments, headers) for arguments in bindings.values()):
                    yield queue

    def queues(self, routing_key: str) -> Iterator[str]:
        """Yield the queues for a message with this key; some may occur twice. Not for a headers exchange."""
        if self.type == "direct":
            yield from self.bindings.get(routing_key, ())
        elif self.type == "fanout":
            for bound in self.bindings.values():
                yield from bound
        else:
            for pattern in self._patterns.matching(routing_key):
                yield from self.bindings[pattern]
