"""What a staged job counts of its tasks, with real workers: each way in which a task can end, and what comes after."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.serialization import dumps
from msgspec.structs import asdict

from kombu_opendata import QueueClient
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.protocol.envelope import SPARK_JOB, encode_envelope, metadata_headers
from kombu_opendata.protocol.messages import JobInfo
from kombu_opendata.staging.batch_writer import BatchWriter

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import children, wait_until
from ..support.workers import Worker, sender

PATIENCE_SECONDS = 60
ENDS = {
    "fine": "succeeded", "raises": "raised", "again": "raised", "ignores": "ignored", "replaced": "succeeded",
    "sends": "succeeded",
}  # fmt: skip


class Jobs:
    """The jobs of one broker, and its tasks."""

    def __init__(self, app: Celery, client: QueueClient) -> None:
        self.staging, self.client, self.app = StagingClient(client.connections.usable()), client, app

    def submit(self, job_id: str, tasks: Sequence[tuple[str, tuple[object, ...]]], **options: Any) -> JobInfo:
        """As Spark submits tasks of ``apps/outcomes.py``."""
        writer = BatchWriter(self.staging.staging_target(), job_id, 0, 0)
        for name, args in tasks:
            message = self.app.amqp.as_task_v2(str(uuid.uuid4()), f"farm.{name}", args=args, **options)
            kind, encoding, body = dumps(message.body, serializer="json")  # type: ignore[no-untyped-call]
            headers = {**message.headers, SPARK_JOB: job_id}
            envelope = encode_envelope(body, kind, encoding, headers, message.properties, "", "celery")
            writer.add(envelope, metadata_headers(headers, "", "celery", 0, kind), routing_key="celery")
        return self.staging.commit_job(job_id, [writer.close()])

    def counts(self, job_id: str) -> dict[str, int]:
        """The counts that are not 0."""
        return {name: count for name, count in asdict(self.staging.job_status(job_id).tasks).items() if count}

    def wait(self, job_id: str) -> dict[str, int]:
        """The counts once all tasks have ended."""
        wait_until(
            lambda: self.staging.job_status(job_id).has_ended, PATIENCE_SECONDS, lambda: str(self.counts(job_id))
        )
        return self.counts(job_id)


@pytest.fixture
def jobs(store_folder: Path) -> Iterator[Jobs]:
    url = f"opendata://{store_folder}"
    with sender(url) as app, QueueClient(url, start_timeout=60, reconnect_timeout=60) as client:
        client.create("celery")
        yield Jobs(app, client)


def started(url: str, folder: Path, name: str, pool: str) -> Worker:
    return Worker(url, folder, name, pool=pool, concurrency=2, include=["outcomes"])


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_each_end_of_a_task_is_counted_once(jobs: Jobs, store_folder: Path, tmp_path: Path, pool: str) -> None:
    names = [f"{name}{late}" for name in ENDS for late in ("", "_late")]
    ledger, gate = Ledger(tmp_path / "ledger"), tmp_path / "gate"
    job = jobs.submit("job", [(name, ()) for name in (*names, "rejects_late", "unknown")])
    running = jobs.submit("running", [(name, (str(ledger.path), name, str(gate))) for name in ("hangs", "hangs_late")])
    assert (job.tasks.waiting, running.tasks.waiting) == (len(names) + 2, 2)
    with children() as processes:
        worker = started(f"opendata://{store_folder}", tmp_path, "w", pool)
        processes.add(worker)
        worker.wait_ready()
        ended = {"succeeded": 6, "raised": 4, "ignored": 2, "rejected": 2}
        for name in ("hangs", "hangs_late"):
            ledger.wait_for(f"{name} began")
        wait_until(
            lambda: jobs.counts("running") == {"running": 2}, PATIENCE_SECONDS, lambda: str(jobs.counts("running"))
        )
        assert not jobs.staging.job_status("running").has_ended
        gate.touch()
        assert jobs.wait("running") == {"succeeded": 2}
        assert jobs.wait("job") == ended

        assert jobs.staging.retry_job("job").handled == 6
        assert jobs.wait("job") == ended

        EmbeddedBroker(store_folder).kill()
        assert jobs.counts("job") == ended
        assert jobs.staging.job_status("job").state == "settled"


@pytest.mark.slow
def test_a_killed_worker_loses_what_it_acknowledged(jobs: Jobs, store_folder: Path, tmp_path: Path) -> None:
    """What it had not acknowledged is run by another one; a job counts what became of each task."""
    ledger, gate, url = Ledger(tmp_path / "ledger"), tmp_path / "gate", f"opendata://{store_folder}"
    jobs.submit("job", [(name, (str(ledger.path), name, str(gate))) for name in ("hangs", "hangs_late")])
    with children() as processes:
        first = started(url, tmp_path, "first", "prefork")
        processes.add(first)
        first.wait_ready()
        for name in ("hangs", "hangs_late"):
            ledger.wait_for(f"{name} began")
        EmbeddedBroker(store_folder).wait_queue("celery", 0, 1)  # a task may begin before its worker acknowledges it
        first.clean_up()
        wait_until(
            lambda: jobs.counts("job") == {"waiting": 1, "lost": 1}, PATIENCE_SECONDS, lambda: str(jobs.counts("job"))
        )
        blocked = jobs.staging.job_status("job").blocked
        assert blocked is not None
        assert (blocked.queue, blocked.reason) == ("celery", "queue 'celery' has no consumer")
        gate.touch()
        second = started(url, tmp_path, "second", "threads")
        processes.add(second)
        second.wait_ready()
        assert jobs.wait("job") == {"succeeded": 1, "lost": 1}
        jobs.client.retry_failures(tasks=["farm.hangs"])
        assert jobs.wait("job") == {"succeeded": 2}
