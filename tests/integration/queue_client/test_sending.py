"""Sending: what goes in comes out; batches; delays; idempotency keys; every queue that matches."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kombu_opendata import QueueClient, errors
from kombu_opendata.protocol.envelope import DEFAULT_MAX_MESSAGE_BYTES
from kombu_opendata.queue_client.queue_options import QueueOptions

from ..conftest import Reach
from .conftest import options_of

BODIES: list[Any] = [
    {"a": [1, None, {"b": "é"}]}, [1, 2], 3, 1.5, True, None, "", "text é", b"", b"\x00\xff", "x" * 100_000,
    b"y" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("durable", [True, False])
def test_bodies_and_headers_come_back_as_they_were_sent(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    headers = {"tenant": "a", "n": 3, "nested": {"x": [1]}}
    ids = [client.send(name, body, headers, properties={"correlation_id": "c"}) for body in BODIES]
    assert ids == sorted(set(ids))
    read = client.read(name, 30, len(BODIES))
    assert [message.body for message in read] == BODIES
    assert [message.id for message in read] == ids
    assert all(message.headers == headers for message in read)
    assert all(message.properties["correlation_id"] == "c" for message in read)
    assert {message.queue for message in read} == {name}
    assert all(message.attempts == 1 and message.token and not message.redelivered for message in read)


def test_a_message_for_a_queue_that_is_not_there(client: Any, name: str) -> None:
    with pytest.raises(errors.NotFound, match="create it first"):
        client.send(name, 1)
    with pytest.raises(errors.NotFound):
        client.send_batch(name, [1, 2])


def test_a_filter_that_takes_it_does_not_stand_for_the_queue_that_was_named(client: Any, name: str) -> None:
    client.create(f"{name}-all", QueueOptions(filter=f"tenant = '{name}'"))
    with pytest.raises(errors.NotFound, match="create it first"):
        client.send(name, 1, {"tenant": name})
    assert client.metrics(f"{name}-all").length == 0


def test_a_queue_whose_filter_refuses_the_message(client: Any, name: str) -> None:
    client.create(name, QueueOptions(filter=f"tenant = '{name}'", filter_mode="all"))
    with pytest.raises(errors.Unroutable, match="its filter"):
        client.send(name, 1, {"tenant": "another"})
    with pytest.raises(errors.Unroutable):
        client.send_batch(name, [1, 2], [{"tenant": name}, None])
    client.send_batch(name, [1, 2], {"tenant": name})
    assert client.metrics(name).length == 2


def test_priorities_come_first_and_equals_in_order(client: Any, queue: str) -> None:
    for body, priority in (("a", 0), ("b", 9), ("c", 5), ("d", 9), ("e", 255)):
        client.send(queue, body, priority=priority)
    assert [message.body for message in client.read(queue, 30, 10)] == ["e", "b", "d", "c", "a"]


def test_delays_and_moments(client: Any, queue: str) -> None:
    hour = timedelta(hours=1)
    client.send(queue, "delay", delay=3600)
    client.send(queue, "timedelta", delay=hour)
    client.send(queue, "datetime", at=datetime.now(UTC) + hour)
    client.send(queue, "epoch", at=time.time() + 3600)
    now = client.send(queue, "past", at=datetime.now(UTC) - hour)
    client.send(queue, "none", delay=0)
    assert [message.id for message in client.read(queue, 30, 10)] == [now, now + 1]
    assert client.metrics(queue).delayed == 4
    due = [state.visible_at for state in client.iter_by_state(queue, "delayed")]
    assert all(abs(at - datetime.now(UTC) - hour) < timedelta(minutes=1) for at in due)
    client.set_vt_many(queue, [state.id for state in client.iter_by_state(queue, "delayed")], 0)
    assert {message.body for message in client.read(queue, 30, 10)} == {"delay", "timedelta", "datetime", "epoch"}


def test_a_short_delay_wakes_a_poll(client: Any, queue: str) -> None:
    before = time.time()
    client.send(queue, "soon", delay=0.5)
    assert [message.body for message in client.read_with_poll(queue, max_poll_seconds=60)] == ["soon"]
    assert time.time() - before > 0.49, "it was not to be had before"


def test_what_nobody_reads_in_time_is_gone(client: Any, queue: str) -> None:
    kept = client.send(queue, "kept", ttl=3600)
    client.send(queue, "gone", ttl=0)
    assert [message.id for message in client.read(queue, 30, 10)] == [kept]


def test_batches(client: Any, queue: str) -> None:
    assert client.send_batch(queue, []) == []
    ids = client.send_batch(queue, range(1000), priority=3)
    assert ids == list(range(ids[0], ids[0] + 1000))
    each = client.send_batch(queue, ["a", "b"], [{"n": 1}, None])
    read = client.read(queue, 30, 1000)
    assert [message.body for message in read] == list(range(1000))
    assert [(m.id, m.headers) for m in client.read(queue, 30, 1000)] == [(each[0], {"n": 1}), (each[1], {})]


def test_a_batch_is_stored_as_a_whole_or_not_at_all(client: Any, queue: str) -> None:
    many = {f"h{number}": number for number in range(300)}
    for bodies, headers in (([1, 2, object()], None), ([1, 2], [{}, many]), ([1], [{}, {}]), ([1] * 10_001, None)):
        with pytest.raises(errors.RequestError):
            client.send_batch(queue, bodies, headers)
    assert client.metrics(queue).length == 0


def test_a_batch_that_does_not_fit_its_queue(client: Any, name: str) -> None:
    client.create(name, QueueOptions(max_length=5, overflow="reject-publish"))
    client.send_batch(name, [1, 2, 3])
    with pytest.raises(errors.QueueFull):
        client.send_batch(name, [4, 5, 6])
    assert client.metrics(name).length == 3
    assert len(client.send_batch(name, [4, 5])) == 2


def test_a_batch_that_fits_its_queue_never(client: Any, name: str) -> None:
    client.create(name, QueueOptions(max_length=5, overflow="reject-publish"))
    with pytest.raises(errors.RequestError, match="send fewer at a time"):
        client.send_batch(name, range(6))
    assert client.metrics(name).length == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda client, name: client.send(name, "\ud800"), "the body"),
        (lambda client, name: client.send(name, 1, [("a", 1)]), "the headers must be a mapping"),
        (lambda client, name: client.send(name, 1, properties=[1]), "the properties must be a mapping"),
        (lambda client, name: client.send(name, 1, properties={"priority": 9}), "argument 'priority'"),
        (lambda client, name: client.send(name, 1, properties={"expiration": "100"}), "argument 'ttl'"),
        (lambda client, name: client.publish(1, routing_key="a" * 256), "the routing key has 256 bytes"),
        (lambda client, name: client.test_routing("amq.topic", "é" * 128), "the routing key has 256 bytes"),
        (lambda client, name: client.explain(name, headers=[1]), "headers must be a mapping"),
        (lambda client, name: client.redrive(name, ids=5), "message ids must be a list"),
        (lambda client, name: client.create(f"{name}-2", {"max_length": 5}), "QueueOptions, not dict"),
    ],
)
def test_arguments_that_are_none(client: Any, queue: str, call: Any, text: str) -> None:
    with pytest.raises(errors.RequestError, match=text):
        call(client, queue)
    assert client.metrics(queue).length == 0


def test_times_of_a_queue(client: Any, name: str) -> None:
    options = QueueOptions(
        message_ttl_seconds=timedelta(seconds=1.1), expires_seconds=0.0004, lease_seconds=timedelta(minutes=1)
    )
    client.create(name, options)
    assert client.get_queue(name).arguments == {"x-message-ttl": 1100, "x-expires": 1, "x-lease": 60}


def test_to_every_queue_that_matches(client: Any, name: str) -> None:
    exchange, queues = f"{name}-x", [f"{name}-{number}" for number in range(3)]
    client.declare_exchange(exchange)
    for queue, pattern in zip(queues, ("stock.*", "stock.#", "other"), strict=True):
        client.create(queue)
        client.bind(queue, exchange, pattern)
    assert client.test_routing(exchange, "stock.a") == queues[:2]
    published = client.publish({"price": 1}, {"n": 1}, exchange=exchange, routing_key="stock.a")
    assert published.queues == tuple(queues[:2])
    assert [client.read(queue)[0].id for queue in queues[:2]] == [published.id] * 2
    nobody = client.publish("?", exchange=exchange, routing_key="nobody")
    assert (nobody.id, nobody.queues) == (None, ())
    client.unbind(queues[0], exchange, "stock.*")
    assert client.test_routing(exchange, "stock.a") == [queues[1]]
    assert {binding.queue for binding in client.list_bindings() if binding.exchange == exchange} == set(queues[1:])
    assert [binding.routing_key for binding in client.list_bindings(queues[1])] == ["stock.#"]
    (info,) = (info for info in client.list_exchanges() if info.name == exchange)
    assert (info.type, info.durable, info.auto_delete, info.arguments, info.bindings) == ("topic", True, False, {}, 2)
    client.delete_exchange(exchange)
    with pytest.raises(errors.NotFound):
        client.publish("?", exchange=exchange)


def test_bindings_say_their_arguments(client: Any, name: str) -> None:
    exchange = f"{name}-headers"
    client.create(name)
    client.declare_exchange(exchange, "headers")
    client.bind(name, exchange, "", {"x-match": "any", "kind": "order"})
    (binding,) = client.list_bindings(name)
    assert binding.arguments == {"x-match": "any", "kind": "order"}
    client.unbind(name, exchange, "", binding.arguments)
    assert client.list_bindings(name) == []


def test_a_queue_that_is_a_filter(client: Any, name: str) -> None:
    client.create(f"{name}-all")
    client.create(name, QueueOptions(filter=f"tenant = '{name}' AND amount > 10"))
    sent = client.publish({"x": 1}, {"tenant": name, "amount": 11}, routing_key=f"{name}-all")
    assert set(sent.queues) == {f"{name}-all", name}
    assert client.publish("no", {"tenant": name, "amount": 9}, routing_key=f"{name}-all").queues == (f"{name}-all",)
    assert client.test_routing("", f"{name}-all", {"tenant": name, "amount": 12}) == list(sent.queues)
    client.create(f"{name}-priorities", QueueOptions(filter=f"tenant = '{name}' AND priority >= 0"))
    assert client.explain(f"{name}-priorities", headers={"tenant": name})["matches"] is True
    nine = {"tenant": name, "amount": "9", "exchange": "", "routing_key": ""}
    assert client.explain(name, headers=nine)["matches"] is False


# ---------------------------------------------------------------------- idempotency keys
def test_a_key_is_used_once(client: Any, opener: Any, queue: str) -> None:
    first = client.send(queue, {"order": 1}, idempotency_key="k")
    assert client.send(queue, {"order": 1}, idempotency_key="k") == first
    assert opener(name="another").send(queue, {"order": 1}, idempotency_key="k") == first
    with pytest.raises(errors.KeyReused) as caught:
        client.send(queue, {"order": 2}, idempotency_key="k")
    assert caught.value.values == {"key": "k", "ids": [first]}
    assert client.send(queue, {"order": 1}, idempotency_key="another") != first
    assert client.metrics(queue).length == 2


def test_a_key_counts_for_its_queue(client: Any, queue: str, name: str) -> None:
    client.create(f"{name}-2")
    ids = {client.send(target, "same", idempotency_key="k") for target in (queue, f"{name}-2")}
    assert len(ids) == 2


@pytest.mark.parametrize("durable", [True, False])
def test_a_key_counts_for_a_queue_until_it_is_dropped(client: Any, name: str, durable: bool) -> None:
    options = QueueOptions(durable=durable)
    client.create(name, options)
    first = client.send(name, "a", idempotency_key="k")
    assert client.publish("a", routing_key=name, idempotency_key="k").id == first
    client.delete_queue(name)
    with pytest.raises(errors.NotFound):
        client.send(name, "a", idempotency_key="k")
    client.create(name, options)
    second = client.send(name, "a", idempotency_key="k")
    assert second != first
    assert client.send(name, "a", idempotency_key="k") == second
    assert client.metrics(name).length == 1


def test_a_key_of_a_transient_queue_counts_for_a_stored_one_that_got_it_too(client: Any, name: str) -> None:
    client.create(f"{name}-all", QueueOptions(filter=f"tenant = '{name}'"))
    for _ in range(2):
        client.create(name, QueueOptions(durable=False))
        first = client.send(name, "a", {"tenant": name}, idempotency_key="k")
        assert client.send(name, "a", {"tenant": name}, idempotency_key="k") == first
        client.delete_queue(name)
    assert client.metrics(f"{name}-all").length == 2


def test_a_key_of_a_batch_and_of_a_publish(client: Any, queue: str) -> None:
    ids = client.send_batch(queue, ["a", "b"], idempotency_key="k")
    assert client.send_batch(queue, ["a", "b"], idempotency_key="k") == ids
    first = client.publish("c", routing_key=queue, idempotency_key="p")
    again = client.publish("c", routing_key=queue, idempotency_key="p")
    assert (first.id, first.queues, first.repeated) == (again.id, again.queues, False)
    assert again.repeated


def test_a_key_is_forgotten_in_time(client: Any, queue: str) -> None:
    first = client.send(queue, "a", idempotency_key="k", key_seconds=0.001)
    deadline = time.monotonic() + 10
    while (again := client.send(queue, "a", idempotency_key="k", key_seconds=0.001)) == first:
        assert time.monotonic() < deadline
    assert again > first


def test_what_was_settled_is_still_known_by_its_key(client: Any, queue: str) -> None:
    first = client.send(queue, "a", idempotency_key="k")
    client.delete(queue, first)
    assert client.send(queue, "a", idempotency_key="k") == first
    assert client.metrics(queue).length == 0


@pytest.mark.parametrize(
    "call",
    [
        {"priority": 256}, {"priority": -1}, {"priority": True}, {"ttl": -1}, {"ttl": float("nan")}, {"delay": -1},
        {"delay": float("inf")}, {"delay": 1, "at": 1}, {"at": float("nan")}, {"idempotency_key": "x" * 256},
        {"idempotency_key": "k", "key_seconds": 0}, {"idempotency_key": "k", "key_seconds": 31 * 86_400},
        {"headers": {"h": object()}}, {"headers": {"h": "x" * 70_000}}, {"delay": "1"},
    ],
)  # fmt: skip
def test_calls_that_are_wrong(client: Any, queue: str, call: dict[str, Any]) -> None:
    with pytest.raises(errors.RequestError):
        client.send(queue, "body", **call)
    assert client.metrics(queue).length == 0


def test_a_body_that_is_too_large(client: Any, queue: str) -> None:
    with pytest.raises(errors.MessageTooLarge, match="limit"):
        client.send(queue, b"x" * (DEFAULT_MAX_MESSAGE_BYTES + 1))
    assert client.send(queue, "still works") >= 0


# ---------------------------------------------------------------------- a batch with a key for each message
@pytest.mark.parametrize("durable", [True, False], ids=["stored", "transient"])
def test_each_message_of_a_batch_is_stored_once(client: Any, name: str, durable: bool) -> None:
    client.create(name, QueueOptions(durable=durable))
    first = client.send_each_once(name, ["a", "b"], ["ka", "kb"], {"tenant": "t"})
    assert [one.new for one in first] == [True, True]
    again = client.send_each_once(name, ["b", "c", "a", "c", "d", "d"], ["kb", "kc", "ka", "kc", "", ""])
    assert [one.new for one in again] == [False, True, False, False, True, True]
    assert [again[0].id, again[2].id, again[3].id] == [first[1].id, first[0].id, again[1].id]
    assert len({one.id for one in again}) == 5
    assert [message.body for message in client.read(name, 60, 10)] == ["a", "b", "c", "d", "d"]
    assert client.send_each_once(name, ["a"], ["ka"]) == [replace(first[0], repeated=True)]
    assert client.send(name, "a", idempotency_key="ka") == first[0].id, "a key is a key, however it was sent"
    assert client.send_each_once(name, [], []) == []
    assert client.metrics(name).total == 5


def test_a_key_stands_for_one_message_of_a_batch(client: Any, queue: str) -> None:
    client.send_each_once(queue, ["a"], ["ka"])
    for bodies, keys in ((["new", "other"], ["k", "ka"]), (["x", "y"], ["k", "k"])):
        with pytest.raises(errors.KeyReused, match="nothing was stored"):
            client.send_each_once(queue, bodies, keys)
    assert client.metrics(queue).total == 1
    wrong: list[tuple[Any, Any]] = [
        (["a"], []),
        (["a"], ["k", "l"]),
        (["a"], [None]),
        (["a"], ["x" * 256]),
        (["a"], "k"),
    ]
    for given, keys in wrong:
        with pytest.raises(errors.RequestError):
            client.send_each_once(queue, given, keys)
    with pytest.raises(errors.NotFound):
        client.send_each_once(f"{queue}-nowhere", ["a"], ["k"])
    assert client.metrics(queue).total == 1


def test_a_row_that_does_not_fit_is_none_of_the_others(client: Any, name: str) -> None:
    """All or none, of those that are new."""
    client.create(name, QueueOptions(max_length=2, overflow="reject-publish"))
    (first,) = client.send_each_once(name, ["a"], ["ka"])
    with pytest.raises(errors.OpenDataError):
        client.send_each_once(name, ["a", "b", "c"], ["ka", "kb", "kc"])
    assert client.metrics(name).total == 1
    second = client.send_each_once(name, ["a", "b"], ["ka", "kb"])
    assert [(one.id == first.id, one.new) for one in second] == [(True, False), (False, True)]


def test_clients_that_send_the_same_rows_at_a_time_store_them_once(reach: Reach, client: Any, queue: str) -> None:
    """Ten of them, none of whose keys is known when they begin."""
    rows = [f"row{number}" for number in range(50)]
    with ExitStack() as stack, ThreadPoolExecutor(10) as threads:
        clients = [stack.enter_context(QueueClient(reach.url, **options_of(reach))) for _ in range(10)]
        answers = list(threads.map(lambda one: one.send_each_once(queue, rows, rows), clients))
    assert len({tuple(row.id for row in answer) for answer in answers}) == 1
    assert [sum(answer[at].new for answer in answers) for at in range(50)] == [1] * 50
    assert [message.body for message in client.read(queue, 60, 100)] == rows


def test_keys_of_rows_are_known_after_a_restart(broker: Any, broker_url: str) -> None:
    with QueueClient(broker_url) as client:
        client.create("q")
        first = client.send_each_once("q", ["a", "b"], ["ka", "kb"])
        broker.kill()
        again = client.send_each_once("q", ["b", "c"], ["kb", "kc"])
        assert (again[0].id, again[0].new, again[1].new) == (first[1].id, False, True)
        broker.terminate()
        assert [one.new for one in client.send_each_once("q", ["a", "b", "c"], ["ka", "kb", "kc"])] == [False] * 3
        assert [message.body for message in client.read("q", 60, 10)] == ["a", "b", "c"]
