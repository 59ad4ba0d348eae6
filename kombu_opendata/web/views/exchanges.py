"""Views of exchanges, of one exchange with its bindings, and of a test of routing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query

from ...errors import NotFound, RequestError
from ...json_values import named_value
from ...protocol.queue_arguments import ALTERNATE_EXCHANGE
from ...queue_client.queues import Binding, ExchangeInfo
from ..reports.paging import Paged, paged
from ..request_context import AVisit
from ..user_clients import UserBroker
from .view import Context, Views

VIEWS = Views("exchanges")
_Headers = Annotated[str, Query(description="The message's headers: `name=text` or `name:=JSON`, one in each line.")]


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


@VIEWS.view("/exchanges", "exchanges.html")
async def list_exchanges(visit: AVisit, search: str = "", page: int = 1) -> Exchanges:
    """Return a page of exchanges, by name."""
    exchanges = await _exchanges(visit.broker)
    matching = [exchange for exchange in exchanges if search.lower() in exchange.name.lower()]
    return Exchanges(paged(matching, page), search)


@VIEWS.view("/exchange", "exchange.html")
async def get_exchange(visit: AVisit, name: str, search: str = "", page: int = 1) -> ExchangeRow:
    """Return an exchange and a page of its bindings. ``search`` applies to queues and routing keys."""
    info = next((exchange for exchange in await _exchanges(visit.broker) if exchange.name == name), None)
    if info is None:
        raise NotFound(f"no exchange {name!r}", exchange=name)
    all_bindings = await visit.broker.recent("bindings", 1.0, visit.broker.client.list_bindings)
    needle = search.lower()
    bindings = [
        binding
        for binding in all_bindings
        if binding.exchange == name and (needle in binding.queue.lower() or needle in binding.routing_key.lower())
    ]
    bindings.sort(key=lambda binding: (binding.routing_key, binding.queue))
    alternate = str(info.arguments.get(ALTERNATE_EXCHANGE, ""))
    return ExchangeRow(info, alternate, name.startswith("amq."), paged(bindings, page), search)


async def _exchanges(broker: UserBroker) -> list[ExchangeInfo]:
    return await broker.recent("exchanges", 1.0, broker.client.list_exchanges)


async def _show_route(visit: AVisit, name: str = "", routing_key: str = "", headers: str = "") -> Context:
    """Return the route, or in its place the error, for the page with the form."""
    try:
        return {"report": await find_route(visit, name, routing_key, headers), "problem": ""}
    except RequestError as exc:
        return {"report": None, "problem": str(exc)}


@VIEWS.view("/exchanges/route", "route.html", page=_show_route)
async def find_route(visit: AVisit, name: str = "", routing_key: str = "", headers: _Headers = "") -> RoutePreview:
    """Return the queues to which a message would be routed, without sending it.

    An empty name is the default exchange.
    """
    try:
        values = dict(named_value(line.strip(), "header") for line in headers.splitlines() if line.strip())
    except ValueError as exc:
        raise RequestError(str(exc), value=headers) from exc
    queues = await visit.broker.client.test_routing(name, routing_key, values)
    return RoutePreview(name, routing_key, values, tuple(sorted(queues)))
