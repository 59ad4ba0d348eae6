"""Report of exchanges, their bindings, and a test of routing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import NotFound, RequestError
from ...protocol.argument_names import ALTERNATE_EXCHANGE
from ...queue_client.queue_models import Binding, ExchangeInfo
from ..brokers import UserBroker
from .paging import Paged, paged


@dataclass(frozen=True)
class Exchanges:
    """A page of exchanges, by name, without the default exchange, which needs no bindings."""

    exchanges: Paged[ExchangeInfo]
    search: str


@dataclass(frozen=True)
class ExchangeRow:
    """An exchange with its bindings.

    Attributes:
        alternate: the exchange that receives messages that no binding matches; empty if there is none.
        is_built_in: whether it always exists and can't be deleted.
    """

    info: ExchangeInfo
    alternate: str
    is_built_in: bool
    bindings: Paged[Binding]
    search: str


@dataclass(frozen=True)
class RoutePreview:
    """The queues to which a message would be routed; nothing was sent."""

    exchange: str
    routing_key: str
    headers: dict[str, Any]
    queues: tuple[str, ...]


async def exchanges(broker: UserBroker, *, search: str = "", page: int = 1) -> Exchanges:
    """Return a page of exchanges."""
    infos = await broker.recent("exchanges", 1.0, broker.client.list_exchanges)
    return Exchanges(paged([info for info in infos if search.lower() in info.name.lower()], page), search)


async def exchange(broker: UserBroker, name: str, *, search: str = "", page: int = 1) -> ExchangeRow:
    """Return one exchange.

    Raises:
        NotFound: there is no such exchange.
    """
    exchange_infos = await broker.recent("exchanges", 1.0, broker.client.list_exchanges)
    info = next((one for one in exchange_infos if one.name == name), None)
    if info is None:
        raise NotFound(f"no exchange {name!r}", exchange=name)
    bindings = await broker.recent("bindings", 1.0, broker.client.list_bindings)
    needle = search.lower()
    own_bindings = [
        one
        for one in bindings
        if one.exchange == name and (needle in one.queue.lower() or needle in one.routing_key.lower())
    ]
    own_bindings.sort(key=lambda one: (one.routing_key, one.queue))
    alternate = str(info.arguments.get(ALTERNATE_EXCHANGE, ""))
    return ExchangeRow(info, alternate, name.startswith("amq."), paged(own_bindings, page), search)


async def route(
    broker: UserBroker, name: str, routing_key: str = "", headers: Mapping[str, Any] | None = None
) -> RoutePreview:
    """Return the queues to which a message would be routed. An empty name is the default exchange.

    Raises:
        NotFound: there is no such exchange.
        RequestError: a header is not valid.
    """
    header_values = dict(headers or {})
    queues = await broker.client.test_routing(name, routing_key, header_values)
    return RoutePreview(name, routing_key, header_values, tuple(sorted(queues)))


def headers_of(text: str) -> dict[str, Any]:
    """Return the headers in lines of ``name=text`` and ``name:=JSON``.

    Raises:
        RequestError: a line has neither form.
    """
    return dict(_header(line.strip()) for line in text.splitlines() if line.strip())


def _header(line: str) -> tuple[str, Any]:
    name, separator, value = line.partition("=")
    if not separator or not name.rstrip(":"):
        raise RequestError(f"can't read the header {line!r}: write name=text, or name:=3 for a JSON value", value=line)
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise RequestError(f"the header {line!r} has no valid JSON after ':=': {exc}", value=line) from exc
