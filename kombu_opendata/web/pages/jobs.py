"""View of a user's jobs, and the notice of a running job."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from ...errors import NotFound
from ..jobs import BackgroundJob
from ..visit import AVisit, Visit
from .view import Shown, frame, view

router = APIRouter(include_in_schema=False)


@view(router, "/jobs", "jobs.html")
async def show(visit: AVisit) -> Shown:
    """Return the jobs of the last hour."""
    return {"jobs": visit.site.jobs.of(visit.user)}


@router.get("/jobs/{id}")
async def notice(visit: AVisit, id: int) -> Response:
    """Return a job's notice, which refreshes while the job is running."""
    return job_notice(visit, _job(visit, id))


@router.post("/jobs/{id}/cancel")
async def cancel(visit: AVisit, id: int) -> Response:
    """Cancel a job after its current step."""
    job = _job(visit, id)
    visit.site.jobs.cancel(job)
    return HTMLResponse("")


def job_notice(visit: Visit, job: BackgroundJob, *, is_new: bool = False) -> Response:
    """Return the notice of a job; a new one is added to the others."""
    context = frame(visit) | {"job": job, "is_new": is_new}
    return HTMLResponse(visit.site.renderer.page("job_notice.html", context))


def _job(visit: Visit, id: int) -> BackgroundJob:
    job = visit.site.jobs.get(visit.user, id)
    if job is None:
        raise NotFound(f"there is no job {id} (any more)", job=id)
    return job
