"""View of failures."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports.failures import GROUPS, Asked, Hours, failures
from ..reports.filters import check_filter
from ..visit import AVisit
from .view import Shown, view

router = APIRouter(include_in_schema=False)


@view(router, "/failed", "failed.html")
async def show(
    visit: AVisit,
    by: str = "task,exception",
    task: str = "",
    exception: str = "",
    queue: str = "",
    reason: str = "",
    worker: str = "",
    where: str = "",
    hours: Hours = 0,
    after: str = "",
) -> Shown:
    """Return groups, the times of the failures, and a page of failures."""
    check = check_filter(where)
    filters = Asked(task, exception, queue, reason, worker, where if check.is_valid else "", hours)
    report = await failures(visit.broker, visit.site.masking, filters, tuple(by.split(",")), after or None)
    return {"failures": report, "check": check, "where": where, "choices": GROUPS}
