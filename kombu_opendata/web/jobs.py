"""Background jobs: long actions that continue when the tab that started them is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Annotated, Any

from pydantic import Field

from ..errors import LimitExceeded, OpenDataError
from .actions.action import ActionOutcome, ActionProgress, Report

#: limit for a user's running jobs
MAX_RUNNING = 10
#: limits for a user's ended jobs that are kept: their number and their age
MAX_ENDED = 100
KEPT = timedelta(hours=1)


@dataclass
class BackgroundJob:
    """An action in the background.

    Attributes:
        action, subject: the action and its parameters, to start it again.
        task: the asyncio task that runs it.
        state: ``running``, ``done``, ``failed`` or ``cancelled``.
        error: the reason of a failure, with the progress made.
    """

    id: int
    title: str
    action: str
    subject: dict[str, Any]
    began_at: datetime
    user: Annotated[str, Field(exclude=True)]
    state: str = "running"
    progress: ActionProgress | None = None
    done: ActionOutcome | None = None
    error: str = ""
    ended_at: datetime | None = None
    task: Annotated[Any, Field(exclude=True)] = field(default=None, repr=False)


class BackgroundJobs:
    """The jobs of all users of the web UI. They end with its process."""

    def __init__(self) -> None:
        self._jobs: dict[int, BackgroundJob] = {}
        self._numbers = count(1)

    def of(self, user: str) -> list[BackgroundJob]:
        """Return a user's jobs, the newest first."""
        self._forget()
        return [job for job in reversed(self._jobs.values()) if job.user == user]

    def get(self, user: str, id: int) -> BackgroundJob | None:
        """Return a job of this user; None if there is none with this id."""
        job = self._jobs.get(id)
        return job if job is not None and job.user == user else None

    def start(
        self,
        user: str,
        title: str,
        action: str,
        subject: dict[str, Any],
        work: Callable[[Report], Awaitable[ActionOutcome]],
    ) -> BackgroundJob:
        """Start a job; raise LimitExceeded if this user has as many running jobs as are permitted."""
        if sum(job.state == "running" for job in self.of(user)) >= MAX_RUNNING:
            raise LimitExceeded(
                f"{MAX_RUNNING} jobs of yours are running: wait for one, or cancel it", limit=MAX_RUNNING
            )
        job = BackgroundJob(next(self._numbers), title, action, subject, datetime.now(UTC), user)
        self._jobs[job.id] = job
        job.task = asyncio.create_task(_run(job, work))
        return job

    def cancel(self, job: BackgroundJob) -> None:
        """Cancel a job after its current step; its effects so far remain."""
        if job.task is not None:
            job.task.cancel()

    async def close(self) -> None:
        """Cancel all jobs."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None and not job.task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self) -> None:
        ended = [job for job in self._jobs.values() if job.ended_at is not None]
        oldest = datetime.now(UTC) - KEPT
        for place, job in enumerate(reversed(ended)):
            if place >= MAX_ENDED or (job.ended_at is not None and job.ended_at < oldest):
                del self._jobs[job.id]


async def _run(job: BackgroundJob, work: Callable[[Report], Awaitable[ActionOutcome]]) -> None:
    try:
        job.done = await work(lambda progress: setattr(job, "progress", progress))
        job.state = "done"
    except asyncio.CancelledError:
        job.state = "cancelled"
    except OpenDataError as exc:
        job.state = "failed"
        job.error = str(exc)
    except Exception as exc:
        job.state = "failed"
        job.error = f"Internal error: {exc}"
        raise
    finally:
        job.ended_at = datetime.now(UTC)
