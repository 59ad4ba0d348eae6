"""Where the messages of staged jobs go: exchanges, kinds of queues, filters, replay and redrive."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.client.maintain import maintain
from kombu_opendata.client.staging_client import StagingClient
from kombu_opendata.protocol.messages import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    JobInfo,
    JobQueueCounts,
    Outcome,
)
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.job import StagingTarget

from ...support.batches import Sink, envelope, headers, stage
from ...support.broker import EmbeddedBroker
from ...support.processes import wait_until
from ...support.replay_calls import progress, redrive
from .conftest import bodies, consume, objects, when


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
    assert job.queues == {"one": JobQueueCounts(200), "two": JobQueueCounts(400)}
    assert (job.unroutable, job.damaged, job.routed) == (200, 0, 600)
    for queue in ("one", "two"):
        consume(sink, queue)
    sink.take(600)
    expected = Counter({b"%d" % n: 2 - n % 3 for n in range(600) if n % 3 < 2})
    assert sink.got == expected
    when(client, "job", lambda job: job.has_ended)


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
    assert when(client, "job", lambda job: job.has_ended).unroutable == 270


def test_an_unknown_exchange_drops_as_it_does_not_exist(
    client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    client.commit_job("job", stage(target, "job", [bodies(10)], exchange="nowhere"))
    job = when(client, "job", lambda job: job.has_ended)
    assert (job.unroutable, job.rows, job.queues) == (10, 10, {})
    assert "no exchange 'nowhere'" in broker.log.read_text()


@pytest.mark.parametrize("tenants", [3, 400])
def test_rows_go_to_their_partitions(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker, url: str, tenants: int
) -> None:
    """Without a move afterwards, in which none of them would be delivered; and again after a crash."""
    sink.declare("fair", x_partition_by="tenant")
    writer = BatchWriter(target, "job", 0, 0)
    keys = [f"t{number % tenants}" if number % 10 else "" for number in range(1000)]
    for number, tenant in enumerate(keys):
        given = {"tenant": tenant} if tenant else {}
        writer.add(envelope(b"%d" % number, "", "fair", given), headers("fair", **given), routing_key="fair")
    client.commit_job("job", [writer.close()])
    when(client, "job", lambda job: job.state == "routed")
    expected = dict(Counter(keys))
    with QueueClient(url) as queues:
        for _ in range(2):
            rows = queues.list_partitions("fair", limit=1000).partitions
            assert {row.key: row.backlog for row in rows} == expected
            assert {row.limited_by for row in rows} == {""}
            broker.kill()
    consume(sink, "fair")
    sink.take(1000)
    assert sink.got == Counter(bodies(1000))
    first = [keys[id - min(sink.ids)] for id in sink.ids[: len(expected)]]
    assert sorted(first) == sorted(expected), "each partition had a turn"
    when(client, "job", lambda job: job.has_ended)


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
    assert when(client, "job", lambda job: job.has_ended).queues == {"q": JobQueueCounts(300, 300)}


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
    sink.take(4)
    assert time.time() * 1000 >= now + 2500, "the late one may come among the others, but not before its time"
    assert sink.got == Counter(given.keys() - {b"gone"})
    assert [body for body in sink.got if body != b"late"] == [b"high", b"low", b"stays"]
    assert when(client, "job", lambda job: job.has_ended).queues["q"] == JobQueueCounts(5, 4, 0, 1)


def is_full(job: JobInfo) -> bool:
    return job.blocked is not None and "full" in job.blocked.reason


def test_a_full_queue_makes_the_job_wait(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    sink.declare("small", x_max_length=100, x_overflow="reject-publish")
    client.commit_job("job", stage(target, "job", [bodies(450)], routing_key="small"))
    before = time.time()
    job = when(client, "job", is_full)
    assert (job.routed, job.state) == (100, "routing")
    assert job.blocked is not None
    assert job.blocked.queue == "small"
    assert job.blocked.reason == "queue 'small' is full (its maximum is 100 messages)"
    assert abs(job.blocked.since_ms / 1000 - before) < 60
    client.commit_job("other", stage(target, "other", [bodies(10)]))
    when(client, "other", lambda job: job.state == "routed")
    blocked = client.job_status("other").blocked
    assert blocked is not None
    assert (blocked.queue, blocked.reason) == ("q", "queue 'q' has no consumer")
    assert {job.job_id: is_full(job) for job in client.iter_jobs()} == {"job": True, "other": False}
    assert client.job_status("job").blocked == job.blocked
    consume(sink, "small")
    sink.take(450)
    assert sink.got == Counter(bodies(450))
    assert when(client, "job", lambda job: job.state == "settled").blocked is None


def test_a_small_job_waits_for_a_full_queue_too(
    sink: Sink, client: StagingClient, store_folder: Path, broker: EmbeddedBroker
) -> None:
    """Its rows come with the commit, and are written as objects when the queue has no room for them."""
    sink.declare("small", x_max_length=100, x_overflow="reject-publish")
    batches = stage(client.staging_target(), "inline", [bodies(80), bodies(80, 80)], routing_key="small")
    assert all(batch.data for batch in batches)

    assert client.commit_job("inline", batches).added

    job = when(client, "inline", is_full)
    assert (job.routed, job.state, len(objects(store_folder))) == (100, "routing", 2)
    assert job.blocked is not None
    assert str(job.blocked).startswith("queue 'small' is full (its maximum is 100 messages), since 20")
    assert not client.commit_job("inline", batches).added
    broker.kill()
    assert when(client, "inline", is_full).routed == 100
    consume(sink, "small")
    sink.take(160)
    assert sink.got == Counter(bodies(160))
    assert when(client, "inline", lambda job: job.has_ended).blocked is None


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


# ---------------------------------------------------------------------- with filters, replay and redrive
def test_filter_queues_get_what_they_filter(sink: Sink, client: StagingClient, target: StagingTarget) -> None:
    sink.declare("odd", x_filter="kind = 'odd'")
    sink.declare("never", x_filter="kind = 'neither'")
    writer = BatchWriter(target, "job", 0, 0)
    for number in range(600):
        own, key = {"kind": "odd"} if number % 2 else {}, "nowhere" if number % 3 else "q"
        given = headers("nowhere", kind="neither")  # the index lies: the envelopes decide
        writer.add(envelope(b"%d" % number, "", key, own), given, routing_key=key)
    client.commit_job("job", [writer.close()])
    job = when(client, "job", lambda job: job.state == "routed")
    assert job.queues == {"q": JobQueueCounts(200), "odd": JobQueueCounts(300)}
    assert job.unroutable == sum(number % 2 == 0 and number % 3 != 0 for number in range(600))
    for queue in ("q", "odd"):
        consume(sink, queue)
    sink.take(500)
    assert sink.got == Counter({b"%d" % n: (n % 2) + (n % 3 == 0) for n in range(600) if n % 2 or n % 3 == 0})
    when(client, "job", lambda job: job.has_ended)


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
    job = when(client, "job", lambda job: job.has_ended)
    assert job.queues == {"small": JobQueueCounts(3000, 3000), "late": JobQueueCounts(3000, 3000)}


def test_redriven_messages_wait_again(
    sink: Sink, client: StagingClient, target: StagingTarget, broker: EmbeddedBroker
) -> None:
    sink.declare("other")
    client.commit_job("job", stage(target, "job", [bodies(10)]))
    when(client, "job", lambda job: job.state == "routed")
    held = [sink.connection.get(1, "q", no_ack=False) for _ in range(4)]
    sink.connection.settle(1, Outcome.REJECT, [d.lease for d in held if d is not None])
    when(client, "job", lambda job: job.failed == 4)
    assert redrive(sink.connection, "q", limit=1).moved == 1
    assert client.job_status("job").queues["q"] == JobQueueCounts(10, 0, 3, 0)
    assert redrive(sink.connection, "q", "other").moved == 3
    job = client.job_status("job")
    assert job.queues == {"q": JobQueueCounts(7), "other": JobQueueCounts(3)}
    broker.kill()
    for queue in ("q", "other"):
        consume(sink, queue)
    sink.take(10)
    assert sink.got == Counter(bodies(10))
    assert when(client, "job", lambda job: job.has_ended).done == 10


# ---------------------------------------------------------------------- reports
def test_the_reports_of_maintenance_add_up_whoever_routed(
    sink: Sink, client: StagingClient, target: StagingTarget
) -> None:
    """The broker routes a job, and replays its messages into another queue, while somebody asks for reports."""
    rows = 30_000
    client.commit_job("job", stage(target, "job", [bodies(rows)]))
    reported = maintain(sink.connection, ["route"])["routed"]
    when(client, "job", lambda job: job.state == "routed")
    sink.declare("again", x_start="first", x_filter="routing_key = 'q'")

    def is_done() -> bool:
        nonlocal reported
        reported += maintain(sink.connection, ["route"])["routed"]
        (replay,) = progress(sink.connection, ["again"])
        return bool(replay["done"])

    wait_until(is_done, 60, lambda: f"{reported} were reported")
    reported += maintain(sink.connection, ["route"])["routed"]
    assert reported == 2 * rows
    assert maintain(sink.connection, ["route"])["routed"] == 0


def test_a_paused_queue_and_one_without_a_consumer_are_named(
    sink: Sink, client: StagingClient, target: StagingTarget, url: str
) -> None:
    client.commit_job("job", stage(target, "job", [bodies(10)]))
    job = when(client, "job", lambda job: job.state == "routed" and job.blocked is not None)
    assert job.blocked is not None
    assert (job.blocked.queue, job.blocked.reason) == ("q", "queue 'q' has no consumer")
    with QueueClient(url) as queues:
        queues.pause("q", publishes=False)
        job = when(client, "job", lambda job: "paused" in str(job.blocked))
        assert job.tasks.waiting == 10
        queues.resume("q")
    consume(sink)
    sink.take(10)
    job = when(client, "job", lambda job: job.has_ended)
    assert (job.blocked, job.tasks.acknowledged, job.tasks.total) == (None, 10, 10)
