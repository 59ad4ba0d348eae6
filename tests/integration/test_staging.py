"""Staged jobs on a real broker: commits, routing, progress, aborts, and all that can be wrong with them."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.client import history
from kombu_opendata.client.maintenance import maintain
from kombu_opendata.client.replay import redrive
from kombu_opendata.client.staging import StagingClient
from kombu_opendata.errors import (
    CorruptRecord,
    InvalidURL,
    NotFound,
    PreconditionFailed,
    QueueFull,
    RequestError,
)
from kombu_opendata.protocol.messages import (
    AbortJob,
    Bind,
    CommitJob,
    Consume,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    GetJob,
    Hello,
    ListJobs,
    Outcome,
    Publish,
    PurgeQueue,
)
from kombu_opendata.staging import BatchWriter, JobInfo, QueueCounts, StagingTarget
from kombu_opendata.staging.target import job_folder, parse_batch_uri

from ..support.batches import Sink, as_objects, envelope, headers, stage
from ..support.broker import EmbeddedBroker
from ..support.processes import wait_until
from ..support.raw import RawClient


@pytest.fixture
def url(store_folder: Path) -> str:
    return f"opendata://{store_folder}"


@pytest.fixture
def sink(url: str) -> Iterator[Sink]:
    found = Sink(url)
    found.declare("q")
    yield found
    found.close()


@pytest.fixture
def client(sink: Sink) -> StagingClient:
    return StagingClient(sink.connection)


@pytest.fixture
def target(client: StagingClient) -> StagingTarget:
    """Nothing goes inline."""
    return as_objects(client.staging_target())


def bodies(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def consume(sink: Sink, queue: str = "q") -> None:
    sink.connection.consume(Consume(0, 1, f"sink-{queue}", queue, False, False, {}))


def when(client: StagingClient, job_id: str, condition: Callable[[JobInfo], object]) -> JobInfo:
    """The job, once this is so."""
    wait_until(lambda: condition(client.job_status(job_id)), 60, lambda: repr(client.job_status(job_id)))
    return client.job_status(job_id)


def objects(folder: Path) -> list[Path]:
    return sorted((folder / "default.staged").rglob("*.batch*"))


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
    job = when(client, "job", lambda job: job.is_settled)
    assert job.queues == {"q": QueueCounts(1700, 1700, 0, 0)}
    assert (job.routed, job.done, job.queues["q"].waiting) == (1700, 1700, 0)
    sink.quiet()
    assert sink.got.total() == 1700


def test_a_small_job_goes_inline(sink: Sink, client: StagingClient, store_folder: Path) -> None:
    infos = stage(client.staging_target(), "job", [bodies(30), bodies(20, 30)])
    assert all(info.data for info in infos)
    job = client.commit_job("job", infos)
    assert (job.state, job.rows, job.queues) == ("routed", 50, {"q": QueueCounts(50, 0, 0, 0)})
    assert not objects(store_folder)
    assert not client.commit_job("job", infos).added
    consume(sink)
    sink.take(50)
    assert sink.got == Counter(bodies(50))
    assert sink.ids == list(range(job.first_id, job.first_id + 50))
    when(client, "job", lambda job: job.is_settled and job.done == 50)


def test_small_batches_that_are_many_become_objects(sink: Sink, client: StagingClient, store_folder: Path) -> None:
    infos = stage(client.staging_target(), "job", [bodies(100, 100 * number) for number in range(8)])
    assert all(info.data for info in infos)
    client.commit_job("job", infos)
    assert len(objects(store_folder)) == 8
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
    page = history.list_messages(sink.connection, queues=["q"], statuses=["available"], order="asc", limit=1000)
    ids = list(range(job.first_id, job.first_id + 65))
    assert [one.id for one in page.items] == ids
    name, text = next(iter(page.items[7].headers.items()))
    found = history.list_messages(sink.connection, headers={name: text}, limit=1000)
    assert ids[7] in [one.id for one in found.items]
    consume(sink)
    sink.take(65)
    when(client, "job", lambda job: job.done == 65)
    done = history.list_attempts(sink.connection, headers={name: text}, outcomes=["acked"], limit=1000)
    assert {one.message_id for one in done.items} == {one.id for one in found.items}


def test_a_job_of_no_rows_is_settled(client: StagingClient, target: StagingTarget) -> None:
    job = client.commit_job("job", stage(target, "job", [[], []]))
    assert (job.state, job.rows, job.batches, job.added) == ("settled", 0, 0, True)
    assert not client.commit_job("job", []).added


def test_jobs_are_listed_in_pages(client: StagingClient, target: StagingTarget, broker: EmbeddedBroker) -> None:
    names = [f"job-{number:02}" for number in range(25)]
    for name in names:
        client.commit_job(name, stage(target, name, [bodies(1)]))
    assert [job.job_id for job in client.list_jobs()] == names
    page = client._connection.call(ListJobs(0, "job-03", 5))
    assert ([job[0] for job in page.jobs], page.more) == (names[4:9], True)


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
    staged = {name: stage(target, name, [bodies(3000, start)]) for name, start in (("a", 0), ("b", 3000))}
    for name, batches in staged.items():
        client.commit_job(name, batches)
    consume(sink)
    sink.take(6000)
    assert sink.got == Counter(bodies(6000))
    first_b = sink.ids.index(3000)
    assert first_b < 3000, "the second job waited for the whole first one"
    for name in "ab":
        assert when(client, name, lambda job: job.is_settled).done == 3000


def test_progress_is_exact_over_restarts(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    client.commit_job("job", stage(target, "job", [bodies(2000)]))
    when(client, "job", lambda job: job.state == "routed")
    broker.terminate()
    assert client.job_status("job").queues == {"q": QueueCounts(2000, 0, 0, 0)}
    consume(sink)
    sink.take(500)
    broker.kill()
    sink.take(2000)
    sink.quiet()
    assert when(client, "job", lambda job: job.is_settled).queues == {"q": QueueCounts(2000, 2000, 0, 0)}
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
    assert client.job_status("job").queues["q"] == QueueCounts(100, 0, 0, 100)
    held = [sink.connection.get(1, "other", no_ack=False) for _ in range(3)]
    first = held[0]
    assert first is not None
    sink.connection.settle(1, 2, [(first[2], first[3], first[4])])
    job = when(client, "job", lambda job: job.failed == 1)
    assert (job.state, job.queues["other"]) == ("routed", QueueCounts(100, 0, 1, 0))
    call(DeleteQueue(0, "other", False, False))
    job = client.job_status("job")
    assert (job.state, job.queues["other"]) == ("settled", QueueCounts(100, 0, 1, 99))


# ---------------------------------------------------------------------- where messages go
def test_exchanges_route_as_for_publishes(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    call = sink.connection.call
    for queue in ("one", "two"):
        sink.declare(queue)
    call(DeclareExchange(0, "topics", "topic", True, False, {}, False))
    call(Bind(0, "one", "topics", "a.*", {}))
    call(Bind(0, "two", "topics", "#", {}))
    writer = BatchWriter(target, "job", 0, 0)
    for number in range(600):
        key = ("a.x", "b.x", "nowhere")[number % 3]
        exchange = "topics" if number % 3 < 2 else ""
        writer.add(envelope(b"%d" % number, exchange, key), headers(key), exchange=exchange, routing_key=key)
    client.commit_job("job", [writer.close()])
    job = when(client, "job", lambda job: job.state == "routed")
    assert job.queues == {"one": QueueCounts(200), "two": QueueCounts(400)}
    assert (job.unroutable, job.damaged, job.routed) == (200, 0, 600)
    for queue in ("one", "two"):
        consume(sink, queue)
    sink.take(600)
    expected = Counter({b"%d" % n: 2 - n % 3 for n in range(600) if n % 3 < 2})
    assert sink.got == expected
    when(client, "job", lambda job: job.is_settled)


def test_a_headers_exchange_sees_the_envelopes(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    call = sink.connection.call
    call(DeclareExchange(0, "h", "headers", True, False, {}, False))
    call(Bind(0, "q", "h", "", {"size": 5}))
    writer = BatchWriter(target, "job", 0, 0)
    for number in range(300):
        given = {"size": number % 10}
        writer.add(envelope(b"%d" % number, "h", "", given), headers("", size=str(number % 10)), exchange="h")
    client.commit_job("job", [writer.close()])
    consume(sink)
    sink.take(30)
    assert sink.got == Counter(b"%d" % number for number in range(5, 300, 10))
    assert when(client, "job", lambda job: job.is_settled).unroutable == 270


def test_an_unknown_exchange_drops_as_it_does_not_exist(
    client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    client.commit_job("job", stage(target, "job", [bodies(10)], exchange="nowhere"))
    job = when(client, "job", lambda job: job.is_settled)
    assert (job.unroutable, job.rows, job.queues) == (10, 10, {})
    assert "no exchange 'nowhere'" in broker.log.read_text()


def test_a_transient_queue_gets_its_copies(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    call = sink.connection.call
    call(DeclareQueue(0, "t", False, False, False, {}, False))
    call(DeclareExchange(0, "f", "fanout", True, False, {}, False))
    for queue in ("q", "t"):
        call(Bind(0, queue, "f", "", {}))
    client.commit_job("job", stage(target, "job", [bodies(300)], exchange="f"))
    consume(sink, "t")
    sink.take(300)
    consume(sink, "q")
    sink.take(600)
    assert sink.got == Counter(bodies(300) * 2)
    assert when(client, "job", lambda job: job.is_settled).queues == {"q": QueueCounts(300, 300)}


def test_priorities_delays_and_ttls(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    now = int(time.time() * 1000)
    writer = BatchWriter(target, "job", 0, 0)
    given: dict[bytes, dict[str, Any]] = {
        b"low": {"priority": 1},
        b"high": {"priority": 9},
        b"late": {"priority": 255, "visible_at_ms": now + 2500},
        b"gone": {"priority": 255, "ttl_ms": 1},
        b"stays": {"priority": 0, "ttl_ms": 600_000},
    }
    for body, fields in given.items():
        writer.add(envelope(body), headers(), routing_key="q", **fields)
    client.commit_job("job", [writer.close()])
    when(client, "job", lambda job: job.queues and job.queues["q"].removed == 1)
    consume(sink)
    sink.take(3)
    assert list(sink.got) == [b"high", b"low", b"stays"]
    sink.take(4)
    assert time.time() * 1000 >= now + 2500
    assert when(client, "job", lambda job: job.is_settled).queues["q"] == QueueCounts(5, 4, 0, 1)


def test_a_full_queue_makes_the_job_wait(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    sink.declare("small", x_max_length=100, x_overflow="reject-publish")
    client.commit_job("job", stage(target, "job", [bodies(450)], routing_key="small"))
    job = when(client, "job", lambda job: job.routed == 100)
    time.sleep(0.3)  # it stays so
    assert (client.job_status("job").routed, job.state) == (100, "routing")
    client.commit_job("other", stage(target, "other", [bodies(10)]))
    when(client, "other", lambda job: job.state == "routed")
    with pytest.raises(QueueFull):
        client.commit_job("inline", stage(client.staging_target(), "inline", [bodies(5)], routing_key="small"))
    assert client.job_status("inline").state == "unknown"
    consume(sink, "small")
    sink.take(450)
    assert sink.got == Counter(bodies(450))


def test_a_queue_that_drops_its_oldest_does_so(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    sink.declare("short", x_max_length=50)
    client.commit_job("job", stage(target, "job", [bodies(1000)], routing_key="short"))
    job = when(client, "job", lambda job: job.state == "routed" and job.queues["short"].removed == 950)
    assert job.queues["short"].waiting == 50
    consume(sink, "short")
    sink.take(50)
    assert sink.got == Counter(bodies(50, 950))


def test_a_backlog_is_read_ahead_and_survives(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    client.commit_job("job", stage(target, "job", [bodies(10_000), bodies(10_000, 10_000)]))
    when(client, "job", lambda job: job.state == "routed")
    broker.kill()
    consume(sink)
    sink.take(20_000)
    assert sink.got == Counter(bodies(20_000))


# ---------------------------------------------------------------------- aborts and what is left over
def test_an_aborted_job_leaves_nothing(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path
) -> None:
    infos = stage(target, "job", [bodies(10), bodies(10)])
    losers = stage(target, "job", [bodies(10)], attempt=1)
    assert client.abort_job("job", [losers[0], None]) == 1
    assert len(objects(store_folder)) == 2
    assert client.abort_job("job", []) == 0
    assert client.abort_job("job") == 2
    assert client.abort_job("job") == 0
    assert not objects(store_folder)
    with pytest.raises(NotFound, match=r"is missing.*was it aborted"):
        client.commit_job("job", infos)
    assert client.job_status("job").state == "unknown"
    assert client.commit_job("job", stage(target, "job", [bodies(10)])).added


def test_a_committed_job_is_not_aborted(client: StagingClient, target: StagingTarget) -> None:
    infos = stage(target, "job", [bodies(10)])
    client.commit_job("job", infos)
    for given in (None, infos):
        with pytest.raises(PreconditionFailed, match="is committed"):
            client.abort_job("job", given)


def test_collection_removes_old_orphans_only(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path
) -> None:
    committed = stage(target, "job", [bodies(10)])
    loser = stage(target, "job", [bodies(10)], attempt=1)
    client.commit_job("job", committed)
    crashed = BatchWriter(target, "dead", 0, 0)
    crashed.add_many([b"x"] * 300, {})
    crashed._output._file.close()  # type: ignore[union-attr] # its process dies
    young = stage(target, "young", [bodies(10)])
    root = store_folder / "default.staged"
    for path in objects(store_folder):
        if parse_batch_uri(young[0].uri) != str(path.relative_to(root)):
            os.utime(path, (time.time() - 25 * 3600,) * 2)
    assert maintain(sink.connection, ["collect"])["staged_removed"] == 2
    left = {str(path.relative_to(root)) for path in objects(store_folder)}
    assert left == {parse_batch_uri(committed[0].uri), parse_batch_uri(young[0].uri)}
    assert not (root / job_folder("dead")).exists()
    assert parse_batch_uri(loser[0].uri) not in left


def test_an_object_goes_with_its_last_message(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path, broker: EmbeddedBroker
) -> None:
    sink.declare("brief", x_done_retention=1, x_failed_retention=1)
    infos = stage(target, "job", [bodies(300), bodies(300, 300)], routing_key="brief")
    infos += stage(target, "job", [bodies(5)], attempt=1)  # to another queue
    client.commit_job("job", infos)
    consume(sink, "brief")
    sink.take(600)
    when(client, "job", lambda job: job.done == 600)

    def collected() -> bool:
        maintain(sink.connection, ["collect"])
        return len(objects(store_folder)) == 1

    wait_until(collected, 30, lambda: str(objects(store_folder)))
    (left,) = objects(store_folder)
    assert parse_batch_uri(infos[2].uri) == str(left.relative_to(store_folder / "default.staged"))
    sink.connection.call(PurgeQueue(0, "q"))
    wait_until(lambda: not objects(store_folder) or collected(), 1, lambda: "")
    broker.kill()
    wait_until(lambda: not maintain(sink.connection, ["collect"])["settled_collected"], 10, lambda: "")
    wait_until(lambda: broker.report()["staging"]["objects"] == 0, 30, lambda: repr(broker.report()))


# ---------------------------------------------------------------------- what is wrong
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
        (replace(info, uri="batch:../../../etc/passwd"), "is no batch of job"),
        (other, "its instance is 'elsewhere'"),
        (replace(inline, rows=11), "its rows is 10"),
    ):
        with pytest.raises(RequestError, match=text):
            client.commit_job("job", [wrong])
    with pytest.raises(RequestError, match="named twice"):
        client.commit_job("job", [info, info])
    with pytest.raises(RequestError, match="no batch of job 'another'"):
        client.commit_job("another", [info])
    with pytest.raises(RequestError, match="a job id has 1 to 255 bytes"):
        client.commit_job("x" * (1 << 20), [info])
    assert client.job_status("job").state == "unknown"


def test_the_broker_checks_what_clients_check(client: StagingClient, sink: Sink) -> None:
    call = sink.connection.call
    for message, text in (
        (CommitJob(0, "x" * (1 << 20), []), "255 bytes"),
        (CommitJob(0, "", []), "255 bytes"),
        (CommitJob(0, "job", [("batch:x", 1, 1, 1, b"")]), "is no batch of job"),
        (CommitJob(0, "job", [("", 1, 1, 1, b"")] * 100_001), "at most 100000"),
        (AbortJob(0, "job", ["batch:../x"]), "is no batch of job"),
        (AbortJob(0, "", []), "255 bytes"),
        (GetJob(0, "ä" * 200), "255 bytes"),
        (ListJobs(0, "", 0), "1 to 1000 jobs"),
        (ListJobs(0, "x" * 300, 5), "255 bytes"),
    ):
        with pytest.raises(RequestError, match=text):
            call(message)
    infos = stage(client.staging_target(), "job", [bodies(100)] * 8)
    rows = [(info.uri, info.rows, info.bytes, info.checksum, info.data) for info in infos]
    with pytest.raises(RequestError, match="too much to go inline"):
        call(CommitJob(0, "job", rows))
    with pytest.raises(RequestError, match="either all of its batches go inline, or none"):
        call(CommitJob(0, "job", [rows[0], (*rows[1][:4], b"")]))


@pytest.mark.damages_store
def test_a_damaged_message_fails_and_the_others_are_delivered(
    sink: Sink, client: StagingClient, target: StagingTarget, store_folder: Path, broker: EmbeddedBroker
) -> None:
    client.commit_job("job", stage(target, "job", [[b"good-%03d" % n for n in range(600)]]))
    when(client, "job", lambda job: job.state == "routed")
    (path,) = objects(store_folder)
    data = path.read_bytes().replace(b"good-007", b"evil-007")
    path.write_bytes(data)
    consume(sink)
    sink.take(599)
    job = when(client, "job", lambda job: job.is_settled)
    assert job.queues["q"] == QueueCounts(600, 599, 1, 0)
    assert b"good-007" not in sink.got
    assert b"evil-007" not in sink.got
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
    assert when(client, "job", lambda job: job.is_settled).queues["q"] == QueueCounts(800, 400, 400, 0)
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
        return client.job_status("job").is_settled

    wait_until(settled, 60, lambda: repr(client.job_status("job")))
    job = client.job_status("job")
    assert job.damaged > 0
    assert (job.routed, job.queues["q"].done) == (20_500, 500)
    assert job.queues["small"].routed + job.damaged == 20_000
    assert sink.got.total() == job.done


def test_a_store_in_memory_takes_inline_jobs_only() -> None:
    sink = Sink(f"opendata+memory://{uuid.uuid4().hex}")
    sink.declare("q")
    client = StagingClient(sink.connection)
    with pytest.raises(InvalidURL, match="can't hold staged batches"):
        client.staging_target()
    infos = stage(StagingTarget("memory://", "default"), "job", [bodies(10)])
    rows = [(info.uri, info.rows, info.bytes, info.checksum, info.data) for info in infos]
    assert sink.connection.call(CommitJob(0, "job", rows)).added
    consume(sink)
    sink.take(10)
    sink.close()


def test_an_instance_may_not_be_named_like_a_staged_folder(url: str, sink: Sink) -> None:
    with RawClient(f"{url.removeprefix('opendata://')}/broker.sock") as raw:
        answer = raw.call(Hello(0, os.urandom(16), "raw", instance="default.staged"))
        assert "'.staged'" in answer.text


def test_live_publishes_go_on_while_a_job_is_routed(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    sink.declare("live")
    client.commit_job("job", stage(target, "job", [bodies(30_000)]))
    longest = 0.0
    count = 0
    while client.job_status("job").state == "routing":
        began = time.monotonic()
        sink.connection.publish(Publish(0, 0, "", "live", envelope(b"live"), {}, 0, 1))
        longest = max(longest, time.monotonic() - began)
        count += 1
    assert count > 10
    assert longest < 2


# ---------------------------------------------------------------------- with filters, replay and redrive
def test_filter_queues_get_what_they_filter(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    sink.declare("odd", x_filter="kind = 'odd'")
    sink.declare("never", x_filter="kind = 'neither'")
    writer = BatchWriter(target, "job", 0, 0)
    for number in range(600):
        given = headers("nowhere", **({"kind": "odd"} if number % 2 else {}))
        writer.add(envelope(b"%d" % number), given, routing_key="nowhere" if number % 3 else "q")
    client.commit_job("job", [writer.close()])
    job = when(client, "job", lambda job: job.state == "routed")
    assert job.queues == {"q": QueueCounts(200), "odd": QueueCounts(300)}
    assert job.unroutable == sum(number % 2 == 0 and number % 3 != 0 for number in range(600))
    for queue in ("q", "odd"):
        consume(sink, queue)
    sink.take(500)
    assert sink.got == Counter({b"%d" % n: (n % 2) + (n % 3 == 0) for n in range(600) if n % 2 or n % 3 == 0})
    when(client, "job", lambda job: job.is_settled)


def test_a_queue_that_starts_in_the_past_gets_each_message_once(
    sink: Sink, client: StagingClient, target: StagingTarget
) -> None:
    """It is declared while half of the job is routed: the rest comes by itself, the first half by its cursor."""
    sink.declare("small", x_max_length=1000, x_overflow="reject-publish")
    client.commit_job("job", stage(target, "job", [bodies(3000)], routing_key="small"))
    when(client, "job", lambda job: job.routed == 1000)
    sink.declare("late", x_filter="routing_key = 'small'", x_start="first")
    consume(sink, "small")
    sink.take(3000)
    when(client, "job", lambda job: job.state == "routed" and job.queues["late"].routed == 3000)
    sink.got.clear()
    consume(sink, "late")
    sink.take(3000)
    sink.quiet()
    assert sink.got == Counter(bodies(3000))
    job = when(client, "job", lambda job: job.is_settled)
    assert job.queues == {"small": QueueCounts(3000, 3000), "late": QueueCounts(3000, 3000)}


def test_redriven_messages_wait_again(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    sink.declare("other")
    client.commit_job("job", stage(target, "job", [bodies(10)]))
    when(client, "job", lambda job: job.state == "routed")
    held = [sink.connection.get(1, "q", no_ack=False) for _ in range(4)]
    sink.connection.settle(1, Outcome.REJECT, [(d[2], d[3], d[4]) for d in held if d is not None])
    when(client, "job", lambda job: job.failed == 4)
    assert redrive(sink.connection, "q", limit=1).moved == 1
    assert client.job_status("job").queues["q"] == QueueCounts(10, 0, 3, 0)
    assert redrive(sink.connection, "q", "other").moved == 3
    job = client.job_status("job")
    assert job.queues == {"q": QueueCounts(7), "other": QueueCounts(3)}
    broker.kill()
    for queue in ("q", "other"):
        consume(sink, queue)
    sink.take(10)
    assert sink.got == Counter(bodies(10))
    assert when(client, "job", lambda job: job.is_settled).done == 10
