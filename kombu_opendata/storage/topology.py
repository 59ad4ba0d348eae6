"""Exchanges, bindings and routing (docs/rfcs/0001-records.md). Memory only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ..errors import NotFound, PreconditionFailed, RequestError

EXCHANGE_TYPES = ("direct", "topic", "fanout")
PREDECLARED = {"amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout"}
_MAX_CACHED_ROUTES = 10_000


class Exchange:
    """One exchange. ``bindings`` maps a routing key (or pattern) to the queues bound with it, in order of binding."""

    __slots__ = ("arguments", "auto_delete", "bindings", "durable", "name", "type")

    def __init__(self, name: str, type: str, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> None:
        self.name = name
        self.type = type
        self.durable = durable
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.bindings: dict[str, dict[str, dict[str, Any]]] = {}  # key → queue → arguments

    def queues(self, routing_key: str) -> Iterator[str]:
        """The queues a message with this key goes to; one may come twice."""
        if self.type == "direct":
            yield from self.bindings.get(routing_key, ())
        elif self.type == "fanout":
            for bound in self.bindings.values():
                yield from bound
        else:
            for pattern, bound in self.bindings.items():
                if topic_matches(pattern, routing_key):
                    yield from bound


def topic_matches(pattern: str, routing_key: str) -> bool:
    """AMQP 0-9-1 topic match: ``*`` is one word, ``#`` any number of words, words are separated by dots."""
    return _match(_words(pattern), _words(routing_key))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")) if text else ()


@lru_cache(maxsize=10_000)
def _match(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    reachable = {0}  # positions in words that the pattern so far can end at
    for part in pattern:
        if part == "#":
            reachable = set(range(min(reachable), len(words) + 1)) if reachable else reachable
        else:
            reachable = {i + 1 for i in reachable if i < len(words) and part in ("*", words[i])}
        if not reachable:
            return False
    return len(words) in reachable


class Topology:
    """All exchanges and bindings of an instance. The default exchange ``""`` reaches every queue by its name."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {n: Exchange(n, t, True, False, {}) for n, t in PREDECLARED.items()}
        self.queue_names: set[str] = set()
        self._routes: dict[tuple[str, str], tuple[str, ...]] = {}

    def changed(self) -> None:
        """Forget cached routes."""
        self._routes.clear()

    def route(self, exchange: str, routing_key: str) -> tuple[str, ...]:
        """The queues a message goes to, each once.

        Raises:
            NotFound: no such exchange.
        """
        found = self._routes.get((exchange, routing_key))
        if found is None:
            if exchange == "":
                found = (routing_key,) if routing_key in self.queue_names else ()
            else:
                found = tuple(dict.fromkeys(self.get(exchange).queues(routing_key)))
            if len(self._routes) >= _MAX_CACHED_ROUTES:
                self._routes.clear()
            self._routes[(exchange, routing_key)] = found
        return found

    def get(self, name: str) -> Exchange:
        """The exchange of this name.

        Raises:
            NotFound: there is none.
        """
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange {name!r}: declare it first", exchange=name)
        return exchange

    def check_declare(self, name: str, type: str, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> bool:
        """Whether the exchange must be created.

        Raises:
            RequestError: unknown type or the default exchange.
            PreconditionFailed: it exists with other properties.
        """
        if type not in EXCHANGE_TYPES:
            raise RequestError(f"exchange type {type!r} is not supported: use {', '.join(EXCHANGE_TYPES)}", type=type)
        if name == "":
            raise RequestError("the default exchange can't be declared")
        old = self.exchanges.get(name)
        if old is None:
            return True
        theirs = {"type": type, "durable": durable, "auto_delete": auto_delete, "arguments": arguments}
        for key, value in theirs.items():
            have = getattr(old, key)
            if have != value:
                raise PreconditionFailed(
                    f"exchange {name!r} exists with {key}={have!r}, declared again with {value!r}: "
                    "delete it first or declare it alike",
                    exchange=name,
                )
        return False

    def add_exchange(self, name: str, type: str, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> None:
        self.exchanges[name] = Exchange(name, type, durable, auto_delete, arguments)
        self.changed()

    def remove_exchange(self, name: str) -> None:
        self.exchanges.pop(name, None)
        self.changed()

    def add_queue(self, name: str) -> None:
        self.queue_names.add(name)
        self.changed()

    def remove_queue(self, name: str) -> list[tuple[str, str]]:
        """Forget a queue and its bindings; returns them as (exchange, routing key)."""
        gone = [(exchange, key) for queue, exchange, key, _args in self.bindings() if queue == name]
        for exchange, key in gone:
            self.unbind(name, exchange, key)
        self.queue_names.discard(name)
        self.changed()
        return gone

    def is_bound(self, queue: str, exchange: str, routing_key: str) -> bool:
        return queue in self.get(exchange).bindings.get(routing_key, ())

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        self.get(exchange).bindings.setdefault(routing_key, {})[queue] = arguments
        self.changed()

    def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        bound = self.get(exchange).bindings.get(routing_key)
        if bound is not None:
            bound.pop(queue, None)
            if not bound:
                del self.get(exchange).bindings[routing_key]
        self.changed()

    def bindings(self) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
        """Every binding as (queue, exchange, routing key, arguments)."""
        for exchange in self.exchanges.values():
            for key, bound in exchange.bindings.items():
                for queue, arguments in bound.items():
                    yield queue, exchange.name, key, arguments

    def filter_of(self, queue: str) -> str:
        """The queue's filter over metadata headers, the RFC's definition of a queue, compiled from its bindings."""
        terms = [f"exchange = '' AND routing_key = {_quoted(queue)}"]
        terms += [self._term(exchange, key) for bound, exchange, key, _arguments in self.bindings() if bound == queue]
        return terms[0] if len(terms) == 1 else " OR ".join(f"({term})" for term in terms)

    def filter_size(self, queue: str, exchange: str, routing_key: str) -> int:
        """How many bytes the queue's filter has once it is bound like this as well."""
        return len(f"({self.filter_of(queue)}) OR ({self._term(exchange, routing_key)})".encode())

    def _term(self, exchange: str, key: str) -> str:
        term = f"exchange = {_quoted(exchange)}"
        kind = self.get(exchange).type
        if kind == "direct":
            term += f" AND routing_key = {_quoted(key)}"
        elif kind == "topic":
            term += f" AND topic(routing_key, {_quoted(key)})"
        return term


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
