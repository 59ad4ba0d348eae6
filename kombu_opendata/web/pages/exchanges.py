"""Views of exchanges, of one exchange, and of a test of routing."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from ...errors import RequestError
from ..reports import exchanges as reports
from ..visit import AVisit
from .view import Shown, view

router = APIRouter()


@view(router, "/exchanges", "exchanges.html")
async def show(visit: AVisit, search: str = "", page: int = 1) -> Shown:
    """Return all exchanges."""
    inputs = {"name": "", "routing_key": "", "headers": ""}
    return {"exchanges": await reports.exchanges(visit.broker, search=search, page=page), "given": inputs}


@view(router, "/exchange", "exchange.html")
async def show_one(visit: AVisit, name: str, search: str = "", page: int = 1) -> Shown:
    """Return an exchange and its bindings."""
    inputs = {"name": name, "routing_key": "", "headers": ""}
    return {"exchange": await reports.exchange(visit.broker, name, search=search, page=page), "given": inputs}


@view(router, "/exchanges/route", "route.html")
async def show_route(visit: AVisit, name: str = "", routing_key: str = "", headers: str = "") -> Shown:
    """Return the queues to which a message would be routed, without sending it. Errors are shown beside the form."""
    context: dict[str, Any] = {"given": {"name": name, "routing_key": routing_key, "headers": headers}}
    try:
        return context | {"route": await reports.route(visit.broker, name, routing_key, reports.headers_of(headers))}
    except RequestError as exc:
        return context | {"route": None, "problem": str(exc)}
