"""Views of staged Spark jobs: their tasks by state, their progress, and what blocks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...errors import RequestError
from ...protocol.messages import JobInfo
from ..reports.wire_structs import WireStruct
from ..request_context import AVisit
from .view import Views

VIEWS = Views("spark jobs")
#: jobs of a page
MAX_JOBS = 50


@dataclass(frozen=True)
class SparkJobs:
    """A page of jobs, by id.

    Attributes:
        next: the id after which the next page begins; None on the last one.
        refused: the reason why the broker does not show jobs.
    """

    jobs: tuple[Annotated[JobInfo, WireStruct()], ...]
    next: str | None
    refused: str


@VIEWS.view("/spark-jobs", "spark_jobs.html")
async def list_spark_jobs(visit: AVisit, after: str = "") -> SparkJobs:
    """Return at most 50 Spark jobs; pass the `next` of a page as the `after` of the following one."""
    client = visit.broker.client
    try:
        page = await visit.broker.recent(("jobs", after), 1.0, lambda: client.list_jobs(after, limit=MAX_JOBS))
    except RequestError as exc:  # a store in memory has no jobs, and not every user may see them
        return SparkJobs((), None, str(exc))
    return SparkJobs(tuple(page.items), page.next, "")


@VIEWS.view("/spark-job", "spark_job.html")
async def get_spark_job(visit: AVisit, id: str) -> Annotated[JobInfo, WireStruct()]:
    """Return a Spark job, with its messages by queue and its tasks by state."""
    return await visit.broker.recent(("job", id), 1.0, lambda: visit.broker.client.get_job(id))
