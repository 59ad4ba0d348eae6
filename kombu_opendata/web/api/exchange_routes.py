"""Exchanges, their bindings, and where a message would go."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ..reports import exchanges as reports
from ..visit import AVisit

router = APIRouter(tags=["exchanges"])
_Headers = Annotated[str, Query(description="The message's headers: `name=text` or `name:=JSON`, one in each line.")]


@router.get("/exchanges")
async def list_exchanges(visit: AVisit, search: str = "", page: int = 1) -> reports.Exchanges:
    """A page of exchanges, by name."""
    return await reports.exchanges(visit.broker, search=search, page=page)


@router.get("/exchange")
async def get_exchange(visit: AVisit, name: str, search: str = "", page: int = 1) -> reports.ExchangeRow:
    """An exchange, and a page of its bindings. The search is in queues and routing keys."""
    return await reports.exchange(visit.broker, name, search=search, page=page)


@router.get("/exchanges/route")
async def find_route(
    visit: AVisit, name: str = "", routing_key: str = "", headers: _Headers = ""
) -> reports.RoutePreview:
    """Which queues would get a message; nothing is sent. An empty name is the default exchange."""
    return await reports.route(visit.broker, name, routing_key, reports.headers_of(headers))
