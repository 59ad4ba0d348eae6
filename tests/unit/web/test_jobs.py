"""Jobs: who sees them, how they end, how many there may be."""

from __future__ import annotations

import asyncio

import pytest

from kombu_opendata.errors import LimitExceeded, RetryLater
from kombu_opendata.web.actions.action import ActionOutcome, ActionProgress, Report
from kombu_opendata.web.jobs import MAX_ENDED, MAX_RUNNING, BackgroundJob, BackgroundJobs
from tests.support.waiting import turns


async def quick(report: Report) -> ActionOutcome:
    report(ActionProgress(1, 2))
    return ActionOutcome("done")


async def endless(_report: Report) -> ActionOutcome:
    await asyncio.Event().wait()
    return ActionOutcome("never")


async def refused(report: Report) -> ActionOutcome:
    report(ActionProgress(3, 9))
    raise RetryLater("3 of 9 were done")


async def ended(job: BackgroundJob) -> BackgroundJob:
    assert job.task is not None
    await asyncio.wait({job.task})
    return job


def test_how_jobs_end() -> None:
    async def run() -> None:
        jobs = BackgroundJobs()
        done = await ended(jobs.start("u", "Purge", "purge", {}, quick))
        assert (done.state, done.done, done.progress) == ("done", ActionOutcome("done"), ActionProgress(1, 2))
        failed = await ended(jobs.start("u", "Purge", "purge", {"queue": "q"}, refused))
        assert (failed.state, failed.error, failed.progress) == ("failed", "3 of 9 were done", ActionProgress(3, 9))
        cancelled = jobs.start("u", "Purge", "purge", {}, endless)
        await turns()
        jobs.cancel(cancelled)
        assert (await ended(cancelled)).state == "cancelled"
        assert [job.id for job in jobs.of("u")] == [cancelled.id, failed.id, done.id]

    asyncio.run(run())


def test_only_who_began_a_job_sees_it() -> None:
    async def run() -> None:
        jobs = BackgroundJobs()
        job = jobs.start("u", "Purge", "purge", {}, quick)
        assert jobs.get("u", job.id) is job
        assert jobs.get("v", job.id) is None
        assert jobs.of("v") == []
        await jobs.close()

    asyncio.run(run())


def test_a_user_has_a_bounded_number_of_jobs() -> None:
    async def run() -> None:
        jobs = BackgroundJobs()
        for _ in range(MAX_RUNNING):
            jobs.start("u", "Purge", "purge", {}, endless)
        with pytest.raises(LimitExceeded):
            jobs.start("u", "Purge", "purge", {}, endless)
        jobs.start("v", "Purge", "purge", {}, endless)
        await jobs.close()
        assert {job.state for job in jobs.of("u")} <= {"cancelled", "running"}
        for _ in range(MAX_ENDED + 5):
            await ended(jobs.start("w", "Purge", "purge", {}, quick))
        assert len(jobs.of("w")) <= MAX_ENDED + 1

    asyncio.run(run())
