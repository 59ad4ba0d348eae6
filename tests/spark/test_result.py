"""What a driver is told while it waits for a job; without Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from kombu_opendata.client.calls.staged_jobs import StagingClient
from kombu_opendata.errors import NotFound, RequestError
from kombu_opendata.spark import SubmitResult, submit
from kombu_opendata.spark.broker_access import BrokerAccess
from kombu_opendata.spark.write.commit_report import CommitReport

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
    wait_until(lambda: result.status().blocked is not None, 60, lambda: repr(result.status()))
    assert result.status().routed == 10

    with pytest.raises(TimeoutError, match=f"25 tasks are not settled; {FULL}"):
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


def test_a_commit_on_another_host(result: SubmitResult, broker_url: str, tmp_path: Path) -> None:
    """As with a server of Spark Connect: its report is not here, but the broker has the job."""
    report = CommitReport(str(tmp_path / "report.json"))
    found = submit._result(None, BrokerAccess(broker_url), "job", report, has_own_ids=False)
    assert (found.job_id, found.rows, found.added) == ("job", 25, True)
    with pytest.raises(RequestError, match="job other ended without a commit"):
        submit._result(None, BrokerAccess(broker_url), "other", report, has_own_ids=False)


def test_a_job_goes_on_when_there_is_room(result: SubmitResult, sink: Sink) -> None:
    wait_until(lambda: result.status().blocked is not None, 60, lambda: repr(result.status()))

    while sink.got.total() < 25:
        delivery = sink.connection.get(1, "small", no_ack=True)
        if delivery is not None:
            sink.got[delivery[6]] += 1

    job = result.wait(timeout=20)
    assert (job.state, job.done, job.blocked) == ("settled", 25, None)
    other = SubmitResult(None, result._access, type(job)("other"))
    with pytest.raises(NotFound):
        other.wait(timeout=1)
