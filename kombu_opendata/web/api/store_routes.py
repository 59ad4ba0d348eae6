"""The broker's process and its store."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports import store as reports
from ..visit import AVisit

router = APIRouter(tags=["store"])


@router.get("/store")
async def get_store(visit: AVisit) -> reports.StoreReport:
    """Sizes, upkeep, standbys and limits; needs the role monitor where users log in."""
    return await reports.store(visit.broker)
