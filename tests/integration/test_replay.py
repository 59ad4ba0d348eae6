"""Queues that begin in the past, replay, redrive and deletion, over a real broker process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu import entity

from kombu_opendata import QueueClient, errors
from kombu_opendata.broker import memory
from kombu_opendata.client import maintain
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.queue_client.queue_options import QueueOptions
from kombu_opendata.url import parse

from ..support import replay_calls as replay
from ..support.broker import EmbeddedBroker
from ..support.kombu_client import Inbox, connected, declare, drain_until, open_connection, send, take, take_bodies
from ..support.processes import wait_until


@pytest.fixture
def connection(broker_url: str) -> Iterator[Any]:
    with connected(broker_url) as opened:
        yield opened


@pytest.fixture
def channel(connection: Any) -> Any:
    return connection.channel()


def broker_of(channel: Any) -> Any:
    """The connection below Kombu's."""
    return channel.connection


def fill(channel: Any, *queues: str) -> None:
    """Wait until the cursors of these queues are done."""
    wait_until(lambda: all(c["done"] for c in replay.progress(broker_of(channel), queues)), 60, "end of the replay")


def begin(channel: Any, name: str, start: Any, routing_key: str = "k", arguments: dict[str, Any] | None = None) -> None:
    """A queue bound to the exchange "log", as Kombu does it."""
    kombu: Any = entity
    exchange = kombu.Exchange("log", "topic", durable=True)
    queue = kombu.Queue(name, exchange, routing_key, queue_arguments={"x-start": start, **(arguments or {})})
    queue.bind(channel).declare()


@pytest.fixture
def log(channel: Any) -> Any:
    """An exchange with a queue that keeps its messages."""
    begin(channel, "keep", "now", "#")
    return channel


def test_a_queue_begins_with_the_first_stored_message(log: Any) -> None:
    send(log, "k", *(f"old{n}" for n in range(300)), exchange="log")
    send(log, "other", "not for it", exchange="log")
    begin(log, "late", "first")
    send(log, "k", "new", exchange="log")
    fill(log, "late")
    assert take_bodies(log, "late") == [*(f"old{n}" for n in range(300)), "new"]
    (progress,) = replay.progress(broker_of(log), ["late"])
    assert (progress["routed"], progress["start"], progress["done"]) == (300, 0, True)
    assert progress["position"] == progress["end"]
    assert take(log, "late") == []


def later(at: datetime) -> datetime:
    """Wait for another millisecond of this host's clock, which is the broker's."""
    while (now := datetime.now(UTC)) < at + timedelta(milliseconds=2):
        pass
    return now


def test_a_queue_begins_at_a_time_or_at_a_message(log: Any) -> None:
    send(log, "k", "a", "b", exchange="log")
    at = later(datetime.now(UTC))
    later(at)
    send(log, "k", "c", "d", exchange="log")
    begin(log, "by-time", at.isoformat())
    fill(log, "by-time")
    assert take_bodies(log, "by-time") == ["c", "d"]
    begin(log, "all", "first")
    fill(log, "all")
    last = [message.delivery_info for message in take(log, "all")][-1]
    assert last
    begin(log, "by-id", 0)
    fill(log, "by-id")
    assert len(take_bodies(log, "by-id")) == 4


@pytest.mark.parametrize(
    ("start", "text"),
    [
        ("then", "x-start must be"),
        ("2026-01-31T12:00:00", "x-start must be"),
        (True, "x-start must be"),
        (1 << 40, "is in the future: the next message id is 0"),
        ("2126-01-31T12:00:00Z", "is in the future"),
    ],
)
def test_a_start_that_is_none(channel: Any, start: Any, text: str) -> None:
    with pytest.raises(errors.RequestError, match=text):
        declare(channel, "late", arguments={"x-start": start})
    with pytest.raises(errors.NotFound):
        channel.queue_declare("late", passive=True)


def test_a_queue_that_is_not_stored_can_not_begin_in_the_past(log: Any) -> None:
    send(log, "k", "old", exchange="log")
    with pytest.raises(errors.RequestError, match="only a stored queue"):
        log.queue_declare("late", durable=False, auto_delete=False, arguments={"x-start": "first"})
    declare(log, "fine", durable=False, arguments={"x-start": "now"})


def test_a_binding_that_comes_later_counts_for_the_whole_replay(log: Any) -> None:
    send(log, "a", "a0", "a1", exchange="log")
    send(log, "b", "b0", exchange="log")
    begin(log, "late", "first", "a")
    fill(log, "late")
    log.queue_bind("late", "log", "b")
    fill(log, "late")
    assert sorted(take_bodies(log, "late")) == ["a0", "a1", "b0"]


@pytest.mark.parametrize("stored", [[], ["old"]])
def test_what_is_published_between_declaration_and_binding_comes_too(log: Any, stored: list[str]) -> None:
    send(log, "k", *stored, exchange="log")
    declare(log, "late", arguments={"x-start": "first"})
    fill(log, "late")
    send(log, "k", "between", exchange="log")
    send(log, "late", "itself")
    log.queue_bind("late", "log", "k")
    fill(log, "late")
    assert sorted(take_bodies(log, "late")) == ["between", "itself", *stored]


def test_a_replay_goes_on_after_a_restart_of_the_broker(log: Any, store_folder: Any) -> None:
    broker = EmbeddedBroker(store_folder)
    send(log, "k", *(str(n) for n in range(2000)), exchange="log")
    begin(log, "late", "first")
    broker.kill()
    send(log, "k", "new", exchange="log")
    fill(log, "late")
    broker.terminate()
    assert take_bodies(log, "late") == [*(str(n) for n in range(2000)), "new"]


def test_what_is_done_runs_again_when_asked_for(log: Any) -> None:
    send(log, "k", "a", "b", "c", exchange="log")
    (first, *_others) = take(log, "keep")
    first.ack()
    drop = replay.start_replay(broker_of(log), "keep", "first")
    assert drop["again"]
    fill(log, "keep")
    assert take_bodies(log, "keep") == ["a"], "the others are in flight"


def test_a_second_replay_waits_for_the_end_of_the_first_or_its_stop(log: Any) -> None:
    begin(log, "full", "now", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    connection = broker_of(log)
    begin(log, "more", "now")
    send(log, "more", "x", exchange="")
    send(log, "other", *"abcde", exchange="log")
    log.queue_bind("full", "log", "other")
    replay.start_replay(connection, "full", "first")
    wait_until(lambda: replay.progress(connection, ["full"])[0]["waiting"], 60, "a full queue")
    with pytest.raises(errors.PreconditionFailed, match="being filled"):
        replay.start_replay(connection, "full", "first")
    assert take_bodies(log, "full")[:2] == ["a", "b"]
    replay.stop_replay(connection, "full")
    with pytest.raises(errors.PreconditionFailed, match="has no replay to stop"):
        replay.stop_replay(connection, "full")


def test_a_full_queue_makes_the_replay_wait_and_loses_nothing(log: Any) -> None:
    send(log, "k", *"abcdefg", exchange="log")
    begin(log, "full", "first", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    taken: list[str] = []

    def all_taken() -> bool:
        taken.extend(take_bodies(log, "full"))
        return len(taken) == 7

    wait_until(all_taken, 60, "all messages")
    assert taken == list("abcdefg")


def test_a_queue_that_drops_its_oldest_keeps_the_newest(log: Any) -> None:
    send(log, "k", *"abcdefg", exchange="log")
    begin(log, "short", "first", arguments={"x-max-length": 2})
    fill(log, "short")
    assert take_bodies(log, "short") == ["f", "g"]


def test_a_consumer_gets_what_is_replayed(log: Any, connection: Any) -> None:
    send(log, "k", *(str(n) for n in range(50)), exchange="log")
    begin(log, "late", "first")
    inbox = Inbox()
    inbox.consume(log, "late", no_ack=True)
    drain_until(connection, lambda: len(inbox) == 50)
    assert inbox.bodies == [str(n) for n in range(50)]


def test_the_replay_is_in_the_report_and_part_of_maintenance(log: Any, store_folder: Any) -> None:
    send(log, "k", "a", exchange="log")
    begin(log, "late", "first")
    maintain.maintain(broker_of(log), ["route"])
    fill(log, "late")
    report = EmbeddedBroker(store_folder).report()["queues"]
    assert report["late"]["replay"]["routed"] == 1
    assert "replay" not in report["keep"]


def test_deleting_the_queue_ends_its_replay(log: Any) -> None:
    send(log, "k", *(str(n) for n in range(500)), exchange="log")
    begin(log, "late", "first")
    log.queue_delete("late")
    begin(log, "late", "now")
    assert replay.progress(broker_of(log), ["late"]) == []
    assert take_bodies(log, "late") == []


def test_redrive_and_delete(log: Any) -> None:
    connection = broker_of(log)
    send(log, "k", *"abcd", exchange="log", headers={"task": "bad"})
    send(log, "k", "e", exchange="log", headers={"task": "good"})
    for message in take(log, "keep"):
        message.reject()
    done = replay.redrive(connection, "keep", selector="task = 'bad'", limit=3)
    assert (done.moved, done.is_full) == (3, False)
    assert take_bodies(log, "keep") == ["a", "b", "c"]
    declare(log, "rescue")
    assert replay.redrive(connection, "keep", "rescue").moved == 2
    assert sorted(take_bodies(log, "rescue")) == ["d", "e"]
    assert replay.delete_settled(connection, "keep", "failed", all=True) == 0
    assert replay.delete_settled(connection, "keep", "done", older_than=3600) == 0
    assert replay.delete_settled(connection, "keep", "done", older_than=0) == 3
    assert replay.delete_settled(connection, "rescue", "done", ids=range(10_000)) == 2


def test_a_filter_chooses_what_a_queue_begins_with(log: Any) -> None:
    for number in range(20):
        headers = {"task": "billing.send" if number % 4 == 0 else "other", "number": number}
        send(log, "k", str(number), exchange="log", headers=headers)
    declare(log, "billing", arguments={"x-start": "first", "x-filter": "task LIKE 'billing.%' AND number >= 8"})
    begin(log, "both", "first", "k", {"x-filter": "number BETWEEN 5 AND 8", "x-filter-mode": "all"})
    fill(log, "billing", "both")
    send(log, "elsewhere", "new", exchange="log", headers={"task": "billing.new", "number": 9})
    assert take_bodies(log, "billing") == ["8", "12", "16", "new"]
    assert take_bodies(log, "both") == ["5", "6", "7", "8"]
    replay.start_replay(broker_of(log), "billing", "first", selector="number = 12")
    fill(log, "billing")
    assert take_bodies(log, "billing") == ["12"]


def test_a_broker_in_memory_replays_too() -> None:
    name = f"replay-{uuid.uuid4().hex}"
    try:
        with connected(f"opendata+memory://{name}") as connection:
            channel = connection.channel()
            begin(channel, "keep", "now", "#")
            send(channel, "k", *(str(n) for n in range(1000)), exchange="log")
            begin(channel, "late", "first")
            send(channel, "k", "new", exchange="log")
            fill(channel, "late")
            assert take_bodies(channel, "late") == [*(str(n) for n in range(1000)), "new"]
            for message in take(channel, "keep"):
                message.reject()
            assert replay.redrive(broker_of(channel), "keep").moved == 1001
            assert len(take_bodies(channel, "keep")) == 1001
    finally:
        memory.stop(name)


def test_the_queue_client_has_the_calls(broker_url: str) -> None:
    with QueueClient(broker_url) as client:
        client.create("keep")
        for number in range(12):
            client.send("keep", {"n": number}, headers={"n": number})
        client.create("late", QueueOptions(start="first", filter="n < 5"))
        wait_until(lambda: client.replay_progress(["late"])[0]["done"], 60, "end of the replay")
        assert len(client.read("late", vt=30, qty=100)) == 5
        client.reject_many("keep", [message.id for message in client.read("keep", vt=30, qty=100)])
        done = client.redrive("keep", where="n >= 6", limit=4)
        assert (done.moved, done.is_full) == (4, False)
        assert client.delete_settled("keep", "failed", all=True) == 8
        client.replay("keep", "first", where="n = 11")
        with pytest.raises(errors.RequestError):
            client.redrive("keep", limit=-1)


def test_a_redrive_ends_with_its_connection_and_can_be_asked_for_again(log: Any, broker_url: str) -> None:
    """Whatever the first one moved before its client was gone, in the end each message is there once."""
    with open_connection(broker_url, publish_mode="pipeline") as sender:
        send(sender.channel(), "k", *(str(n) for n in range(3000)), exchange="log")
    for message in take(log, "keep"):
        message.reject()
    declare(log, "rescue")
    client = BrokerConnection(parse(broker_url), Options(name="hasty"))
    with pytest.raises(TimeoutError):
        replay.redrive(client, "keep", "rescue", timeout=0.0)
    client.close()
    replay.redrive(broker_of(log), "keep", "rescue")
    wait_until(lambda: declare(log, "rescue").message_count == 3000, 60, "all messages in one place")
    assert replay.redrive(broker_of(log), "keep", "rescue").moved == 0
    assert sorted(map(int, take_bodies(log, "rescue"))) == list(range(3000))


def test_wrong_calls(log: Any) -> None:
    connection = broker_of(log)
    declare(log, "transient", durable=False)
    with pytest.raises(errors.NotFound):
        replay.redrive(connection, "nowhere")
    with pytest.raises(errors.NotFound):
        replay.redrive(connection, "keep", "nowhere")
    with pytest.raises(errors.RequestError, match="not stored"):
        replay.redrive(connection, "transient")
    with pytest.raises(errors.RequestError, match="not stored"):
        replay.start_replay(connection, "transient", "first")
    with pytest.raises(errors.SelectorError):
        replay.redrive(connection, "keep", selector="task = ")
    with pytest.raises(errors.SelectorError):
        replay.start_replay(connection, "keep", "first", selector="1 +")
    with pytest.raises(errors.RequestError, match="a limit of -1"):
        replay.redrive(connection, "keep", limit=-1)
    with pytest.raises(errors.RequestError, match="not a position in the message log"):
        replay.start_replay(connection, "keep", datetime(2026, 1, 31, 12))
    with pytest.raises(errors.RequestError, match="before the start"):
        replay.start_replay(connection, "keep", datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))
    with pytest.raises(errors.RequestError, match="done, failed, archived_failed"):
        replay.delete_settled(connection, "keep", "all", all=True)
    with pytest.raises(errors.RequestError, match="by one of"):
        replay.delete_settled(connection, "keep", "done")
    with pytest.raises(errors.RequestError, match="by one of"):
        replay.delete_settled(connection, "keep", "done", older_than=1, all=True)
    with pytest.raises(errors.RequestError, match="100000"):
        replay.redrive(connection, "keep", ids=range(100_001))
