"""Views of workers, and of one worker."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports import workers as reports
from ..visit import AVisit
from .view import Shown, view

router = APIRouter()


@view(router, "/workers", "workers.html")
async def show(visit: AVisit, search: str = "", page: int = 1) -> Shown:
    """Return the workers with their messages, and all other clients."""
    return {"workers": await reports.workers(visit.broker, search=search, page=page)}


@view(router, "/worker", "worker.html")
async def show_one(visit: AVisit, id: str) -> Shown:
    """Return a worker and its messages."""
    return {"details": await reports.worker(visit.broker, id)}
