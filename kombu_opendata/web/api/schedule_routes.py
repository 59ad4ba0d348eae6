"""Route of delayed messages and periodic tasks."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports import schedules as reports
from ..visit import AVisit

router = APIRouter(tags=["schedules"])


@router.get("/schedules")
async def get_schedules(visit: AVisit, hours: int = 24, queue: str = "") -> reports.Schedules:
    """Return the due times of delayed messages within 1, 6, 24 or 168 hours, and the periodic tasks of beat.

    ``queue`` limits the delayed messages to one queue.
    """
    return await reports.schedules(visit.broker, hours=hours, queue=queue)
