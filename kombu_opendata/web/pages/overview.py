"""The first view."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports.overview import overview
from ..visit import AVisit
from .view import Shown, view

router = APIRouter()


@view(router, "/", "overview.html")
async def show(visit: AVisit, search: str = "", sort: str = "name", page: int = 1) -> Shown:
    """What needs attention, totals, every queue."""
    return {"overview": await overview(visit.broker, search=search, sort=sort, page=page)}
