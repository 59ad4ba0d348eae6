"""Route of failures that are not handled yet."""

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
    """Return a page of failures, the newest first, the groups of all failures, and the times of the failures.

    ``by`` has some of task, exception, queue, reason and worker, separated by commas; ``hours`` limits the result to
    the last hours.
    """
    filters = Asked(task, exception, queue, reason, worker, where, hours)
    return await failures(visit.broker, visit.site.masking, filters, tuple(by.split(",")), after)
