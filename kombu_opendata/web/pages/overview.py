"""View of the overview, the first one."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter

from ..reports.attention import attention
from ..reports.overview import overview
from ..visit import AVisit
from .view import Shown, view

router = APIRouter()

#: seconds to wait for the count of failures; a later count is shown with the next update
_PATIENCE = 0.05


@view(router, "/", "overview.html")
async def show(visit: AVisit, search: str = "", sort: str = "name", page: int = 1, control: bool = False) -> Shown:
    """Return findings, totals, and a page of queues."""
    report, findings = await asyncio.gather(
        overview(visit.broker, search=search, sort=sort, page=page, control=control, patience=_PATIENCE),
        attention(visit.broker),
    )
    return {"overview": report, "findings": findings}
