"""Actions on Spark jobs: cancel, retry, delete."""

from __future__ import annotations

from pydantic import Field

from ...protocol import messages as m
from ...readable_text import counted
from ..user_clients import UserBroker
from .action import ActionOutcome, Parameters, Preview, action
from .failure_actions import retry_outcome


class OnJob(Parameters):
    """An action on a Spark job."""

    job_id: str = Field(title="Job", min_length=1)


@action("cancel-job", "Cancel the job", m.CancelJob, "job_id", is_dangerous=True)
class CancelJobAction(OnJob):
    async def effect_on(self, broker: UserBroker) -> Preview:
        job = await broker.client.get_job(self.job_id)
        waiting = job.tasks.waiting
        text = f"Up to {counted(waiting, 'waiting task')} of {self.job_id} will be removed. Those that run continue."
        return Preview(text, waiting) if not job.has_ended else Preview("The job has ended.", 0, is_possible=False)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        done = await broker.client.cancel_job(self.job_id)
        text = f"{counted(done.dropped, 'task')} removed; {done.running:,} continue."
        counts = {"dropped": done.dropped, "running": done.running, "ended": done.ended}
        return ActionOutcome(text, counts, "spark-job", {"id": self.job_id})


@action("retry-job", "Retry failed tasks", m.RetryJob, "job_id", is_long=True)
class RetryJobAction(OnJob):
    async def effect_on(self, broker: UserBroker) -> Preview:
        failed = (await broker.client.get_job(self.job_id)).tasks.retryable
        text = f"{counted(failed, 'failed task')} of {self.job_id} will run again, in the same job."
        return Preview(text, failed) if failed else Preview("No task can run again.", 0, is_possible=False)

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        return retry_outcome(await broker.client.retry_job(self.job_id), "spark-job", {"id": self.job_id})


@action("delete-job", "Delete the job", m.DeleteJob, "job_id", is_dangerous=True)
class DeleteJobAction(OnJob):
    effect = (
        "The record of {job_id} will be deleted; its messages stay. A program can then submit a job of this id again."
    )

    async def perform(self, broker: UserBroker) -> ActionOutcome:
        await broker.client.delete_job(self.job_id)
        return ActionOutcome(f"The job {self.job_id} is deleted.", {}, "spark-jobs")
