"""Routes of workers."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports import workers as reports
from ..visit import AVisit

router = APIRouter(tags=["workers"])


@router.get("/workers")
async def list_workers(visit: AVisit, search: str = "", page: int = 1) -> reports.WorkerReport:
    """Return a page of the workers, and all other clients of the broker."""
    return await reports.workers(visit.broker, search=search, page=page)


@router.get("/worker")
async def get_worker(visit: AVisit, id: str) -> reports.WorkerDetails:
    """Return a worker, and at most 100 of the messages that it holds or runs."""
    return await reports.worker(visit.broker, id)
