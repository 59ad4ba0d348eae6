"""All exchanges, bindings and filters of an instance, and the routes by them (docs/rfcs/0001-records.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import NotFound, PreconditionFailed, RequestError
from ...protocol.queue_arguments import ALTERNATE_EXCHANGE
from . import header_match
from .exchange import Exchange
from .queue_filters import QueueDefinition, QueueFilters, RouteBinding

EXCHANGE_TYPES = ("direct", "topic", "fanout", "headers")
PREDECLARED = {
    "amq.direct": "direct", "amq.topic": "topic", "amq.fanout": "fanout", "amq.headers": "headers",
    "amq.match": "headers",
}  # fmt: skip
_MAX_CACHED_ROUTES = 10_000

#: (exchange, routing key) → queues
Routes = dict[tuple[str, str], tuple[str, ...]]

#: returns a message's headers, which only headers exchanges need
Headers = Callable[[], Mapping[Any, Any]]


def _unknown() -> Mapping[Any, Any]:
    """Raise an error instead of returning headers, where no message is given."""
    raise LookupError


class Topology:
    """All exchanges and bindings of an instance. The default exchange ``""`` reaches every queue by its name."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {n: Exchange(n, t, True, False, {}) for n, t in PREDECLARED.items()}
        self.queue_names: set[str] = set()
        self.binding_count = 0
        self.bindings_of: Counter[str] = Counter()  # by queue
        self.version = 0  # changes with each change of a route
        self.filters = QueueFilters()
        self._routes: Routes = {}
        self._steps: Routes = {}  # the queues bound to one exchange, without its alternates

    def changed(self) -> None:
        """Clear the cached routes."""
        self.version += 1
        self._routes.clear()
        self._steps.clear()

    def route(
        self,
        exchange: str,
        routing_key: str,
        headers: Headers = dict,
        metadata: Mapping[str, str] | None = None,
        before: Mapping[str, str] | None = None,
    ) -> tuple[str, ...]:
        """Return the queues for a message, each once. If there is none, the alternate exchange routes it, if any.

        Args:
            headers: returns the message's headers; called for a headers exchange only.
            metadata: the message's metadata headers, for filters; None: bindings alone determine the route.
            before: a dead letter's metadata headers before dead-lettering. A filter that matched these does not match
                again.

        Raises:
            NotFound: no such exchange.
        """
        if self.filters and metadata is not None:
            return self._route_with_filters(exchange, routing_key, headers, metadata, before)
        queues = self._routes.get((exchange, routing_key))
        if queues is None:
            queues, by_key = self._resolve(exchange, routing_key, headers)
            if by_key:
                self._remember(self._routes, exchange, routing_key, queues)
        return queues

    def _remember(self, cache: Routes, exchange: str, routing_key: str, queues: tuple[str, ...]) -> None:
        if len(cache) >= _MAX_CACHED_ROUTES:
            cache.clear()
        cache[(exchange, routing_key)] = queues

    def route_by_key(self, exchange: str, routing_key: str) -> tuple[str, ...] | None:
        """Return the route as :meth:`route`.

        Returns None if exchange and routing key alone don't determine it, or if there is no such exchange.
        """
        if self.filters or (exchange and exchange not in self.exchanges):
            return None
        try:
            self.route(exchange, routing_key, _unknown)
        except LookupError:
            return None
        return self._routes.get((exchange, routing_key))

    def _resolve(self, name: str, routing_key: str, headers: Headers) -> tuple[tuple[str, ...], bool]:
        """Return the queues by bindings, and True if exchange and routing key alone determine them."""
        by_key = True
        queues: tuple[str, ...] = ()
        for exchange in self._chain(name):
            by_key = by_key and not (exchange is not None and exchange.type == "headers")
            queues = self._bound(exchange, routing_key, headers)
            if queues:
                break
        return queues, by_key

    def _route_with_filters(
        self,
        name: str,
        routing_key: str,
        headers: Headers,
        metadata: Mapping[str, str],
        before: Mapping[str, str] | None,
    ) -> tuple[str, ...]:
        """Return the route as :meth:`_resolve`; a message that matches a filter skips the alternate exchange."""
        filters = self.filters
        taking = filters.taking(metadata)
        if before is not None and taking:
            taking = [queue for queue in taking if (own := filters.get(queue)) and not own.selector.matches(before)]
        for exchange in self._chain(name):
            bound = self._steps.get((exchange.name if exchange is not None else "", routing_key))
            if bound is None:
                bound = self._bound(exchange, routing_key, headers)
                if exchange is not None and exchange.type != "headers":
                    self._remember(self._steps, exchange.name, routing_key, bound)
            queues = filters.passing(bound, metadata)
            if taking:
                return tuple(dict.fromkeys((*queues, *taking)))
            if queues:
                return queues
        return ()

    def _chain(self, name: str) -> Iterator[Exchange | None]:
        """Yield the exchange and its alternates, each once; None is the default exchange."""
        exchange = self.get(name) if name else None
        visited = {name}
        while True:
            yield exchange
            if exchange is None or exchange.alternate is None or exchange.alternate in visited:
                return
            visited.add(exchange.alternate)
            if exchange.alternate and exchange.alternate not in self.exchanges:
                return
            exchange = self.exchanges.get(exchange.alternate)

    def _bound(self, exchange: Exchange | None, routing_key: str, headers: Headers) -> tuple[str, ...]:
        """Return the queues that the bindings of one exchange match."""
        if exchange is None:
            return (routing_key,) if routing_key in self.queue_names else ()
        if exchange.type == "headers":
            return tuple(dict.fromkeys(exchange.queues_by_headers(headers())))
        return tuple(dict.fromkeys(exchange.queues(routing_key)))

    def get(self, name: str) -> Exchange:
        """Return the exchange of this name.

        Raises:
            NotFound: there is none.
        """
        exchange = self.exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange {name!r}: declare it first", exchange=name)
        return exchange

    def check_declare(self, name: str, type: str, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> bool:
        """Return True if the exchange must be created.

        Raises:
            RequestError: unknown type, the default exchange, or an alternate exchange that is not a name.
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
        properties = {"type": type, "durable": durable, "auto_delete": auto_delete, ALTERNATE_EXCHANGE: alternate}
        for key, value in properties.items():
            have = old.arguments.get(key) if key == ALTERNATE_EXCHANGE else getattr(old, key)
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
        exchange = self.exchanges.pop(name, None)
        if exchange is not None:
            for bound in exchange.bindings.values():
                for queue, bindings in bound.items():
                    self._count(queue, -len(bindings))
        self.changed()

    def add_queue(self, name: str, arguments: Mapping[str, Any] | None = None) -> None:
        self.queue_names.add(name)
        self.filters.add(name, arguments or {})
        self.changed()

    def remove_queue(self, name: str) -> list[tuple[str, str, str]]:
        """Remove a queue and its bindings; return these as (exchange, routing key, identity)."""
        removed_bindings = [
            (exchange, key, self.exchanges[exchange].identity(arguments))
            for queue, exchange, key, arguments in self.bindings()
            if queue == name
        ]
        for exchange, key, _identity in removed_bindings:
            self._count(name, -self.exchanges[exchange].remove(name, key))
        self.queue_names.discard(name)
        self.filters.remove(name)
        self.changed()
        return removed_bindings

    def check_binding(self, exchange: str, arguments: dict[str, Any]) -> None:
        """Check the arguments of a binding.

        Raises:
            NotFound: no such exchange.
            RequestError: a headers exchange can't use them.
        """
        if self.get(exchange).type == "headers":
            header_match.check(arguments)

    def binding(self, queue: str, exchange: str, routing_key: str, identity: str) -> dict[str, Any] | None:
        """Return the arguments of a binding; None if there is no such binding."""
        declared = self.exchanges.get(exchange)
        return None if declared is None else declared.bindings.get(routing_key, {}).get(queue, {}).get(identity)

    def is_bound(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> bool:
        """Return True if there is this binding; at a headers exchange, with these arguments."""
        identity = self.get(exchange).identity(arguments)
        return self.binding(queue, exchange, routing_key, identity) is not None

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        declared = self.get(exchange)
        bindings = declared.add(queue, routing_key)
        before = len(bindings)
        bindings[declared.identity(arguments)] = arguments
        self._count(queue, len(bindings) - before)
        self.changed()

    def unbind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        """Remove a binding; at a headers exchange, the one with these arguments."""
        declared = self.get(exchange)
        bindings = declared.bindings.get(routing_key, {}).get(queue, {})
        if bindings.pop(declared.identity(arguments), None) is not None:
            self._count(queue, -1)
        if not bindings:
            declared.remove(queue, routing_key)
        self.changed()

    def _count(self, queue: str, more: int) -> None:
        self.binding_count += more
        self.bindings_of[queue] += more
        if not self.bindings_of[queue]:
            del self.bindings_of[queue]

    def bindings(self) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
        """Yield every binding as (queue, exchange, routing key, arguments).

        The caller may change bindings during the iteration.
        """
        for exchange in list(self.exchanges.values()):
            for key, bound in list(exchange.bindings.items()):
                for queue, bindings in list(bound.items()):
                    for arguments in list(bindings.values()):
                        yield queue, exchange.name, key, arguments

    def definition_of(self, queue: str, *more: RouteBinding) -> QueueDefinition:
        """Return the queue's bindings and filter, with ``more`` bindings added."""
        bindings = [
            RouteBinding(exchange.name, exchange.type, key, arguments)
            for exchange in self.exchanges.values()
            for key, bound in exchange.bindings.items()
            for arguments in bound.get(queue, {}).values()
        ]
        return QueueDefinition(queue, [*bindings, *more], self.filters.get(queue))

    def filter_of(self, queue: str) -> str:
        """Return the queue's filter over metadata headers, as RFC 0001 defines a queue."""
        return self.definition_of(queue).text

    def filter_size(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> int:
        """Return the size of the queue's filter in bytes, with this binding added."""
        binding = RouteBinding(exchange, self.get(exchange).type, routing_key, arguments)
        return len(self.definition_of(queue, binding).text.encode())
