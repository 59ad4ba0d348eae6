"""Queues."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports.overview import Overview, overview
from ..visit import AVisit

router = APIRouter(tags=["queues"])


@router.get("/queues")
async def list_queues(
    visit: AVisit, search: str = "", sort: str = "name", page: int = 1, control: bool = False
) -> Overview:
    """A page of queues, and the totals of all."""
    return await overview(visit.broker, search=search, sort=sort, page=page, control=control)
