"""All that can be wrong with staged jobs."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.errors import (
    CorruptRecord,
    InvalidURL,
    QueueFull,
    RequestError,
)
from kombu_opendata.protocol.messages import (
    AbortJob,
    CommitJob,
    GetJob,
    Hello,
    JobQueueCounts,
    ListJobs,
    PauseQueue,
    Publish,
    ResumeQueue,
)
from kombu_opendata.staging.batch_format import parse_batch_uri
from kombu_opendata.staging.job import StagingTarget

from ...support.batches import Sink, envelope, stage
from ...support.broker import EmbeddedBroker
from ...support.processes import wait_until
from ...support.raw import RawClient
from .conftest import bodies, consume, objects, when


def test_damaged_batches_are_refused_by_the_commit(
    client: StagingClient, target: StagingTarget, store_folder: Path
) -> None:
    (info,) = stage(target, "job", [bodies(500)])
    (path,) = objects(store_folder)
    whole = path.read_bytes()
    for broken in (b"", b"x", whole[:-1], whole + b"x", bytes(len(whole)), whole[:-20] + bytes(20)):
        path.write_bytes(broken)
        with pytest.raises(CorruptRecord):
            client.commit_job("job", [info])
    path.write_bytes(whole)
    assert client.job_status("job").state == "unknown"
    assert client.commit_job("job", [info]).added


def test_commits_that_say_something_else_are_refused(client: StagingClient, target: StagingTarget) -> None:
    (info,) = stage(target, "job", [bodies(500)])
    (other,) = stage(replace(target, instance="elsewhere"), "job", [bodies(10)])
    (inline,) = stage(client.staging_target(), "job", [bodies(10)])
    for wrong, text in (
        (replace(info, rows=10**9), "its rows is 500"),
        (replace(info, checksum=5), "its checksum is"),
        (replace(info, rows=-1), "claims -1 rows"),
        (replace(info, bytes=0), "claims 500 rows in 0 bytes"),
        (replace(info, uri="batch:../../../etc/passwd"), "is not a batch of job"),
        (other, "its instance is 'elsewhere'"),
        (replace(inline, rows=11), "its rows is 10"),
    ):
        with pytest.raises(RequestError, match=text):
            client.commit_job("job", [wrong])
    with pytest.raises(RequestError, match="named twice"):
        client.commit_job("job", [info, info])
    with pytest.raises(RequestError, match="not a batch of job 'another'"):
        client.commit_job("another", [info])
    with pytest.raises(RequestError, match="a job id has 1 to 255 bytes"):
        client.commit_job("x" * (1 << 20), [info])
    assert client.job_status("job").state == "unknown"


def test_the_broker_checks_what_clients_check(client: StagingClient, sink: Sink) -> None:
    call: Any = sink.connection.call
    for message, text in (
        (CommitJob(0, "x" * (1 << 20), []), "255 bytes"),
        (CommitJob(0, "", []), "255 bytes"),
        (CommitJob(0, "job", [("batch:x", 1, 1, 1, b"")]), "is not a batch of job"),
        (CommitJob(0, "job", [("", 1, 1, 1, b"")] * 100_001), "more than 100000 items"),
        (AbortJob(0, "job", ["batch:../x"]), "is not a batch of job"),
        (AbortJob(0, "", []), "255 bytes"),
        (GetJob(0, "ä" * 200), "255 bytes"),
        (ListJobs(0, "", 0), "1 to 1000, not 0"),
        (ListJobs(0, "x" * 300, 5), "255 bytes"),
    ):
        with pytest.raises(RequestError, match=text):
            call(message)
    infos = stage(client.staging_target(), "job", [bodies(100)] * 8)
    rows = [(info.uri, info.rows, info.bytes, info.checksum, info.data) for info in infos]
    with pytest.raises(RequestError, match="too large to be inline"):
        call(CommitJob(0, "job", rows))
    with pytest.raises(RequestError, match="either all batches are inline, or none"):
        call(CommitJob(0, "job", [rows[0], (*rows[1][:4], b"")]))


@pytest.mark.damages_store
def test_a_damaged_message_fails_and_the_others_are_delivered(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path, broker: EmbeddedBroker
) -> None:
    client.commit_job("job", stage(target, "job", [[b"good-%03d" % n for n in range(600)]]))
    when(client, "job", lambda job: job.state == "routed")
    (path,) = objects(store_folder)
    data = path.read_bytes()
    path.write_bytes(data[:8] + bytes(16) + data[24:])  # the frame of the first 256 messages
    consume(sink)
    sink.take(344)
    job = when(client, "job", lambda job: job.has_ended)
    assert job.queues["q"] == JobQueueCounts(600, 344, 256, 0)
    assert b"good-007" not in sink.got
    assert "has failed: the payload of message 7" in broker.log.read_text()


@pytest.mark.damages_store
def test_messages_of_a_missing_object_fail_and_the_others_are_delivered(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path, broker: EmbeddedBroker
) -> None:
    infos = stage(target, "job", [bodies(400), bodies(400, 400)])
    client.commit_job("job", infos)
    when(client, "job", lambda job: job.state == "routed")
    (store_folder / "default.staged" / (parse_batch_uri(infos[0].uri) or "")).unlink()
    broker.kill()  # it may still have it open
    consume(sink)
    sink.take(400)
    assert when(client, "job", lambda job: job.has_ended).queues["q"] == JobQueueCounts(800, 400, 400, 0)
    assert sink.got == Counter(bodies(400, 400))


@pytest.mark.damages_store
def test_rows_whose_index_is_lost_are_counted(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path
) -> None:
    """The object changes after the commit and before routing: a full queue holds it up."""
    sink.declare("small", x_max_length=5000, x_overflow="reject-publish")
    first = stage(target, "job", [bodies(20_000)], routing_key="small")
    second = stage(target, "job", [bodies(500, 20_000)], attempt=1)
    client.commit_job("job", first + second)
    when(client, "job", lambda job: job.routed == 5000)
    path = store_folder / "default.staged" / (parse_batch_uri(first[0].uri) or "")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3] + bytes(len(data) - len(data) // 3))
    consume(sink, "small")
    consume(sink, "q")

    def settled() -> bool:
        sink.quiet(0.01)
        return client.job_status("job").has_ended

    wait_until(settled, 60, lambda: repr(client.job_status("job")))
    job = client.job_status("job")
    assert job.damaged > 0
    assert (job.routed, job.queues["q"].done) == (20_500, 500)
    assert job.queues["small"].routed + job.damaged == 20_000
    assert sink.got.total() == job.done


@pytest.mark.parametrize("inline", [True, False])
def test_a_job_waits_while_publishes_to_its_queue_are_paused(
    sink: Sink, client: StagingClient, target: StagingTarget, inline: bool
) -> None:
    sink.connection.call(PauseQueue(0, "q", True))
    infos = stage(client.staging_target() if inline else target, "job", [bodies(10)])
    assert client.commit_job("job", infos).added
    when(client, "job", lambda job: job.blocked is not None)
    job = client.job_status("job")
    assert job.blocked is not None
    assert (job.routed, job.blocked.queue, job.blocked.reason) == (0, "q", "queue 'q' is paused")
    sink.connection.call(ResumeQueue(0, "q", True))
    when(client, "job", lambda job: job.routed == 10)
    consume(sink)
    sink.quiet(0.2)
    assert not sink.got
    sink.connection.call(ResumeQueue(0, "q"))
    sink.take(10)


def test_a_store_in_memory_takes_inline_jobs_only() -> None:
    sink = Sink(f"opendata+memory://{uuid.uuid4().hex}")
    sink.declare("q")
    client = StagingClient(sink.connection)
    with pytest.raises(InvalidURL, match="can't hold staged batches"):
        client.staging_target()
    infos = stage(StagingTarget("memory://", "default"), "job", [bodies(10)])
    rows = [(info.uri, info.rows, info.bytes, info.checksum, info.data) for info in infos]
    assert sink.connection.call(CommitJob(0, "job", rows)).added
    sink.declare("small", x_max_length=5, x_overflow="reject-publish")
    infos = stage(StagingTarget("memory://", "default"), "refused", [bodies(10)], routing_key="small")
    rows = [(info.uri, info.rows, info.bytes, info.checksum, info.data) for info in infos]
    with pytest.raises(QueueFull, match="queue 'small' is full"):
        sink.connection.call(CommitJob(0, "refused", rows))
    consume(sink)
    sink.take(10)
    sink.close()


def test_an_instance_may_not_be_named_like_a_staged_folder(sink: Sink, store_folder: Path) -> None:
    with RawClient(f"{store_folder}/broker.sock") as raw:
        answer = raw.call(Hello(0, os.urandom(16), "raw", instance="default.staged"))
        assert "'.staged'" in answer.text


def test_live_publishes_go_on_while_a_job_is_routed(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    sink.declare("live")
    client.commit_job("job", stage(target, "job", [bodies(30_000)]))
    routed = []  # rows, whenever a publish was confirmed
    while (job := client.job_status("job")).state == "routing":
        routed.append(job.routed)
        sink.connection.io.publish(Publish(0, 0, "", "live", envelope(b"live"), {}, 0, 1))
    longest = max(after - before for before, after in pairwise([0, *routed, job.routed]))
    assert job.routed == 30_000
    assert longest < 15_000, f"a publish waited while {longest} rows were routed"
