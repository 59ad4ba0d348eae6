"""One exchange and its bindings. Memory only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...selectors.topic_match import topic_matches
from . import header_match

ALTERNATE_EXCHANGE = "alternate-exchange"


@dataclass(slots=True, eq=False)
class Exchange:
    """One exchange.

    ``bindings`` maps a routing key (or pattern) to the queues bound with it, in order of binding, and each queue to its
    bindings: identity → arguments. The arguments are part of a binding's identity at a headers exchange only;
    elsewhere a queue has one binding with a key, whose identity is empty.
    """

    name: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    bindings: dict[str, dict[str, dict[str, dict[str, Any]]]] = field(default_factory=dict)

    def identity(self, arguments: dict[str, Any]) -> str:
        """The identity of a binding with these arguments among those of the same queue and key."""
        return header_match.identity(arguments) if self.type == "headers" else ""

    @property
    def alternate(self) -> str | None:
        """The exchange for messages that no queue here gets."""
        name = self.arguments.get(ALTERNATE_EXCHANGE)
        return name if isinstance(name, str) else None

    def queues_by_headers(self, headers: Mapping[Any, Any]) -> Iterator[str]:
        """The queues that get a message with these headers from a headers exchange; some may come twice."""
        for bound in self.bindings.values():
            for queue, bindings in bound.items():
                if any(header_match.matches(arguments, headers) for arguments in bindings.values()):
                    yield queue

    def queues(self, routing_key: str) -> Iterator[str]:
        """The queues that get a message with this key; some may come twice. Not for a headers exchange."""
        if self.type == "direct":
            yield from self.bindings.get(routing_key, ())
        elif self.type == "fanout":
            for bound in self.bindings.values():
                yield from bound
        else:
            for pattern, bound in self.bindings.items():
                if topic_matches(pattern, routing_key):
                    yield from bound
