"""What a driver is told while it waits for a job; without Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kombu_opendata.celery_integration.broker_access import BrokerAccess
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import NotFound
from kombu_opendata.protocol.messages import Outcome
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.spark import SubmitResult
from kombu_opendata.url import parse

from ..support.batches import Sink, stage
from ..support.processes import wait_until

FULL = r"queue 'small' is full \(its maximum is 10 messages\), since 20\d\d-"


@pytest.fixture
def sink(broker_url: str) -> Iterator[Sink]:
    found = Sink(broker_url)
    found.declare("small", x_max_length=10, x_overflow="reject-publish")
    yield found
    found.close()


@pytest.fixture
def result(sink: Sink, broker_url: str) -> SubmitResult:
    """Of a job of 25 tasks for a queue that takes 10."""
    client = StagingClient(sink.connection)
    bodies = [b"%d" % number for number in range(25)]
    job = client.commit_job("job", stage(client.staging_target(), "job", [bodies], routing_key="small"))
    return SubmitResult(None, BrokerAccess(broker_url), job)


def test_what_is_said_while_a_queue_is_full(
    result: SubmitResult, sink: Sink, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until(lambda: "full" in str(result.status().blocked), 60, lambda: repr(result.status()))
    assert result.status().routed == 10

    with pytest.raises(TimeoutError, match=f"25 tasks have not ended; {FULL}"):
        result.wait(timeout=0.1)
    assert caplog.records == []
    with pytest.raises(TimeoutError, match=FULL):
        result.wait_routed(timeout=4)

    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages[0].startswith(
        "job 'job' waits: queue 'small' is full (its maximum is 10 messages), since 20"
    )
    with pytest.raises(TimeoutError):
        result.wait(timeout=0.1, progress=True)
    assert "queue 'small' is full" in capsys.readouterr().out.replace("\n", " ")


def test_a_job_goes_on_when_there_is_room(result: SubmitResult, sink: Sink) -> None:
    wait_until(lambda: "full" in str(result.status().blocked), 60, lambda: repr(result.status()))

    while sink.got.total() < 25:
        delivery = sink.connection.get(1, "small", no_ack=True)
        if delivery is not None:
            sink.got[delivery.envelope] += 1

    job = result.wait(timeout=20)
    assert (job.state, job.done, job.blocked) == ("settled", 25, None)
    other = SubmitResult(None, result._access, type(job)("other"))
    with pytest.raises(NotFound):
        other.wait(timeout=1)


@pytest.mark.parametrize("end", ["reported", "lost"])
def test_waiting_ends_when_tasks_that_were_acknowledged_early_have_ended(sink: Sink, broker_url: str, end: str) -> None:
    """Settled messages of running tasks do not end the wait, and tasks that are lost with their worker do."""
    sink.declare("early")
    client = StagingClient(sink.connection)
    committed = client.commit_job("early", stage(client.staging_target(), "early", [[b"1", b"2"]], routing_key="early"))
    job = SubmitResult(None, BrokerAccess(broker_url), committed)
    job.wait_routed(timeout=60)
    worker = BrokerConnection(parse(broker_url), Options(name="worker"))
    worker.connect()
    leases = [delivery.lease for _ in range(2) if (delivery := worker.get(1, "early", no_ack=False)) is not None]
    worker.settle(1, Outcome.START, leases)
    wait_until(lambda: job.status().tasks.running == 2, 60, lambda: repr(job.status()))

    assert (job.status().done, job.status().running) == (2, 2)
    assert [one.tasks.running for one in client.iter_jobs() if one.job_id == "early"] == [2]
    with pytest.raises(TimeoutError, match="2 tasks have not ended"):
        job.wait(timeout=0.1)
    if end == "reported":
        for lease in leases:
            worker.settle_task(1, Outcome.REPORT, lease, TaskReport(TaskState.SUCCEEDED))
    worker.close()
    ended = job.wait(timeout=60)

    assert (ended.state, ended.done, ended.running) == ("settled", 2, 0)
