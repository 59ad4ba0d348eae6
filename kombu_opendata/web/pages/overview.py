"""The first view."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from ..reports.attention.gather import attention
from ..reports.overview import overview
from ..visit import AVisit
from .view import Shown, view

router = APIRouter()

#: how long the page waits for the count of failures, which comes with the next update otherwise
_PATIENCE = 0.05


@view(router, "/", "overview.html")
async def show(visit: AVisit, search: str = "", sort: str = "name", page: int = 1, control: bool = False) -> Shown:
    """What needs attention, totals, every queue."""
    shown, found = await asyncio.gather(
        overview(visit.broker, search=search, sort=sort, page=page, control=control, patience=_PATIENCE),
        attention(visit.broker),
    )
    return {"overview": shown, "findings": found}
