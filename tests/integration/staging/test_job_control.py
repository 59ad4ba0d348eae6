"""Staged jobs that users cancel, retry and delete; their rate limit, digest and task on completion."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import InvalidMessage, NotFound, PreconditionFailed, RequestError
from kombu_opendata.protocol.envelope import decode, encode_envelope
from kombu_opendata.protocol.messages import (
    Delivery,
    Outcome,
)
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.staging import BatchInfo, BatchWriter, StagingTarget

from ...support.batches import Sink, headers, stage
from ...support.broker import EmbeddedBroker
from ...support.processes import wait_until
from .conftest import bodies, when

RAISED = TaskReport.cut(TaskState.RAISED, 5, 1, "app.pay", "app.Bad", "no", "")


def claim(sink: Sink, count: int, queue: str = "q") -> list[Delivery]:
    found = [sink.connection.get(1, queue, no_ack=False) for _ in range(count)]
    assert all(found)
    return [delivery for delivery in found if delivery is not None]


def task(id: str, key: str = "q", kind: str = "application/json", **kwargs: Any) -> bytes:
    about = {"task": "app.pay", "id": id, "retries": 0}
    return encode_envelope(json.dumps([[], kwargs, {}]), kind, "utf-8", about, {"correlation_id": id}, "", key)


def stage_tasks(target: StagingTarget, job_id: str, count: int) -> list[BatchInfo]:
    writer = BatchWriter(target, job_id, 0, 0)
    for number in range(count):
        writer.add(task(f"{job_id}-{number}"), headers("q", task="app.pay", id=f"{job_id}-{number}"), routing_key="q")
    return [writer.close()]


# ---------------------------------------------------------------------- cancellation
def test_an_unknown_job_is_not_steered(client: StagingClient) -> None:
    for call in (client.cancel_job, client.retry_job, client.delete_job):
        with pytest.raises(NotFound, match="no job 'nothing'"):
            call("nothing")


# ---------------------------------------------------------------------- deletion
def test_an_ended_job_is_deleted_and_its_id_is_free(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    client.commit_job("job", stage(target, "job", [bodies(10)]))
    with pytest.raises(PreconditionFailed, match="10 tasks that have not ended: cancel it first"):
        client.delete_job("job")
    when(client, "job", lambda job: job.state == "routed")
    client.cancel_job("job")
    client.delete_job("job")
    assert client.job_status("job").state == "unknown"
    assert client.list_jobs().items == []
    broker.kill()
    assert client.job_status("job").state == "unknown"
    assert client.commit_job("job", stage(target, "job", [bodies(20)], attempt=1)).added
    broker.kill()
    assert client.job_status("job").rows == 20
    assert [job.job_id for job in client.list_jobs().items] == ["job"]


# ---------------------------------------------------------------------- digest
def test_another_digest_is_told(client: StagingClient, target: StagingTarget) -> None:
    infos = stage(target, "job", [bodies(10)])
    assert client.commit_job("job", infos, digest="a").added
    again = [client.commit_job("job", infos, digest=digest) for digest in ("a", "b", "")]
    assert [(job.added, job.same, job.digest) for job in again] == [
        (False, True, "a"), (False, False, "a"), (False, True, "a"),
    ]  # fmt: skip
    other = client.commit_job("job", stage(target, "job", [bodies(11)], attempt=1), digest="a")
    assert (other.same, other.rows) == (False, 10)
    with pytest.raises(RequestError, match="digest"):
        client.commit_job("long", [], digest="a" * 65)


# ---------------------------------------------------------------------- rate limit
def test_routing_keeps_to_the_rate_limit(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    slow = [f"slow-{number}" for number in range(5)]
    for name in slow:
        client.commit_job(name, stage(target, name, [bodies(10)]), rate_limit=0.0001)
    for name in slow:
        when(client, name, lambda job: job.routed == 1)
    client.commit_job("fast", stage(target, "fast", [bodies(3000)]), rate_limit=1e6)
    client.commit_job("free", stage(target, "free", [bodies(3000)]))
    for name in ("fast", "free"):
        when(client, name, lambda job: job.state == "routed")
    broker.kill()
    for name in slow:
        job = when(client, name, lambda job: job.routed == 2)
        assert (job.rate_limit, job.state) == (0.0001, "routing")
        assert client.cancel_job(name).dropped == 10


def test_a_small_job_keeps_to_its_rate_limit(sink: Sink, client: StagingClient) -> None:
    client.commit_job("job", stage(client.staging_target(), "job", [bodies(10)]), rate_limit=0.0001)
    job = when(client, "job", lambda job: job.routed)
    assert job.routed == 1


@pytest.mark.parametrize("rate", [-1.0, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(client: StagingClient, rate: float) -> None:
    with pytest.raises(RequestError, match="rate limit"):
        client.commit_job("job", [], rate_limit=rate)


# ---------------------------------------------------------------------- on completion
def test_a_job_of_no_rows_completes(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    assert client.commit_job("job", [], on_complete=task("report")).has_ended
    when(client, "job", lambda job: job.completed_at_ms)
    (delivery,) = claim(sink, 1)
    assert sum(json.loads(decode(delivery.envelope)[0])[1]["job"]["tasks"].values()) == 0


def test_a_full_queue_delays_the_task_on_completion(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    sink.declare("small", x_max_length=1, x_overflow="reject-publish")
    client.commit_job("first", [], on_complete=task("one", "small"))
    when(client, "first", lambda job: job.completed_at_ms)
    client.commit_job("second", [], on_complete=task("two", "small"))
    wait_until(lambda: "'second': its task on completion waits" in broker.log.read_text(), 60, broker.log.read_text)
    assert not client.job_status("second").completed_at_ms
    broker.kill()
    for id in ("one", "two"):
        if id == "two":
            when(client, "second", lambda job: job.completed_at_ms)
        (delivery,) = claim(sink, 1, "small")
        assert decode(delivery.envelope)[3]["id"] == id
        sink.connection.settle(1, Outcome.ACK, [delivery.lease])


def test_a_task_without_a_queue_is_dropped(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    client.commit_job("job", [], on_complete=task("report", "nowhere"))
    assert when(client, "job", lambda job: job.completed_at_ms).has_ended


def test_a_message_on_completion_that_is_no_task_is_refused(sink: Sink, client: StagingClient) -> None:
    for envelope in (b"no envelope", task("report", kind="application/x-python-serialize"), task("t", x="x" * 40_000)):
        with pytest.raises(InvalidMessage, match="completion"):
            client.commit_job("job", [], on_complete=envelope)
    assert client.job_status("job").state == "unknown"
