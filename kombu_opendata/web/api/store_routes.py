"""Route of the broker's process and its store."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports import store as reports
from ..visit import AVisit

router = APIRouter(tags=["store"])


@router.get("/store")
async def get_store(visit: AVisit) -> reports.StoreReport:
    """Return sizes, maintenance, standbys and limits; requires the role monitor if the broker has users."""
    return await reports.store(visit.broker)
