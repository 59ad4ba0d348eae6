"""Route of replays and staged Spark jobs."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports import replays as reports
from ..visit import AVisit

router = APIRouter(tags=["replays"])


@router.get("/replays")
async def list_replays(visit: AVisit, after: str = "") -> reports.ReplayReport:
    """Return all replays, and at most 50 staged jobs; pass the `next` of a page as the `after` of the following one."""
    return await reports.replays(visit.broker, after=after)
