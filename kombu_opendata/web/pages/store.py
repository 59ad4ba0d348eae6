"""View of the broker's process and its store."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports import store as reports
from ..visit import AVisit
from .view import Shown, view

router = APIRouter()


@view(router, "/store", "store.html")
async def show(visit: AVisit) -> Shown:
    """Return sizes, maintenance, standbys and limits."""
    return {"store": await reports.store(visit.broker)}
