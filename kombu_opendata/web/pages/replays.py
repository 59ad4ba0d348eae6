"""View of replays and staged Spark jobs."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports import replays as reports
from ..visit import AVisit
from .view import Shown, view

router = APIRouter()


@view(router, "/replays", "replays.html")
async def show(visit: AVisit, after: str = "") -> Shown:
    """Return replays and staged jobs, with their progress."""
    return {"replays": await reports.replays(visit.broker, after=after), "after": after}
