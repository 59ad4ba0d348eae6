"""Filters of queues: ``x-filter`` and ``x-filter-mode`` (docs/rfcs/0005-selectors.md), and a queue's whole filter.

RFC 0001 defines a queue by one filter over metadata headers. It is built from the queue's bindings and its own filter.
The queue's config record contains the text; the condition is the tree of the text, built without parsing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ...errors import RequestError
from ...protocol.queue_arguments import ALL, ANY, FILTER, FILTER_MODE
from ...selectors import Selector, compile_selector
from ...selectors.filter_index import FilterIndex
from ...selectors.tree import Compare, Condition, Header, Text, Topic, all_of, any_of, quoted
from . import header_match

log = logging.getLogger(__name__)

MODES = (ANY, ALL)

#: returns a message's metadata headers, which only filters need
Metadata = Callable[[], Mapping[str, str]]


class QueueFilter(NamedTuple):
    selector: Selector
    mode: str


def filter_of(arguments: Mapping[str, Any]) -> QueueFilter | None:
    """Return the filter in a queue's arguments, if there is one.

    Raises:
        SelectorError: its text is not a valid filter.
        RequestError: it is not a text, or the mode is unknown.
    """
    text = arguments.get(FILTER)
    mode = arguments.get(FILTER_MODE, ANY)
    if mode not in MODES:
        raise RequestError(f"{FILTER_MODE} {mode!r} is unknown: use {' or '.join(MODES)}", argument=FILTER_MODE)
    return None if text is None else QueueFilter(compile_selector(text), mode)


def have_same_filter(arguments: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(arguments.get(name) == other.get(name) for name in (FILTER, FILTER_MODE))


class QueueFilters(dict[str, QueueFilter]):
    """The filters of an instance's queues, by queue. Changed by :meth:`add` and :meth:`remove` only."""

    def __init__(self) -> None:
        super().__init__()
        self._any = FilterIndex()
        self._all: dict[str, Selector] = {}

    def add(self, queue: str, arguments: Mapping[str, Any]) -> None:
        """Add the filter of a queue, if its arguments have a valid one.

        A store may contain invalid arguments from a version in which they had no effect.
        """
        self.remove(queue)
        try:
            new_filter = filter_of(arguments)
        except RequestError as exc:
            log.error("queue %r has no filter: its %s can't be used: %s", queue, FILTER, exc.text)
            return
        if new_filter is None:
            return
        self[queue] = new_filter
        if new_filter.mode == ANY:
            self._any.add(queue, new_filter.selector)
        else:
            self._all[queue] = new_filter.selector

    def remove(self, queue: str) -> None:
        if self.pop(queue, None) is not None:
            self._any.remove(queue)
            self._all.pop(queue, None)

    def taking(self, metadata: Mapping[str, str]) -> list[str]:
        """Return the queues in mode "any" whose filter matches these headers."""
        return self._any.matching(metadata) if self._any else []

    def passing(self, queues: Iterable[str], metadata: Mapping[str, str]) -> tuple[str, ...]:
        """Return those of the bound queues that have no filter in mode "all", or one that matches these headers."""
        filters = self._all
        if not filters:
            return tuple(queues)
        return tuple([name for name in queues if name not in filters or filters[name].matches(metadata)])


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
        """The tree of :attr:`text`."""
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
        terms, own = [binding.text for binding in self.bindings], self.filter
        if own is not None and own.mode != ALL:
            terms.append(own.selector.text)
        text = terms[0] if len(terms) == 1 else " OR ".join(f"({term})" for term in terms)
        return f"({text}) AND ({own.selector.text})" if own is not None and own.mode == ALL else text

    @property
    def condition(self) -> Condition:
        """The tree of :attr:`text`."""
        bound = [binding.condition for binding in self.bindings]
        if self.filter is None:
            return any_of(bound)
        own = self.filter.selector.condition
        return all_of([any_of(bound), own]) if self.filter.mode == ALL else any_of([*bound, own])

    @property
    def selector(self) -> Selector:
        """The compiled text, without parsing it."""
        return Selector(self.condition, self.text)
