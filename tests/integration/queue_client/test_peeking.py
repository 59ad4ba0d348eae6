"""Peek, get by id, pages by state, metrics, queues."""

from __future__ import annotations

import base64
import pickle
import re
from typing import Any

import pytest

from kombu_opendata import errors
from kombu_opendata.queue_client.queue_options import QueueOptions

from ...support.kombu_client import connected
from ..conftest import Reach


def test_peek_changes_nothing(client: Any, queue: str) -> None:
    ids = client.send_batch(queue, range(5), [{"n": n} for n in range(5)])
    client.send(queue, "later", delay=3600)
    peeked = client.peek(queue, 10)
    assert [m.body for m in peeked] == [0, 1, 2, 3, 4, "later"]
    assert [m.headers for m in peeked[:5]] == [{"n": n} for n in range(5)]
    assert all(m.received_at is not None and m.visible_at is not None and not m.token for m in peeked)
    assert [m.body for m in client.peek(queue, 2, after=ids[1])] == [2, 3]
    assert client.peek(queue, 2, after=10**9) == []
    assert client.metrics(queue).ready == 5
    assert [m.attempts for m in client.read(queue, 60, 5)] == [1] * 5


def test_peek_at_large_messages(client: Any, queue: str) -> None:
    client.send_batch(queue, [b"x" * (1 << 20)] * 10)
    assert len(client.peek(queue, 10)) == 10


def test_a_message_by_its_id(client: Any, name: str) -> None:
    exchange, queues = f"{name}-x", [f"{name}-{number}" for number in range(3)]
    client.declare_exchange(exchange, "fanout")
    for queue in queues:
        client.create(queue)
        client.bind(queue, exchange)
    id = client.publish({"a": 1}, {"tenant": "t"}, exchange=exchange).id
    client.read(queues[0], 60)
    client.pop(queues[1])
    found = client.get(id)
    assert (found.message.body, found.message.headers, found.complete) == ({"a": 1}, {"tenant": "t"}, True)
    assert found.metadata["tenant"] == "t"
    assert found.metadata["exchange"] == exchange
    assert found.received_at is not None
    assert {state.queue: state.state for state in found.states} == dict(
        zip(queues, ["in_flight", "done", "available"], strict=True)
    )
    assert next(state for state in found.states if state.state == "in_flight").holder == "tester"
    assert [state.queue for state in client.get(id, queues[2]).states] == [queues[2]]
    with pytest.raises(errors.MessageNotFound):
        client.get(10**12)
    with pytest.raises(errors.NotFound):
        client.get(id, "nowhere")


def test_pages_by_state(client: Any, queue: str) -> None:
    ids = client.send_batch(queue, range(50))
    delayed = client.send_batch(queue, range(10), delay=3600)
    held = client.read(queue, 60, 40)
    client.archive_many(queue, held[:15])
    client.reject_many(queue, held[15:20])
    wanted = {
        "done": ids[:15], "failed": ids[15:20], "in_flight": ids[20:40], "available": ids[40:], "delayed": delayed,
    }  # fmt: skip
    for state, expected in wanted.items():
        found, after, pages = [], None, 0
        while True:
            page = client.list_by_state(queue, state, limit=4, after=after)
            found += [message.id for message in page.messages]
            assert {message.state for message in page.messages} <= {state}
            after, pages = page.after, pages + 1
            if after is None:
                break
        assert found == expected, state
        assert pages <= len(expected) // 4 + 1
        assert [message.id for message in client.iter_by_state(queue, state)] == expected
    assert client.list_by_state(queue, "done", limit=15).after is None


@pytest.mark.parametrize(("state", "limit"), [("gone", 10), ("done", 0), ("done", -1), ("done", 10**9)])
def test_pages_that_are_wrong(client: Any, queue: str, state: str, limit: int) -> None:
    with pytest.raises(errors.RequestError):
        client.list_by_state(queue, state, limit=limit)


@pytest.mark.parametrize("qty", [0, -1, 10**9, 1.5])
def test_peeks_that_are_wrong(client: Any, queue: str, qty: Any) -> None:
    with pytest.raises(errors.RequestError):
        client.peek(queue, qty)


def test_metrics(client: Any, queue: str, name: str) -> None:
    empty = client.metrics(queue)
    assert (empty.length, empty.oldest_age_seconds, empty.newest_age_seconds, empty.total) == (0, None, None, 0)
    client.send_batch(queue, range(10))
    client.send(queue, "later", delay=3600)
    client.pop(queue, 2)
    client.reject(queue, client.read(queue, 60)[0])
    client.read(queue, 60, 3)
    figures = client.metrics(queue)
    assert (figures.ready, figures.delayed, figures.in_flight, figures.length) == (4, 1, 3, 8)
    assert (figures.total, figures.done, figures.failed) == (11, 2, 1)
    assert 0 <= figures.newest_age_seconds <= figures.oldest_age_seconds < 60
    assert figures.sent_per_second > 0
    assert figures.counts["delivered"] == 6
    assert client.metrics_all()[queue].length == 8


def test_queues_are_listed_as_they_were_created(client: Any, name: str) -> None:
    options = QueueOptions(
        max_attempts=3, lease_seconds=40, done_retention_seconds=5, failed_retention_seconds=6, message_ttl_seconds=7.5,
        expires_seconds=3600, max_length=8, max_length_bytes=9000, overflow="drop-head", dead_letter_exchange="",
        dead_letter_routing_key="x", retry_delay_seconds=0.5, retry_max_delay_seconds=60, single_active_consumer=True,
        filter="a = 'b'", filter_mode="any", arguments={"x-max-priority": 9},
    )  # fmt: skip
    client.create(name, options)
    client.create(name, options)
    assert client.get_queue(name).arguments == {
        "x-delivery-limit": 3, "x-lease": 40, "x-done-retention": 5, "x-failed-retention": 6, "x-message-ttl": 7500,
        "x-expires": 3_600_000, "x-max-length": 8, "x-max-length-bytes": 9000, "x-overflow": "drop-head",
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "x", "x-retry-delay": 500,
        "x-retry-max-delay": 60_000, "x-single-active-consumer": True, "x-filter": "a = 'b'", "x-filter-mode": "any",
        "x-max-priority": 9,
    }  # fmt: skip
    assert name in [info.name for info in client.list_queues()]
    with pytest.raises(errors.PreconditionFailed):
        client.create(name)


def test_an_unknown_argument_is_refused_unless_it_is_forced(client: Any, name: str) -> None:
    options = QueueOptions(arguments={"x-max-lenght": 100})
    with pytest.raises(errors.RequestError, match=r"'x-max-lenght' .*did you mean 'x-max-length'\?.* use force"):
        client.create(name, options)
    assert name not in [info.name for info in client.list_queues()]
    client.create(name, options, force=True)
    assert client.get_queue(name).arguments == {"x-max-lenght": 100}


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"lease_seconds": 1}, {"lease_seconds": 40.5}, {"message_ttl_seconds": -1},
     {"message_ttl_seconds": float("nan")}, {"overflow": "explode"}, {"filter": "a ="}, {"start": "yesterday-ish"},
     {"max_length": -5}],
)  # fmt: skip
def test_queues_that_can_not_be(client: Any, name: str, options: dict[str, Any]) -> None:
    with pytest.raises(errors.RequestError):
        client.create(name, QueueOptions(**options))
    assert name not in [info.name for info in client.list_queues()]


@pytest.mark.parametrize("name", ["", "x" * 256, 3, "\ud800"])
def test_names_that_can_not_be(client: Any, name: Any) -> None:
    with pytest.raises(errors.RequestError):
        client.create(name)


def test_a_queue_is_dropped(client: Any, queue: str) -> None:
    client.send_batch(queue, "ab")
    with pytest.raises(errors.PreconditionFailed, match="has 2 messages"):
        client.delete_queue(queue, if_empty=True)
    messages = client.consume(queue, prefetch=1)
    next(messages)
    with pytest.raises(errors.PreconditionFailed, match="consumers"):
        client.delete_queue(queue, if_unused=True)
    assert client.delete_queue(queue) == 1
    messages.close()


def test_purge(client: Any, queue: str) -> None:
    client.send_batch(queue, range(5))
    client.send(queue, "later", delay=60)
    client.read(queue, 60, 2)
    assert client.purge(queue) == 4
    assert (client.metrics(queue).length, client.purge(queue)) == (2, 0)


def test_what_is_settled_is_deleted_and_redriven(client: Any, queue: str) -> None:
    client.send_batch(queue, range(6))
    client.archive_many(queue, client.read(queue, 60, 2))
    client.reject_many(queue, client.read(queue, 60, 3))
    assert client.redrive(queue, limit=1).moved == 1
    assert client.delete_settled(queue, "failed", all=True) == 2
    assert client.delete_settled(queue, older_than=3600) == 0
    assert client.delete_settled(queue, older_than=0) == 2
    figures = client.metrics(queue)
    assert (figures.ready, figures.done, figures.failed) == (2, 0, 0)
    for wrong in ({}, {"older_than": -1}, {"older_than": 1, "all": True}):
        with pytest.raises(errors.RequestError):
            client.delete_settled(queue, **wrong)


def test_failed_messages_are_archived(client: Any, queue: str) -> None:
    """They keep all they have, and are in one place."""
    ids = client.send_batch(queue, [{"n": n} for n in range(5)], [{"n": n} for n in range(5)])
    client.reject_many(queue, client.read(queue, 60, 4))
    failed = {state.id: state for state in client.iter_by_state(queue, "failed")}
    assert client.archive_failed(queue, where="n >= 1 AND n <= 2") == 2
    assert client.archive_failed(queue, older_than=3600) == 0
    assert client.archive_failed(queue, ids=ids[:1]) == 1
    assert [state.id for state in client.list_by_state(queue, "failed").messages] == [ids[3]]
    archived = client.list_by_state(queue, "archived_failed", limit=2)
    assert [state.id for state in archived.messages] == ids[1:3]
    (last,) = client.list_by_state(queue, "archived_failed", after=archived.after).messages
    assert (last.id, last.attempts, last.settled_at) == (ids[0], 1, failed[ids[0]].settled_at)
    found = client.get(ids[0])
    assert (found.message.body, found.message.headers) == ({"n": 0}, {"n": 0})
    assert [state.state for state in found.states] == ["archived_failed"]
    figures = client.metrics(queue)
    assert (figures.ready, figures.failed, figures.archived_failed, figures.done) == (1, 1, 3, 0)
    assert client.archive_failed(queue) == 1
    assert [one.id for one in client.list_messages(queues=[queue], statuses=["failed"]).items] == ids[3::-1]  # they did
    assert client.redrive(queue, ids=ids[3:4], state="archived_failed").moved == 1
    assert [message.attempts for message in client.peek(queue, 5)] == [0, 0]
    assert client.delete_settled(queue, "failed", all=True) == 0
    assert client.delete_settled(queue, "archived_failed", all=True) == 3
    with pytest.raises(errors.MessageNotFound):
        client.get(ids[0])
    for wrong in ({"limit": -1}, {"older_than": -1}, {"where": "n ="}, {"ids": 5}):
        with pytest.raises(errors.RequestError):
            client.archive_failed(queue, **wrong)
    for call in (client.archive_failed, client.redrive):
        with pytest.raises(errors.NotFound):
            call("nowhere")
    with pytest.raises(errors.RequestError, match="replay"):
        client.redrive(queue, state="done")


# ---------------------------------------------------------------------- topic patterns
@pytest.mark.parametrize("pattern", ["a", "a.b-c.D_9", "*", "#", "a.*.#", "#.a", "x" * 255])
def test_topic_patterns_that_are_taken(client: Any, queue: str, pattern: str) -> None:
    client.validate_topic_pattern(pattern)
    client.bind(queue, "amq.topic", pattern)
    assert [binding.routing_key for binding in client.list_bindings(queue)] == [pattern]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("", "can't be empty: '#'"), ("a..b", "two dots"), (".a", "begins"), ("a.", "ends"),
        ("a.**", "whole word"), ("a.##", "whole word"), ("*#", "whole word"),
        ("a*.b", "whole word"), ("a b", "characters other than"), ("a.ä", "characters other than"),
        ("a.b!", "characters other than"), ("a\n", "characters other than"),
        ("x" * 256, "at most 255"),
    ],
)  # fmt: skip
def test_topic_patterns_that_can_not_be_meant(client: Any, queue: str, pattern: str, reason: str) -> None:
    for call in (client.validate_topic_pattern, lambda text: client.bind(queue, "amq.topic", text)):
        with pytest.raises(errors.RequestError, match=re.escape(reason) if pattern != "x" * 256 else None):
            call(pattern)
    assert client.list_bindings(queue) == []


def test_routing_keys_are_checked_by_who_asks_for_it(client: Any, queue: str) -> None:
    client.validate_routing_key("a.b-c.D_9")
    for wrong in ("", "a..b", ".a", "a.", "a.*", "#", "a b", "x" * 256, 5):
        with pytest.raises(errors.RequestError):
            client.validate_routing_key(wrong)
    client.bind(queue, "amq.direct", "any thing..")  # it is no pattern there
    assert queue in client.publish("x", exchange="amq.direct", routing_key="any thing..").queues


def test_kombu_binds_as_to_rabbitmq(reach: Reach, client: Any, queue: str) -> None:
    with connected(reach.url, **reach.options) as connection, connection.channel() as channel:
        channel.queue_bind(queue, "amq.topic", "a..b")
    assert queue in client.test_routing("amq.topic", "a..b")


# ---------------------------------------------------------------------- Kombu's messages
def test_kombus_messages_are_read(reach: Reach, client: Any, queue: str) -> None:
    sent: list[tuple[Any, dict[str, Any], Any]] = [
        ({"a": [1, "é"]}, {"serializer": "json"}, {"a": [1, "é"]}),
        (b"\x81\xa1a\x01", {"content_type": "application/x-msgpack", "content_encoding": "binary"}, {"a": 1}),
        ({"a": 1}, {"serializer": "msgspec"}, {"a": 1}),
        ({"a": "x" * 1000}, {"serializer": "json", "compression": "zlib"}, {"a": "x" * 1000}),
        ({"a": "x" * 1000}, {"serializer": "json", "compression": "bzip2"}, {"a": "x" * 1000}),
        ("text é", {"serializer": "raw", "content_type": "text/plain", "content_encoding": "utf-8"}, "text é"),
        (b"\x00\xff", {"content_type": "application/x-thing", "content_encoding": "binary"}, b"\x00\xff"),
        (b"not json", {"content_type": "application/json", "content_encoding": "utf-8"}, b"not json"),
    ]
    with connected(reach.url, **reach.options) as kombu, kombu.Producer() as producer:
        for body, options, _expected in sent:
            producer.publish(body, routing_key=queue, headers={"h": 1}, **options)
        producer.publish({"a": 1}, routing_key=queue, serializer="pickle")
    read = client.read(queue, 60, 20)
    assert [message.body for message in read[:-1]] == [expected for _body, _options, expected in sent]
    assert all(message.headers["h"] == 1 for message in read[:-1])
    raw = read[-1].body
    assert isinstance(raw, bytes)
    assert pickle.loads(base64.b64decode(raw) if read[-1].content_encoding == "base64" else raw) == {"a": 1}


def test_kombu_reads_what_is_sent(reach: Reach, client: Any, queue: str) -> None:
    client.send(queue, {"a": [1, "é"]}, {"h": "x"}, priority=4, properties={"correlation_id": "c", "reply_to": "r"})
    client.send(queue, "text é")
    client.send(queue, b"\x00\xff")
    with connected(reach.url, **reach.options) as kombu:
        channel = kombu.channel()
        first = channel.basic_get(queue)
        assert first.decode() == {"a": [1, "é"]}
        assert (first.headers["h"], first.properties["priority"]) == ("x", 4)
        assert (first.properties["correlation_id"], first.properties["reply_to"]) == ("c", "r")
        assert channel.basic_get(queue).decode() == "text é"
        assert bytes(channel.basic_get(queue).decode()) == b"\x00\xff"
