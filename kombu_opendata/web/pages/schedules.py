"""View of delayed messages and periodic tasks."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports import schedules as reports
from ..visit import AVisit
from .view import Shown, view

router = APIRouter()


@view(router, "/schedules", "schedules.html")
async def show(visit: AVisit, hours: int = 24, queue: str = "") -> Shown:
    """Return the due times of delayed messages, and the periodic tasks of beat."""
    return {"schedules": await reports.schedules(visit.broker, hours=hours, queue=queue), "spans": reports.SPANS}
