"""Views of a user's background jobs."""

from __future__ import annotations

from ...errors import NotFound
from ..error_reports import described
from ..jobs import BackgroundJob
from ..visit import AVisit
from .view import Views

VIEWS = Views("jobs")


@VIEWS.view("/jobs", "jobs.html")
async def list_jobs(visit: AVisit) -> list[BackgroundJob]:
    """Return your jobs of the last hour, the newest first."""
    return visit.site.jobs.of(visit.user)


@VIEWS.view("/jobs/{id}", "job_notice.html")
async def get_job(visit: AVisit, id: int) -> BackgroundJob:
    """Return one of your jobs."""
    job = visit.site.jobs.get(visit.user, id)
    if job is None:
        raise NotFound(f"there is no job {id} (any more)", job=id)
    return job


@VIEWS.view("/jobs/{id}/cancel", methods=["POST"], responses=described(413))
async def cancel_job(visit: AVisit, id: int) -> BackgroundJob:
    """Cancel a job after its current step; its effects so far remain."""
    job = await get_job(visit, id)
    visit.site.jobs.cancel(job)
    return job
