"""A queue as RFC 0001 defines it: one filter over metadata headers, built from its bindings and its own filter.

The queue's config record contains the text. The condition is the tree of the text, built without parsing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ...selectors import Selector
from ...selectors.tree import Compare, Condition, Header, Text, Topic, all_of, any_of, quoted
from . import header_match
from .queue_filters import ALL, QueueFilter


class RouteBinding(NamedTuple):
    """One binding of a queue; ``type`` is the exchange's."""

    exchange: str
    type: str
    routing_key: str
    arguments: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The equivalent condition over metadata headers."""
        term = f"exchange = {quoted(self.exchange)}"
        if self.type == "direct":
            return f"{term} AND routing_key = {quoted(self.routing_key)}"
        if self.type == "topic":
            return f"{term} AND topic(routing_key, {quoted(self.routing_key)})"
        return f"{term} AND {header_match.term(self.arguments)}" if self.type == "headers" else term

    @property
    def condition(self) -> Condition:
        """The tree of the text."""
        parts: list[Condition] = [Compare("=", Header("exchange"), Text(self.exchange))]
        if self.type == "direct":
            parts.append(Compare("=", Header("routing_key"), Text(self.routing_key)))
        elif self.type == "topic":
            parts.append(Topic(Header("routing_key"), self.routing_key))
        elif self.type == "headers":
            parts.append(header_match.condition(self.arguments))
        return all_of(parts)


class QueueDefinition:
    """The bindings and the filter of a queue.

    Args:
        bindings: the bindings, without that of every queue to the default exchange by its name.
        filter: the queue's own filter, if it has one.
    """

    def __init__(self, queue: str, bindings: Iterable[RouteBinding], filter: QueueFilter | None = None) -> None:
        self.bindings = [RouteBinding("", "direct", queue, {}), *bindings]
        self.filter = filter

    @property
    def text(self) -> str:
        """The text of the config record."""
        terms, own = [binding.text for binding in self.bindings], self.filter
        if own is not None and own.mode != ALL:
            terms.append(own.selector.text)
        text = terms[0] if len(terms) == 1 else " OR ".join(f"({term})" for term in terms)
        return f"({text}) AND ({own.selector.text})" if own is not None and own.mode == ALL else text

    @property
    def condition(self) -> Condition:
        """The tree of the text."""
        bound = [binding.condition for binding in self.bindings]
        if self.filter is None:
            return any_of(bound)
        own = self.filter.selector.condition
        return all_of([any_of(bound), own]) if self.filter.mode == ALL else any_of([*bound, own])

    @property
    def selector(self) -> Selector:
        """The compiled text, without parsing it."""
        return Selector(self.condition, self.text)
