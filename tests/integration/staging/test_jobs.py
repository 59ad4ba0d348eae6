"""Staged jobs on a real broker: commits, progress, and each once, whatever happens."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest

from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.protocol.messages import (
    DeleteQueue,
    JobInfo,
    JobQueueCounts,
    ListJobs,
    PurgeQueue,
)
from kombu_opendata.staging.job import StagingTarget

from ...support import history_calls as history_queries
from ...support.batches import Sink, as_objects, stage
from ...support.broker import EmbeddedBroker
from ...support.processes import wait_until
from .conftest import bodies, consume, objects, when

pytestmark = pytest.mark.contract(12)


# ---------------------------------------------------------------------- the usual way
def test_a_job_is_delivered_once_and_in_order(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path
) -> None:
    infos = stage(target, "job", [bodies(1000), [], bodies(700, 1000)])
    assert len(objects(store_folder)) == 2
    assert client.job_status("job").state == "unknown"
    job = client.commit_job("job", infos)
    assert (job.rows, job.batches, job.added, job.same, job.state) == (1700, 2, True, True, "routing")
    consume(sink)
    sink.take(1700)
    assert sink.got == Counter(bodies(1700))
    assert sink.ids == list(range(job.first_id, job.first_id + 1700))
    job = when(client, "job", lambda job: job.has_ended)
    assert job.queues == {"q": JobQueueCounts(1700, 1700, 0, 0)}
    assert (job.routed, job.done, job.queues["q"].waiting) == (1700, 1700, 0)
    sink.quiet()
    assert sink.got.total() == 1700


def test_a_small_job_goes_inline(sink: Sink, client: StagingClient, store_folder: Path) -> None:
    infos = stage(client.staging_target(), "job", [bodies(30), bodies(20, 30)])
    assert all(info.data for info in infos)
    job = client.commit_job("job", infos)
    assert (job.state, job.rows, job.queues) == ("routed", 50, {"q": JobQueueCounts(50, 0, 0, 0)})
    assert not objects(store_folder)
    assert not client.commit_job("job", infos).added
    consume(sink)
    sink.take(50)
    assert sink.got == Counter(bodies(50))
    assert sink.ids == list(range(job.first_id, job.first_id + 50))
    when(client, "job", lambda job: job.has_ended and job.done == 50)


def test_small_batches_that_are_many_become_one_object(sink: Sink, client: StagingClient, store_folder: Path) -> None:
    infos = stage(client.staging_target(), "job", [bodies(100, 100 * number) for number in range(8)])
    assert all(info.data for info in infos)
    client.commit_job("job", infos)
    assert len(objects(store_folder)) == 1
    consume(sink)
    sink.take(800)
    assert sink.got == Counter(bodies(800))


def test_a_large_message_goes_inline_in_chunks(sink: Sink, client: StagingClient, broker: EmbeddedBroker) -> None:
    body = os.urandom(100_000)
    client.commit_job("job", stage(client.staging_target(), "job", [[body]]))
    consume(sink)
    sink.take(1)
    assert sink.got == Counter([body])


@pytest.mark.parametrize("inline", [True, False])
def test_staged_messages_are_in_the_lists(sink: Sink, client: StagingClient, inline: bool) -> None:
    target = client.staging_target()
    job = client.commit_job("job", stage(target if inline else as_objects(target), "job", [bodies(40), bodies(25, 40)]))
    when(client, "job", lambda job: job.routed == 65)
    page = history_queries.list_messages(sink.connection, queues=["q"], statuses=["available"], order="asc", limit=1000)
    ids = list(range(job.first_id, job.first_id + 65))
    assert [one.id for one in page.items] == ids
    name, text = next(iter(page.items[7].headers.items()))
    found = history_queries.list_messages(sink.connection, headers={name: text}, limit=1000)
    assert ids[7] in [one.id for one in found.items]
    consume(sink)
    sink.take(65)
    when(client, "job", lambda job: job.done == 65)
    done = history_queries.list_attempts(sink.connection, headers={name: text}, outcomes=["acked"], limit=1000)
    assert {one.message_id for one in done.items} == {one.id for one in found.items}


def test_a_job_of_no_rows_is_settled(client: StagingClient, target: StagingTarget) -> None:
    job = client.commit_job("job", stage(target, "job", [[], []]))
    assert (job.state, job.rows, job.batches, job.added) == ("settled", 0, 0, True)
    assert not client.commit_job("job", []).added


def test_jobs_are_listed_in_pages(client: StagingClient, target: StagingTarget, broker: EmbeddedBroker) -> None:
    names = [f"job-{number:02}" for number in range(25)]
    for name in names:
        client.commit_job(name, stage(target, name, [bodies(1)]))
    assert [job.job_id for job in client.iter_jobs()] == names
    page = client._connection.call(ListJobs(0, "job-03", 5))
    assert ([job.job_id for job in page.jobs], page.more) == (names[4:9], True)


# ---------------------------------------------------------------------- once, whatever happens
def test_the_same_job_again_adds_nothing(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    first = client.commit_job("job", stage(target, "job", [bodies(300)]))
    again = client.commit_job("job", stage(target, "job", [bodies(300)], attempt=1))
    assert (again.first_id, again.added, again.same) == (first.first_id, False, True)
    other = client.commit_job("job", stage(target, "job", [bodies(301)], attempt=2))
    assert (other.first_id, other.rows, other.added, other.same) == (first.first_id, 300, False, False)
    consume(sink)
    sink.take(300)
    sink.quiet()
    assert sink.got == Counter(bodies(300))
    assert not client.commit_job("job", []).added


def test_two_drivers_commit_at_once(url: str, sink: Sink, target: StagingTarget) -> None:
    answers: list[JobInfo] = []
    begin = threading.Barrier(4)

    def commit(number: int) -> None:
        with StagingClient(url) as client:
            infos = stage(target, "job", [bodies(200), bodies(200, 200)], attempt=number)
            begin.wait()
            answers.append(client.commit_job("job", infos))

    threads = [threading.Thread(target=commit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(job.added for job in answers) == [False, False, False, True]
    assert len({job.first_id for job in answers}) == 1
    consume(sink)
    sink.take(400)
    sink.quiet()
    assert sink.got == Counter(bodies(400))


def test_two_jobs_at_once_are_routed_in_turn(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    rows = {"a": 30_000, "b": 3000}
    staged = [(name, stage(target, name, [bodies(count, 30_000 - count)])) for name, count in rows.items()]
    for name, batches in staged:
        client.commit_job(name, batches)
    jobs: dict[str, JobInfo] = {}

    def second_began() -> bool:
        jobs.update((job.job_id, job) for job in client.iter_jobs())
        return jobs["b"].routed > 0

    wait_until(second_began, 60, lambda: repr(jobs))
    assert jobs["a"].state == "routing", "the second job waited for the whole first one"
    consume(sink)
    sink.take(33_000, 180)
    assert sink.got == Counter(bodies(30_000)) + Counter(bodies(3000, 27_000))
    for name, count in rows.items():
        assert when(client, name, lambda job: job.has_ended).done == count


def test_progress_is_exact_over_restarts(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    client.commit_job("job", stage(target, "job", [bodies(2000)]))
    when(client, "job", lambda job: job.state == "routed")
    broker.terminate()
    assert client.job_status("job").queues == {"q": JobQueueCounts(2000, 0, 0, 0)}
    consume(sink)
    sink.take(500)
    broker.kill()
    sink.take(2000)
    sink.quiet()
    assert when(client, "job", lambda job: job.has_ended).queues == {"q": JobQueueCounts(2000, 2000, 0, 0)}
    broker.kill()
    assert client.job_status("job").done == 2000
    assert not client.commit_job("job", []).added


def test_what_is_purged_failed_or_gone_with_its_queue_is_counted(
    sink: Sink, client: StagingClient, target: StagingTarget
) -> None:
    sink.declare("other")
    call = sink.connection.call
    infos = stage(target, "job", [bodies(100)]) + stage(target, "job", [bodies(100)], routing_key="other", attempt=1)
    client.commit_job("job", infos)
    when(client, "job", lambda job: job.state == "routed")
    assert call(PurgeQueue(0, "q")).count == 100
    assert client.job_status("job").queues["q"] == JobQueueCounts(100, 0, 0, 100)
    held = [sink.connection.get(1, "other", no_ack=False) for _ in range(3)]
    first = held[0]
    assert first is not None
    sink.connection.settle(1, 2, [first.lease])
    job = when(client, "job", lambda job: job.failed == 1)
    assert (job.state, job.queues["other"]) == ("routed", JobQueueCounts(100, 0, 1, 0))
    call(DeleteQueue(0, "other", False, False))
    job = client.job_status("job")
    assert (job.state, job.queues["other"]) == ("settled", JobQueueCounts(100, 0, 1, 99))
