"""Routes of background jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import APIRouter

from ...errors import NotFound
from ..actions.action import ActionOutcome, ActionProgress
from ..jobs import BackgroundJob
from ..visit import AVisit
from .errors import described

router = APIRouter(tags=["jobs"])


@dataclass(frozen=True)
class BackgroundJobReport:
    """An action in the background; ``state`` is ``running``, ``done``, ``failed`` or ``cancelled``."""

    id: int
    title: str
    action: str
    subject: dict[str, Any]
    state: str
    progress: ActionProgress | None
    done: ActionOutcome | None
    error: str
    began_at: datetime
    ended_at: datetime | None


def job_report(job: BackgroundJob) -> BackgroundJobReport:
    """Return the API's report of a job."""
    return BackgroundJobReport(
        job.id, job.title, job.action, job.subject, job.state, job.progress, job.done, job.error, job.began_at,
        job.ended_at,
    )  # fmt: skip


@router.get("/jobs")
async def list_jobs(visit: AVisit) -> list[BackgroundJobReport]:
    """Return your jobs of the last hour, the newest first."""
    return [job_report(job) for job in visit.site.jobs.of(visit.user)]


@router.get("/jobs/{id}")
async def get_job(visit: AVisit, id: int) -> BackgroundJobReport:
    """Return one of your jobs."""
    return job_report(_job(visit, id))


@router.post("/jobs/{id}/cancel", responses=described(413))
async def cancel_job(visit: AVisit, id: int) -> BackgroundJobReport:
    """Cancel a job after its current step; its effects so far remain."""
    job = _job(visit, id)
    visit.site.jobs.cancel(job)
    return job_report(job)


def _job(visit: AVisit, id: int) -> BackgroundJob:
    job = visit.site.jobs.get(visit.user, id)
    if job is None:
        raise NotFound(f"there is no job {id} (any more)", job=id)
    return job
