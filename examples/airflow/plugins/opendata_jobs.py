"""Operator and sensor of Apache Airflow 3 for jobs: submit one, and wait for its tasks without a worker's slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent
from msgspec.structs import asdict

from kombu_opendata import AsyncQueueClient, ConnectionLost, NotFound, find_job

#: pause of the triggerer before it connects again to a broker that does not answer
RECONNECT_SECONDS = 10


class JobTrigger(BaseTrigger):
    """Waits in the triggerer until each task of a job has ended; an outage of the broker only delays the end."""

    def __init__(self, broker_url: str, job_id: str) -> None:
        super().__init__()
        self.broker_url = broker_url
        self.job_id = job_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "opendata_jobs.JobTrigger", {"broker_url": self.broker_url, "job_id": self.job_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        while True:
            try:
                async with AsyncQueueClient(self.broker_url, name="airflow") as client:
                    job = await client.wait_job(self.job_id)
            except ConnectionLost as exc:
                self.log.warning("%s", exc)
                await asyncio.sleep(RECONNECT_SECONDS)
            except NotFound as exc:
                yield TriggerEvent({"error": str(exc)})
                return
            else:
                yield TriggerEvent({"tasks": asdict(job.tasks), "failed": job.tasks.failed})
                return


class JobSensor(BaseSensorOperator):
    """Waits until each task of a job has ended, and returns the number of tasks in each state.

    Args:
        broker_url: the broker, such as ``{{ conn.opendata.get_uri() }}``.
        job_id: the id of a job that any program has submitted.
        allowed_failures: number of tasks that may end without success; more fail the sensor.
        deferrable: wait in the triggerer; otherwise poll every ``poke_interval`` seconds.
    """

    template_fields = ("broker_url", "job_id")

    def __init__(
        self, *, broker_url: str, job_id: str, allowed_failures: int = 0, deferrable: bool = True, **options: Any
    ) -> None:
        super().__init__(**options)
        self.broker_url = broker_url
        self.job_id = job_id
        self.allowed_failures = allowed_failures
        self.deferrable = deferrable

    def execute(self, context: Mapping[str, Any]) -> Any:
        if self.deferrable:
            trigger = JobTrigger(self.broker_url, self.job_id)
            self.defer(trigger=trigger, method_name="check", timeout=timedelta(seconds=self.timeout))
        super().execute(context)
        job = find_job(self.job_id, broker_url=self.broker_url).status()
        return self.check(context, {"tasks": asdict(job.tasks), "failed": job.tasks.failed})

    def poke(self, context: Mapping[str, Any]) -> bool:
        return find_job(self.job_id, broker_url=self.broker_url).status().has_ended

    def check(self, context: Mapping[str, Any], event: dict[str, Any]) -> dict[str, int]:
        """Return the counts of an ended job's tasks; fail if too many did not succeed."""
        if error := event.get("error"):
            raise AirflowFailException(error)
        tasks: dict[str, int] = {state: count for state, count in event["tasks"].items() if count}
        if event["failed"] > self.allowed_failures:
            raise RuntimeError(f"{event['failed']} tasks of job {self.job_id!r} did not succeed: {tasks}")
        return tasks


class JobOperator(JobSensor):
    """Submits a job and waits for it as :class:`JobSensor`.

    A retry of the operator finds the job by its id: it submits nothing again, and retries the failed tasks.

    Args:
        submit: called with ``job_id`` and ``broker_url``; submits the job, for example by ``submit_tasks``.
        job_id: by default, that of the task instance.
    """

    def __init__(
        self,
        *,
        submit: Callable[..., Any],
        job_id: str = "{{ ti.dag_id }}/{{ ti.task_id }}/{{ ti.run_id }}/{{ ti.map_index }}",
        **options: Any,
    ) -> None:
        super().__init__(job_id=job_id, **options)
        if self.mode == "reschedule" and not self.deferrable:
            raise ValueError("each poll in mode 'reschedule' would retry the failed tasks: use deferrable=True")
        self.submit = submit

    def execute(self, context: Mapping[str, Any]) -> Any:
        try:
            find_job(self.job_id, broker_url=self.broker_url).retry()
        except NotFound:
            self.submit(job_id=self.job_id, broker_url=self.broker_url)
        return super().execute(context)
