"""Exchanges, bindings and routing (docs/rfcs/0001-records.md). Memory only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from ..errors import NotFound, PreconditionFailed, RequestError
from . import header_match
from .header_match import quoted

EXCHANGE_TYPES = ("direct", "topic", "fanout", "headers")
PREDECLARED = {
    "amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.headers": "headers",
    "amq.match": "headers",
}  # fmt: skip
ALTERNATE_EXCHANGE = "alternate-exchange"
_MAX_CACHED_ROUTES = 10_000

#: asks for a message's headers, as they are only needed where a headers exchange is
Headers = Callable[[], Mapping[Any, Any]]


class Exchange:
    """One exchange.

    ``bindings`` maps a routing key (or pattern) to the queues bound with it, in order of binding, and each queue to its
    bindings: identity → arguments. The arguments are part of a binding's identity at a headers exchange only;
    elsewhere a queue has one binding with a key, whose identity is empty.
    """

    __slots__ = ("arguments", "auto_delete", "bindings", "durable", "name", "type")

    def __init__(self, name: str, type: str, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> None:
        self.name = name
        self.type = type
        self.durable = durable
        self.auto_delete = auto_delete
        self.arguments = arguments
        self.bindings: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}

    def identity(self, arguments: dict[str, Any]) -> str:
        """What tells a binding with these arguments from others of the same queue with the same key."""
        return header_match.identity(arguments) if self.type == "headers" else ""

    @property
    def alternate(self) -> str | None:
        """Where messages go that no queue here takes."""
        name = self.arguments.get(ALTERNATE_EXCHANGE)
        return name if isinstance(name, str) else None

    def queues_by_headers(self, headers: Mapping[Any, Any]) -> Iterator[str]:
        """The queues that a headers exchange sends a message with these headers to; one may come twice."""
        for bound in self.bindings.values():
            for queue, bindings in bound.items():
                if any(header_match.matches(arguments, headers) for arguments in bindings.values()):
                    yield queue

    def queues(self, routing_key: str) -> Iterator[str]:
        """The queues a message with this key goes to; one may come twice. Not for a headers exchange."""
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


def _unknown() -> Mapping[Any, Any]:
    """The headers of no message in particular."""
    raise LookupError


class Topology:
    """All exchanges and bindings of an instance. The default exchange ``""`` reaches every queue by its name."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {n: Exchange(n, t, True, False, {}) for n, t in PREDECLARED.items()}
        self.queue_names: set[str] = set()
        self._routes: dict[tuple[str, str], tuple[str, ...]] = {}

    def changed(self) -> None:
        """Forget cached routes."""
        self._routes.clear()

    def route(self, exchange: str, routing_key: str, headers: Headers = dict) -> tuple[str, ...]:
        """The queues a message goes to, each once. What no queue takes goes on to the alternate exchange, if any.

        Args:
            headers: gives the message's headers; called when a headers exchange is asked.

        Raises:
            NotFound: no such exchange.
        """
        found = self._routes.get((exchange, routing_key))
        if found is None:
            found, by_key = self._resolve(exchange, routing_key, headers)
            if by_key:
                if len(self._routes) >= _MAX_CACHED_ROUTES:
                    self._routes.clear()
                self._routes[(exchange, routing_key)] = found
        return found

    def route_by_key(self, exchange: str, routing_key: str) -> tuple[str, ...] | None:
        """As :meth:`route`; None where exchange and routing key alone don't decide, or there is no such exchange."""
        if exchange and exchange not in self.exchanges:
            return None
        try:
            self.route(exchange, routing_key, _unknown)
        except LookupError:
            return None
        return self._routes.get((exchange, routing_key))

    def _resolve(self, name: str, routing_key: str, headers: Headers) -> tuple[tuple[str, ...], bool]:
        """The queues, and whether exchange and routing key alone decide that."""
        exchange = self.get(name) if name else None
        by_key = True
        asked = {name}
        while exchange is not None:
            if exchange.type == "headers":
                by_key = False
                queues = exchange.queues_by_headers(headers())
            else:
                queues = exchange.queues(routing_key)
            found = tuple(dict.fromkeys(queues))
            name = exchange.alternate if exchange.alternate is not None else exchange.name
            if found or name in asked:  # found, no alternate, or alternates that go round in circles
                return found, by_key
            asked.add(name)
            exchange = self.exchanges.get(name)
        return ((routing_key,) if not name and routing_key in self.queue_names else ()), by_key

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
            RequestError: unknown type, the default exchange, or an alternate exchange that is no name.
            PreconditionFailed: it exists with other properties.
        """
        if type not in EXCHANGE_TYPES:
            raise RequestError(f"exchange type {type!r} is not supported: use {', '.join(EXCHANGE_TYPES)}", type=type)
        if name == "":
            raise RequestError("the default exchange can't be declared")
        alternate = arguments.get(ALTERNATE_EXCHANGE)
        if alternate is not None and not isinstance(alternate, str):
            raise RequestError(
                f"exchange {name!r}: {ALTERNATE_EXCHANGE} must be the name of an exchange, not {alternate!r}",
                argument=ALTERNATE_EXCHANGE,
            )
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

    def remove_queue(self, name: str) -> list[tuple[str, str, str]]:
        """Forget a queue and its bindings; returns them as (exchange, routing key, identity)."""
        gone = [
            (exchange, key, self.exchanges[exchange].identity(arguments))
            for queue, exchange, key, arguments in self.bindings() if queue == name
        ]  # fmt: skip
        for exchange, key, _identity in gone:
            self._forget(name, exchange, key)
        self.queue_names.discard(name)
        self.changed()
        return gone

    def check_binding(self, exchange: str, arguments: dict[str, Any]) -> None:
        """Check the arguments of a binding.

        Raises:
            NotFound: no such exchange.
            RequestError: a headers exchange can't match by them.
        """
        if self.get(exchange).type == "headers":
            header_match.check(arguments)

    def binding(self, queue: str, exchange: str, routing_key: str, identity: str) -> dict[str, Any] | None:
        """The arguments of a binding, None when there is no such binding."""
        found = self.exchanges.get(exchange)
        return None if found is None else found.bindings.get(routing_key, {}).get(queue, {}).get(identity)

    def is_bound(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> bool:
        """Whether there is this binding, which at a headers exchange means: with these arguments."""
        identity = self.get(exchange).identity(arguments)
        return self.binding(queue, exchange, routing_key, identity) is not None

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        found = self.get(exchange)
        found.bindings.setdefault(routing_key, {}).setdefault(queue, {})[found.identity(arguments)] = arguments
        self.changed()

    def unbind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        """Remove a binding, which at a headers exchange is the one with these arguments."""
        found = self.get(exchange)
        bindings = found.bindings.get(routing_key, {}).get(queue, {})
        bindings.pop(found.identity(arguments), None)
        if not bindings:
            self._forget(queue, exchange, routing_key)
        self.changed()

    def _forget(self, queue: str, exchange: str, routing_key: str) -> None:
        found = self.get(exchange).bindings
        bound = found.get(routing_key, {})
        bound.pop(queue, None)
        if not bound:
            found.pop(routing_key, None)

    def bindings(self) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
        """Every binding as (queue, exchange, routing key, arguments)."""
        for exchange in self.exchanges.values():
            for key, bound in exchange.bindings.items():
                for queue, bindings in bound.items():
                    for arguments in bindings.values():
                        yield queue, exchange.name, key, arguments

    def filter_of(self, queue: str) -> str:
        """The queue's filter over metadata headers, the RFC's definition of a queue, compiled from its bindings."""
        terms = [f"exchange = '' AND routing_key = {quoted(queue)}"]
        terms += [self._term(name, key, given) for bound, name, key, given in self.bindings() if bound == queue]
        return terms[0] if len(terms) == 1 else " OR ".join(f"({term})" for term in terms)

    def filter_size(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> int:
        """How many bytes the queue's filter has once it is bound like this as well."""
        return len(f"({self.filter_of(queue)}) OR ({self._term(exchange, routing_key, arguments)})".encode())

    def _term(self, exchange: str, key: str, arguments: dict[str, Any]) -> str:
        term = f"exchange = {quoted(exchange)}"
        kind = self.get(exchange).type
        if kind == "direct":
            term += f" AND routing_key = {quoted(key)}"
        elif kind == "topic":
            term += f" AND topic(routing_key, {quoted(key)})"
        elif kind == "headers":
            term += f" AND {header_match.term(arguments)}"
        return term
