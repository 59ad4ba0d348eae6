"""View of the broker's background work: replays, and staged Spark jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...errors import RequestError
from ...json_values import moment
from ...protocol.messages import JobInfo
from ..reports.wire_structs import copied
from ..request_context import AVisit
from .view import Views

VIEWS = Views("replays")
#: jobs of a page
MAX_JOBS = 50


@dataclass(frozen=True)
class ReplayRow:
    """The newest replay of a queue.

    Attributes:
        state: ``running``, ``waiting`` (the queue is full or paused), ``failing`` (see ``error``) or ``done``.
        share: the progress, 0 to 1.
        examined, put_in: messages examined, and routed to the queue.
        per_second: messages examined per second.
        seconds_left: an estimate; None if unknown.
        where: the filter that messages had to match; empty if there is none.
        error: the error of the last step.
    """

    queue: str
    state: str
    share: float
    examined: int
    put_in: int
    per_second: float
    seconds_left: float | None
    where: str
    error: str
    started_at: datetime | None
    changed_at: datetime | None


@dataclass(frozen=True)
class JobQueue:
    """The messages of a job in one queue, counted by state."""

    queue: str
    routed: int
    waiting: int
    done: int
    failed: int
    removed: int


@dataclass(frozen=True)
class SparkJob:
    """A staged job: rows of a Spark frame that became messages in one commit.

    Attributes:
        state: ``routing`` (its rows are routed to queues), ``routed`` or ``settled``.
        routed: rows that were routed, or matched no queue.
        running: tasks that have not ended although their messages are done.
        share: the share of rows that have ended, 0 to 1.
        routed_share: the share of rows that were routed, 0 to 1.
        blocked: the reason why its rows can't be routed now; empty if they can.
        damaged: rows that could not be read.
    """

    id: str
    state: str
    rows: int
    bytes: int
    routed: int
    unroutable: int
    damaged: int
    done: int
    failed: int
    running: int
    share: float
    routed_share: float
    blocked: str
    committed_at: datetime | None
    queues: tuple[JobQueue, ...]


@dataclass(frozen=True)
class ReplayReport:
    """Replays, the running ones first; and a page of staged jobs, by id.

    Attributes:
        next: the id after which the next page of jobs begins; None on the last one.
        jobs_refused: the reason why the broker does not show jobs.
    """

    replays: tuple[ReplayRow, ...]
    jobs: tuple[SparkJob, ...]
    next: str | None
    jobs_refused: str


@VIEWS.view("/replays", "replays.html")
async def list_replays(visit: AVisit, after: str = "") -> ReplayReport:
    """Return all replays, and at most 50 staged jobs; pass the `next` of a page as the `after` of the following one."""
    client = visit.broker.client
    cursors = await visit.broker.recent("replays", 1.0, client.replay_progress)
    rows = tuple(sorted(map(_replay, cursors), key=lambda row: (row.state == "done", row.queue)))
    try:
        page = await visit.broker.recent(("jobs", after), 1.0, lambda: client.list_jobs(after, limit=MAX_JOBS))
    except RequestError as exc:  # a store in memory has no jobs, and not every user may see them
        return ReplayReport(rows, (), None, str(exc))
    return ReplayReport(rows, tuple(map(_job, page.items)), page.next, "")


def _replay(cursor: Mapping[str, Any]) -> ReplayRow:
    total, examined = cursor["end"] - cursor["start"], cursor["position"] - cursor["start"]
    rate, is_done = float(cursor["rate"]), cursor["done"]
    state = "failing" if cursor["error"] else "waiting" if cursor["waiting"] else "running"
    return ReplayRow(
        queue=cursor["queue"],
        state="done" if is_done else state,
        share=1.0 if is_done else _share(examined, total),
        examined=cursor["seen"],
        put_in=cursor["routed"],
        per_second=rate,
        seconds_left=None if is_done or rate <= 0 else (total - examined) / rate,
        where=cursor["selector"],
        error=cursor["error"],
        started_at=moment(cursor["started_at_ms"]),
        changed_at=moment(cursor["changed_at_ms"]),
    )


def _job(job: JobInfo) -> SparkJob:
    queues = job.queues.values()
    dropped = job.unroutable + job.damaged
    ended = sum(queue.done + queue.failed + queue.removed for queue in queues) + dropped - job.running
    total = sum(queue.routed for queue in queues) + job.rows - job.routed + dropped
    return copied(
        SparkJob,
        job,
        id=job.job_id,
        share=1.0 if job.has_ended else _share(max(ended, 0), total),
        routed_share=_share(job.routed, job.rows),
        blocked="" if job.blocked is None else str(job.blocked),
        queues=tuple(copied(JobQueue, counts, queue=name) for name, counts in sorted(job.queues.items())),
    )


def _share(part: int, whole: int) -> float:
    return min(part / whole, 1.0) if whole > 0 else 1.0
