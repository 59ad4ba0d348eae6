"""Routes of exchanges, their bindings, and a test of routing."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ..reports import exchanges as reports
from ..visit import AVisit

router = APIRouter(tags=["exchanges"])
_Headers = Annotated[str, Query(description="The message's headers: `name=text` or `name:=JSON`, one in each line.")]


@router.get("/exchanges")
async def list_exchanges(visit: AVisit, search: str = "", page: int = 1) -> reports.Exchanges:
    """Return a page of exchanges, by name."""
    return await reports.exchanges(visit.broker, search=search, page=page)


@router.get("/exchange")
async def get_exchange(visit: AVisit, name: str, search: str = "", page: int = 1) -> reports.ExchangeRow:
    """Return an exchange and a page of its bindings. ``search`` applies to queues and routing keys."""
    return await reports.exchange(visit.broker, name, search=search, page=page)


@router.get("/exchanges/route")
async def find_route(
    visit: AVisit, name: str = "", routing_key: str = "", headers: _Headers = ""
) -> reports.RoutePreview:
    """Return the queues to which a message would be routed, without sending it.

    An empty name is the default exchange.
    """
    return await reports.route(visit.broker, name, routing_key, reports.headers_of(headers))
