"""Report of the broker's background work: replays, and staged Spark jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...errors import RequestError
from ...queue_client.message_models import moment
from ...staging.job import JobInfo
from ..brokers import UserBroker

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


async def replays(broker: UserBroker, *, after: str = "") -> ReplayReport:
    """Return all replays, and a page of the jobs after this id."""
    cursors = await broker.recent("replays", 1.0, broker.client.replay_progress)
    rows = sorted((replay_of(one) for one in cursors), key=lambda one: (one.state == "done", one.queue))
    try:
        page = await broker.recent(("jobs", after), 1.0, lambda: broker.client.list_staged_jobs(after, limit=MAX_JOBS))
    except RequestError as exc:  # a store in memory has no jobs, and not every user may see them
        return ReplayReport(tuple(rows), (), None, str(exc))
    jobs = tuple(job_of(one) for one in page.items)
    return ReplayReport(tuple(rows), jobs, page.next, "")


def replay_of(cursor: Mapping[str, Any]) -> ReplayRow:
    """Return the row of a routing cursor that the broker reported."""
    total, examined = cursor["end"] - cursor["start"], cursor["position"] - cursor["start"]
    rate = float(cursor["rate"])
    seconds_left = None if cursor["done"] or rate <= 0 else (total - examined) / rate
    return ReplayRow(
        cursor["queue"],
        _state(cursor),
        1.0 if cursor["done"] or total <= 0 else min(examined / total, 1.0),
        cursor["seen"],
        cursor["routed"],
        rate,
        seconds_left,
        cursor["selector"],
        cursor["error"],
        moment(cursor["started_at_ms"]),
        moment(cursor["changed_at_ms"]),
    )


def _state(cursor: Mapping[str, Any]) -> str:
    if cursor["done"]:
        return "done"
    return "failing" if cursor["error"] else "waiting" if cursor["waiting"] else "running"


def job_of(job: JobInfo) -> SparkJob:
    """Return the row of a job that the broker reported."""
    queues = tuple(
        JobQueue(name, queue.routed, queue.waiting, queue.done, queue.failed, queue.removed)
        for name, queue in sorted(job.queues.items())
    )
    ended = (
        sum(queue.done + queue.failed + queue.removed for queue in queues) + job.unroutable + job.damaged - job.running
    )
    total = sum(queue.routed for queue in queues) + job.rows - job.routed + job.unroutable + job.damaged
    return SparkJob(
        job.job_id,
        job.state,
        job.rows,
        job.bytes,
        job.routed,
        job.unroutable,
        job.damaged,
        job.done,
        job.failed,
        job.running,
        1.0 if job.has_ended else _share(max(ended, 0), total),
        _share(job.routed, job.rows),
        "" if job.blocked is None else str(job.blocked),
        moment(job.committed_at_ms),
        queues,
    )


def _share(part: int, whole: int) -> float:
    return min(part / whole, 1.0) if whole else 1.0
