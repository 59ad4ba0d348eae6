"""Staged jobs that users cancel, retry and delete; their rate limit, digest and task on completion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import InvalidMessage, NotFound, PreconditionFailed, RequestError
from kombu_opendata.protocol.envelope import decode, encode_envelope
from kombu_opendata.protocol.messages import (
    Delivery,
    Outcome,
    Publish,
)
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.job import BatchInfo, StagingTarget

from ...support.batches import Sink, headers, stage
from ...support.broker import EmbeddedBroker
from ...support.processes import wait_until
from ...support.replay_calls import start_replay
from .conftest import bodies, consume, objects, when

RAISED = TaskReport.cut(TaskState.RAISED, 5, 1, "app.pay", "app.Bad", "no", "")
TIMED_OUT, SUCCEEDED = TaskReport(TaskState.TIMED_OUT), TaskReport(TaskState.SUCCEEDED)


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
def test_what_waits_is_dropped_and_what_is_claimed_goes_on(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path
) -> None:
    client.commit_job("job", stage(target, "job", [bodies(1000), bodies(1000, 1000)]))
    client.commit_job("other", stage(target, "other", [bodies(5, 5000)]))
    for name in ("job", "other"):
        when(client, name, lambda job: job.state == "routed")
    held = claim(sink, 3)
    done = claim(sink, 2)
    sink.connection.settle(1, Outcome.ACK, [delivery.lease for delivery in done])
    when(client, "job", lambda job: job.done == 2)
    outcome = client.cancel_job("job")
    assert (outcome.dropped, outcome.running, outcome.ended) == (1995, 3, 2)
    outcome = client.cancel_job("job")
    assert (outcome.dropped, outcome.running, outcome.ended) == (0, 3, 1997)
    job = client.job_status("job")
    assert (job.state, job.queues["q"].removed, job.tasks.removed) == ("routed", 1995, 1995)
    assert job.cancelled_at_ms
    sink.connection.settle(1, Outcome.ACK, [delivery.lease for delivery in held])
    when(client, "job", lambda job: job.has_ended)
    assert client.cancel_job("job").ended == 2000
    assert client.job_status("other").queues["q"].waiting == 5, "another job's messages stay"
    consume(sink)
    sink.take(5)
    assert sink.got == dict.fromkeys(bodies(5, 5000), 1)


def test_a_job_that_is_being_routed_ends(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker, store_folder: Path
) -> None:
    sink.declare("small", x_max_length=100, x_overflow="reject-publish")
    parts = [bodies(700), bodies(700, 700), bodies(700, 1400)]
    client.commit_job("job", stage(target, "job", parts, routing_key="small"))
    when(client, "job", lambda job: job.blocked is not None)
    held = claim(sink, 1, "small")
    assert client.cancel_job("job").dropped == 2099
    job = client.job_status("job")
    assert (job.routed, job.tasks.waiting + job.tasks.running, job.blocked) == (2100, 1, None)
    broker.kill()
    assert client.job_status("job").cancelled_at_ms == job.cancelled_at_ms
    sink.connection.settle(1, Outcome.ACK, [held[0].lease])
    when(client, "job", lambda job: job.has_ended)
    wait_until(lambda: len(objects(store_folder)) == 1, 60, lambda: str(objects(store_folder)))
    client.commit_job("next", stage(target, "next", [bodies(50)], routing_key="small"))
    when(client, "next", lambda job: job.routed == 50)


def test_all_that_a_call_drops_is_counted(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    client.commit_job("job", stage(target, "job", [bodies(15_000)]))
    when(client, "job", lambda job: job.state == "routed")
    outcome = client.cancel_job("job")
    assert (outcome.dropped, outcome.running, outcome.ended) == (15_000, 0, 0)


def test_what_returns_to_its_queue_after_the_cancellation_is_dropped(
    sink: Sink, client: StagingClient, target: StagingTarget
) -> None:
    client.commit_job("job", stage(target, "job", [bodies(10)]))
    when(client, "job", lambda job: job.state == "routed")
    held = claim(sink, 2)
    assert client.cancel_job("job").running == 2
    sink.connection.settle(1, Outcome.RELEASE, [delivery.lease for delivery in held])
    job = when(client, "job", lambda job: job.has_ended)
    assert job.tasks.removed == 10


def test_a_task_that_runs_while_its_job_is_cancelled_is_not_retried(
    sink: Sink, client: StagingClient, target: StagingTarget
) -> None:
    client.commit_job("job", stage_tasks(target, "job", 3))
    when(client, "job", lambda job: job.state == "routed")
    (held,) = claim(sink, 1)
    assert client.cancel_job("job").running == 1
    about = {"task": "app.pay", "id": "job-0", "spark_job": "job", "spark_message": f"{held.id}/job-0"}
    retry = encode_envelope("[[], {}, {}]", "application/json", "utf-8", about, {}, "", "q")
    assert sink.connection.io.publish(Publish(0, 0, "", "q", retry, {}, 0, 1)).queues == 1
    sink.connection.settle_task(1, Outcome.ACK, held.lease, TaskReport(TaskState.RETRIED))
    tasks = when(client, "job", lambda job: job.has_ended).tasks
    assert (tasks.total, tasks.removed) == (3, 3)
    assert sink.connection.get(1, "q", no_ack=False) is None


def test_an_unknown_job_is_not_steered(client: StagingClient) -> None:
    for call in (client.cancel_job, client.retry_job, client.delete_job):
        with pytest.raises(NotFound, match="no job 'nothing'"):
            call("nothing")


# ---------------------------------------------------------------------- retry
def test_the_failed_tasks_run_again_once_in_the_same_job(
    url: str, sink: Sink, client: StagingClient, target: StagingTarget
) -> None:
    client.commit_job("other", stage_tasks(target, "other", 1))
    when(client, "other", lambda job: job.state == "routed")
    sink.connection.settle_task(1, Outcome.ACK, claim(sink, 1)[0].lease, RAISED)
    client.commit_job("job", stage_tasks(target, "job", 10))
    when(client, "job", lambda job: job.state == "routed")
    lost = Sink(url)
    for delivery in claim(lost, 2):
        lost.connection.settle(1, Outcome.START, [delivery.lease])
    lost.close()
    ends = [(Outcome.REJECT, RAISED)] * 3 + [(Outcome.ACK, RAISED)] * 2 + [(Outcome.ACK, TIMED_OUT)]
    ends += [(Outcome.ACK, SUCCEEDED)] * 2
    for delivery, (outcome, report) in zip(claim(sink, 8), ends, strict=True):
        sink.connection.settle_task(1, outcome, delivery.lease, report)
    tasks = when(client, "job", lambda job: job.has_ended).tasks
    assert (tasks.raised, tasks.timed_out, tasks.lost, tasks.succeeded) == (5, 1, 2, 2)
    retried = client.retry_job("job")
    assert (retried.redriven, retried.published, retried.left) == (3, 5, {})
    job = client.job_status("job")
    assert (job.has_ended, job.tasks.waiting, job.tasks.succeeded, job.tasks.failed) == (False, 8, 2, 0)
    assert client.retry_job("job").handled == 0
    again = claim(sink, 8)
    assert {decode(delivery.envelope)[3]["id"] for delivery in again} == {f"job-{number}" for number in range(8)}
    assert sink.connection.get(1, "q", no_ack=False) is None
    for delivery in again[:6]:
        sink.connection.settle_task(1, Outcome.ACK, delivery.lease, SUCCEEDED)
    for delivery in again[6:]:
        sink.connection.settle_task(1, Outcome.ACK, delivery.lease, RAISED)
    assert when(client, "job", lambda job: job.has_ended).tasks.raised == 2
    assert client.retry_job("job").published == 2, "a retry of a retry"
    for delivery in claim(sink, 2):
        sink.connection.settle_task(1, Outcome.ACK, delivery.lease, SUCCEEDED)
    assert when(client, "job", lambda job: job.has_ended).tasks.succeeded == 10
    assert client.retry_job("other").published == 1


def test_what_a_replay_runs_again_is_not_retried(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    job = client.commit_job("job", stage_tasks(target, "job", 4))
    when(client, "job", lambda job: job.state == "routed")
    for delivery in claim(sink, 4):
        sink.connection.settle_task(1, Outcome.ACK, delivery.lease, RAISED)
    when(client, "job", lambda job: job.has_ended)
    sink.declare("other", x_filter="task = 'app.pay'")
    for queue, id in (("q", job.first_id), ("other", job.first_id + 1)):
        start_replay(sink.connection, queue, id, id + 1)
    tasks = when(client, "job", lambda job: job.tasks.waiting == 2).tasks
    assert (tasks.total, tasks.raised) == (4, 2)
    assert client.retry_job("job").published == 2
    assert client.job_status("job").tasks.waiting == 4
    for delivery in claim(sink, 3) + claim(sink, 1, "other"):
        sink.connection.settle_task(1, Outcome.ACK, delivery.lease, SUCCEEDED)
    tasks = when(client, "job", lambda job: job.has_ended).tasks
    assert (tasks.total, tasks.succeeded) == (4, 4)


def test_a_cancelled_job_goes_on_when_it_is_retried(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    client.commit_job("job", stage_tasks(target, "job", 5))
    when(client, "job", lambda job: job.state == "routed")
    held = claim(sink, 2)
    client.cancel_job("job")
    with pytest.raises(PreconditionFailed, match="is cancelled, and some of its tasks run"):
        client.retry_job("job")
    sink.connection.settle_task(1, Outcome.ACK, held[0].lease, RAISED)
    sink.connection.settle_task(1, Outcome.REJECT, held[1].lease, RAISED)
    when(client, "job", lambda job: job.has_ended)
    assert client.retry_job("job").handled == 2
    job = client.job_status("job")
    assert (job.cancelled_at_ms, job.tasks.waiting, job.tasks.removed) == (0, 2, 3)
    sink.quiet(1.2)
    assert client.cancel_job("job").dropped == 2
    assert client.job_status("job").has_ended


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
def test_the_task_on_completion_has_the_counts_and_is_sent_once(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    sink.declare("reports")
    client.commit_job("job", stage_tasks(target, "job", 10), on_complete=task("report", "reports", extra=[1]))
    when(client, "job", lambda job: job.state == "routed")
    for delivery in claim(sink, 3):
        sink.connection.settle_task(1, Outcome.REJECT, delivery.lease, RAISED)
    assert sink.connection.get(1, "reports", no_ack=False) is None
    client.cancel_job("job")
    job = when(client, "job", lambda job: job.completed_at_ms)
    broker.kill()
    (delivery,) = claim(sink, 1, "reports")
    body, kind, _encoding, about, *_ = decode(delivery.envelope)
    args, kwargs, callbacks = json.loads(body)
    assert (args, callbacks, kind, about["id"], kwargs.pop("extra")) == ([], {}, "application/json", "report", [1])
    counts = kwargs["job"]["tasks"]
    assert kwargs == {"job": {"job_id": "job", "tasks": counts}}
    assert counts["removed"] == 7
    assert sum(counts.values()) == 10
    assert client.job_status("job").completed_at_ms == job.completed_at_ms
    client.retry_job("job")
    client.cancel_job("job")
    sink.quiet(1.2)
    assert sink.connection.get(1, "reports", no_ack=False) is None


def test_a_job_of_no_rows_completes(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    assert client.commit_job("job", [], on_complete=task("report")).has_ended
    client.delete_job("job")
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
    with pytest.raises(PreconditionFailed, match="task on completion of job 'second' waits"):
        client.delete_job("second")
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
