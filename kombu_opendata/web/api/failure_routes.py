"""What failed and was not handled yet."""

from __future__ import annotations

from fastapi import APIRouter

from ..reports.failures import Asked, Failures, Hours, failures
from ..visit import AVisit

router = APIRouter(tags=["failures"])


@router.get("/failures")
async def list_failures(
    visit: AVisit,
    by: str = "task,exception",
    task: str = "",
    exception: str = "",
    queue: str = "",
    reason: str = "",
    worker: str = "",
    where: str = "",
    hours: Hours = 0,
    after: str | None = None,
) -> Failures:
    """A page of failures, the newest first, the groups of all, and when tasks failed.

    ``by`` has some of task, exception, queue, reason and worker, with commas; with ``hours``, only those of the
    last hours.
    """
    asked = Asked(task, exception, queue, reason, worker, where, hours)
    return await failures(visit.broker, visit.site.masking, asked, tuple(by.split(",")), after)
