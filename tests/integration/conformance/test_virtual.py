"""What Kombu's virtual transports have and helpers use, over every way to reach a broker.

Kombu's own unit tests of the virtual transport are in tests/vendor/kombu.
"""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable
from queue import Empty
from typing import Any

import pytest
from kombu.exceptions import ResourceError
from kombu.transport import virtual

from kombu_opendata.errors import PreconditionFailed, Unroutable
from kombu_opendata.transport.virtual_channel import QoS

from ...support.kombu_client import Inbox, connected, declare, drain_until, send, take_bodies
from ..conftest import Reach


def stored(body: bytes, **properties: Any) -> dict[str, Any]:
    """A message as virtual transports store it."""
    return {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "binary",
        "content-type": "application/data",
        "headers": {"h": 1},
        "properties": {
            "body_encoding": "base64", "delivery_tag": "a-tag", "priority": 3,
            "delivery_info": {"exchange": "there", "routing_key": "once"}, **properties,
        },
    }  # fmt: skip


def test_they_are_virtual_ones_to_whoever_asks(connection: Any, channel: Any) -> None:
    assert isinstance(connection.transport, virtual.Transport)
    assert isinstance(channel, virtual.Channel)
    assert isinstance(channel.qos, virtual.QoS)
    assert issubclass(channel.Message, virtual.Message)
    assert channel in connection.transport.channels


def test_what_is_put_is_delivered_as_it_is_described(channel: Any, queue: str) -> None:
    channel._put(queue, stored(b"\x00body", correlation_id="c"))
    got = channel.basic_get(queue)
    assert isinstance(got, virtual.Message)
    assert (got.body, got.content_type, got.content_encoding) == (b"\x00body", "application/data", "binary")
    assert (got.headers, got.properties) == ({"h": 1}, {"priority": 3, "correlation_id": "c"})
    assert (got.delivery_info["exchange"], got.delivery_info["routing_key"]) == ("there", "once")


def test_put_says_when_there_is_no_such_queue(channel: Any, name: str) -> None:
    with pytest.raises(Unroutable):
        channel._put(name, stored(b"lost"))


def test_get_takes_a_message_for_good(channel: Any, queue: str) -> None:
    with pytest.raises(Empty):
        channel._get(queue)
    with pytest.raises(Empty):
        channel._get("no such queue")
    send(channel, queue, b"body", headers={"h": 1}, correlation_id="c", priority=7)
    payload = channel._get(queue)
    assert channel._size(queue) == 0
    assert base64.b64decode(payload["body"]) == b"body"
    assert payload["headers"] == {"h": 1}
    assert payload["properties"]["correlation_id"] == "c"
    assert payload["properties"]["delivery_info"] == {"exchange": "", "routing_key": queue, "queue": queue}
    message = channel.message_to_python(payload)
    assert (message.body, message.properties["priority"]) == (b"body", 7)
    assert channel.message_to_python(message) is message


def test_what_get_took_is_held_and_settled_by_the_client(channel: Any, queue: str) -> None:
    send(channel, queue, b"one", b"two")
    taken = [channel.message_to_python(channel._get(queue)) for _ in range(2)]
    for message in taken:
        channel.qos.append(message, message.delivery_tag)
    assert channel.qos.get(taken[0].delivery_tag) is taken[0]
    taken[0].ack()
    with pytest.raises(PreconditionFailed):
        channel.basic_ack(taken[0].delivery_tag)
    taken[1].requeue()
    assert take_bodies(channel, queue) == [b"two"]


def test_closing_a_channel_puts_back_what_it_took(connection: Any, channel: Any, queue: str) -> None:
    with connection.channel() as other:
        send(other, queue, b"taken", b"acked", b"forgotten")
        taken, acked, _forgotten = (other.message_to_python(other._get(queue)) for _ in range(3))
        for message in (taken, acked):
            other.qos.append(message, message.delivery_tag)
        other.qos.ack(acked.delivery_tag)
        other.qos._flush()
    assert take_bodies(channel, queue) == [b"taken"]


def test_qos_sees_what_the_broker_delivered(connection: Any, channel: Any, queue: str) -> None:
    inbox = Inbox()
    channel.basic_qos(prefetch_count=2)
    inbox.consume(channel, queue)
    assert channel.qos.can_consume()
    assert channel.qos.can_consume_max_estimate() == 2
    send(channel, queue, "one", "two", "three")
    drain_until(connection, lambda: len(inbox) == 2)
    assert not channel.qos.can_consume()
    first, second = inbox
    assert channel.qos.get(first.delivery_tag) is first
    assert list(channel.qos._delivered.values()) == [first, second]
    channel.qos.ack(first.delivery_tag)
    drain_until(connection, lambda: len(inbox) == 3)
    channel.qos.reject(second.delivery_tag, requeue=False)
    assert channel.qos.restore_unacked() == []
    drain_until(connection, lambda: len(inbox) == 4)
    assert inbox.bodies == ["one", "two", "three", "three"]
    channel.qos.prefetch_count = 0
    assert channel.qos.can_consume_max_estimate() is None


def test_a_message_is_restored_to_the_queue_that_it_came_from(channel: Any, queue: str) -> None:
    exchange, other = f"{queue}.fanout", f"{queue}.other"
    channel.exchange_declare(exchange, "fanout")
    declare(channel, other)
    for bound in (queue, other):
        channel.queue_bind(bound, exchange)
    send(channel, "", b"for both", exchange=exchange)
    channel._restore(channel.message_to_python(channel._get(queue)))
    channel._restore_at_beginning(channel.basic_get(other))
    assert take_bodies(channel, queue) == take_bodies(channel, other) == [b"for both"]


def test_single_steps_about_queues(channel: Any, name: str) -> None:
    assert not channel._has_queue(name)
    assert channel._size(name) == channel._purge(name) == 0
    channel._new_queue(name)
    channel._new_queue(name, durable=False)  # it is there already
    assert channel._has_queue(name)
    send(channel, name, "one", "two")
    assert channel._size(name) == 2
    assert channel._purge(name) == 2
    channel._queue_bind("amq.topic", "a.#", None, name)
    assert channel.state.has_binding(name, "amq.topic", "a.#")
    channel._delete(name, "amq.topic", "a.#", None, name)
    assert not channel._has_queue(name)
    assert not channel.state.has_binding(name, "amq.topic", "a.#")


def test_exchanges_and_bindings_as_virtual_channels_show_them(connection: Any, channel: Any, queue: str) -> None:
    exchange = f"x.{queue}"
    channel.exchange_declare(exchange, "topic", durable=True, auto_delete=False)
    channel.queue_bind(queue, exchange, "a.#")
    assert exchange in channel.get_exchanges()
    assert [(key, bound) for key, _pattern, bound in channel.get_table(exchange)] == [("a.#", queue)]
    assert channel.typeof(exchange).type == "topic"
    assert channel.typeof("unknown").type == "direct"
    assert connection.transport.state.exchanges[exchange]["durable"] is True
    assert channel._lookup(exchange, "a.b") == channel._lookup(exchange, "a") == [queue]
    assert channel.typeof(exchange).lookup(channel.get_table(exchange), exchange, "a", None) == {queue}
    assert channel._lookup(exchange, "b") == []
    assert channel._lookup("", queue) == [queue]
    with pytest.warns(virtual.UndeliverableWarning):
        assert channel._lookup(exchange, "b", default=f"{queue}.rest") == [f"{queue}.rest"]
    assert channel._has_queue(f"{queue}.rest")
    channel.typeof(exchange).deliver(stored(b"once"), exchange, "a.c")
    assert take_bodies(channel, queue) == [b"once"]


@pytest.mark.parametrize("kind", ["direct", "topic", "fanout", "headers"])
def test_each_type_of_exchange_delivers_through_the_broker(channel: Any, queue: str, kind: str) -> None:
    channel.queue_bind(queue, f"amq.{kind}", queue, arguments={"h": 1})
    assert channel.typeof(f"amq.{kind}").type == kind
    channel.typeof(f"amq.{kind}").deliver(stored(b"body"), f"amq.{kind}", queue)
    assert take_bodies(channel, queue) == [b"body"]


def test_draining_a_channel_hands_out_what_was_pushed(channel: Any, queue: str) -> None:
    with pytest.raises(Empty):
        channel.drain_events(timeout=5)  # nobody consumes
    inbox = Inbox()
    inbox.consume(channel, queue)
    with pytest.raises(Empty):
        channel.drain_events()
    send(channel, queue, "one")
    channel.drain_events(timeout=20)
    assert inbox.bodies == ["one"]


def test_messages_handed_to_the_transport_reach_the_consumer(connection: Any, channel: Any, queue: str) -> None:
    transport, inbox = connection.transport, Inbox()
    inbox.consume(channel, queue)
    transport._deliver(stored(b"by hand"), queue)
    transport.on_message_ready(channel, stored(b"again", delivery_tag="b"), queue)
    assert inbox.bodies == [b"by hand", b"again"]
    inbox[0].ack()
    with pytest.raises(KeyError):
        transport.on_message_ready(channel, stored(b"x"), "nobody consumes it")


def test_what_no_queue_takes_goes_to_the_deadletter_queue(reach: Reach, name: str) -> None:
    options = {**reach.options, "deadletter_queue": f"{name}.rest"}
    with connected(reach.url, **options) as connection, connection.channel() as channel:
        with pytest.warns(virtual.UndeliverableWarning):
            send(channel, "nobody", "body", exchange="amq.direct")
        assert channel._size(f"{name}.rest") == 1
        [message] = [channel.basic_get(f"{name}.rest")]
        assert (message.body, message.delivery_info["exchange"]) == ("body", "amq.direct")


def test_no_more_channels_than_channel_max(reach: Reach) -> None:
    with connected(reach.url, **reach.options) as connection:
        connection.transport.channel_max = 1
        with connection.channel(), pytest.raises(ResourceError, match="limit of 1 channels"):
            connection.channel()


#: how to call each method of a virtual channel; ``q`` is a queue with a message, ``x`` a new name
Calls = dict[str, Callable[[Any, str, str], Any]]
WORKS: Calls = {
    "Consumer": lambda c, q, x: c.Consumer(),
    "Producer": lambda c, q, x: c.Producer(),
    "_delete": lambda c, q, x: c._delete(q),
    "_get": lambda c, q, x: c._get(q),
    "_get_and_deliver": lambda c, q, x: c._get_and_deliver(q, lambda payload, queue: None),
    "_get_free_channel_id": lambda c, q, x: c._get_free_channel_id(),
    "_get_message_priority": lambda c, q, x: c._get_message_priority(stored(b"")),
    "_has_queue": lambda c, q, x: c._has_queue(q),
    "_inplace_augment_message": lambda c, q, x: c._inplace_augment_message(c.prepare_message("b"), "", q),
    "_lookup": lambda c, q, x: c._lookup("amq.direct", q),
    "_new_queue": lambda c, q, x: c._new_queue(x),
    "_next_delivery_tag": lambda c, q, x: c._next_delivery_tag(),
    "_poll": lambda c, q, x: polling(c, q)._poll(c.cycle, lambda payload, queue: None),
    "_purge": lambda c, q, x: c._purge(q),
    "_put": lambda c, q, x: c._put(q, stored(b"")),
    "_reset_cycle": lambda c, q, x: c._reset_cycle(),
    "_restore": lambda c, q, x: c._restore(c.basic_get(q)),
    "_restore_at_beginning": lambda c, q, x: c._restore_at_beginning(c.basic_get(q)),
    "_size": lambda c, q, x: c._size(q),
    "after_reply_message_received": lambda c, q, x: c.after_reply_message_received(q),
    "basic_ack": lambda c, q, x: c.basic_ack(c.basic_get(q).delivery_tag),
    "basic_cancel": lambda c, q, x: c.basic_cancel(c.basic_consume(q, False, print, "tag")),
    "basic_consume": lambda c, q, x: c.basic_consume(q, False, print, "tag"),
    "basic_get": lambda c, q, x: c.basic_get(q),
    "basic_publish": lambda c, q, x: c.basic_publish(c.prepare_message("b"), "", q),
    "basic_qos": lambda c, q, x: c.basic_qos(0, 1),
    "basic_recover": lambda c, q, x: c.basic_recover(requeue=True),
    "basic_reject": lambda c, q, x: c.basic_reject(c.basic_get(q).delivery_tag, requeue=True),
    "close": lambda c, q, x: c.close(),
    "decode_body": lambda c, q, x: c.decode_body("Yg==", "base64"),
    "drain_events": lambda c, q, x: consuming(c, q).drain_events(timeout=20),
    "encode_body": lambda c, q, x: c.encode_body("b", "base64"),
    "exchange_declare": lambda c, q, x: c.exchange_declare(x),
    "exchange_delete": lambda c, q, x: c.exchange_delete(x),
    "get_bindings": lambda c, q, x: c.get_bindings(),
    "get_exchanges": lambda c, q, x: c.get_exchanges(),
    "get_table": lambda c, q, x: c.get_table("amq.direct"),
    "list_bindings": lambda c, q, x: c.list_bindings(),
    "message_to_python": lambda c, q, x: c.message_to_python(stored(b"")),
    "prepare_message": lambda c, q, x: c.prepare_message("b"),
    "prepare_queue_arguments": lambda c, q, x: c.prepare_queue_arguments({}),
    "queue_bind": lambda c, q, x: c.queue_bind(q, "amq.direct", "k"),
    "queue_declare": lambda c, q, x: c.queue_declare(x),
    "queue_delete": lambda c, q, x: c.queue_delete(q),
    "queue_purge": lambda c, q, x: c.queue_purge(q),
    "queue_unbind": lambda c, q, x: c.queue_unbind(q, "amq.direct", "k"),
    "typeof": lambda c, q, x: c.typeof("amq.direct"),
}
REFUSED: Calls = {
    "exchange_bind": lambda c, q, x: c.exchange_bind("a", "b"),
    "exchange_unbind": lambda c, q, x: c.exchange_unbind("a", "b"),
    "flow": lambda c, q, x: c.flow(False),
}


def consuming(channel: Any, queue: str) -> Any:
    """The channel, with a consumer."""
    channel.basic_consume(queue, callback=print)
    return channel


def polling(channel: Any, queue: str) -> Any:
    """The channel, as if it had a consumer that the broker does not push to."""
    channel._active_queues.append(queue)
    return channel


def _callables(cls: type) -> set[str]:
    return {
        name
        for name, member in inspect.getmembers(cls)
        if callable(member) and not name.startswith("__") and not inspect.isclass(member)
    }


def test_each_method_of_a_virtual_channel_is_in_one_of_the_tables() -> None:
    assert _callables(virtual.Channel) == set(WORKS) | set(REFUSED)
    overridden = _callables(virtual.QoS) - {"can_consume"}
    assert overridden <= _callables(QoS)


@pytest.mark.parametrize("method", sorted(WORKS))
def test_each_method_works(connection: Any, queue: str, method: str) -> None:
    with connection.channel() as channel:
        send(channel, queue, "body")
        WORKS[method](channel, queue, f"{queue}.new")


@pytest.mark.parametrize("method", sorted(REFUSED))
def test_what_there_is_not_says_so(channel: Any, queue: str, name: str, method: str) -> None:
    with pytest.raises(NotImplementedError, match="opendata transport"):
        REFUSED[method](channel, queue, name)
