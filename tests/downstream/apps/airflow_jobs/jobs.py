"""A DAG of jobs that need no Spark: one that it submits itself, and others that wait already."""

from datetime import datetime, timedelta

from airflow.sdk import dag
from opendata_jobs import JobOperator, JobSensor

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.protocol.envelope import encode_fields
from kombu_opendata.staging.batch_writer import BatchWriter

URL = "{{ conn.opendata.get_uri() }}"


def submit(job_id: str, broker_url: str) -> None:
    """Commit a job of three tasks."""
    with StagingClient(broker_url) as staging:
        writer = BatchWriter(staging.staging_target(), job_id, 0, 0)
        for number in range(3):
            envelope = encode_fields((b"%d" % number, "application/data", "binary", {}, {}, "", "own"))
            writer.add(envelope, {"exchange": "", "routing_key": "own", "priority": "0"}, routing_key="own")
        staging.commit_job(job_id, [writer.close()])


@dag(schedule=None, start_date=datetime(2026, 1, 1))
def jobs() -> None:
    own = JobOperator(task_id="own", submit=submit, broker_url=URL, retries=1, retry_delay=timedelta(0))
    polled = JobSensor(task_id="polled", broker_url=URL, job_id="given", deferrable=False, poke_interval=0.2)
    tolerant = JobSensor(task_id="tolerant", broker_url=URL, job_id="half", allowed_failures=1)
    strict = JobSensor(task_id="strict", broker_url=URL, job_id="half")
    missing = JobSensor(task_id="missing", broker_url=URL, job_id="never")
    own >> polled >> tolerant >> [strict, missing]


jobs()
