"""Kombu's channel, call by call, over every way to reach a broker."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import amqp.exceptions as amqp
import pytest
from kombu.entity import Exchange, Queue

from kombu_opendata import errors

from ..support.kombu_client import connected, declare, drain_quiet, drain_until, send, take, take_bodies
from .conftest import Reach


@pytest.fixture
def another(reach: Reach, stack: ExitStack) -> Callable[[], Any]:
    """Opens further connections."""
    return lambda: stack.enter_context(connected(reach.url, **reach.options))


@pytest.fixture
def connection(another: Callable[[], Any]) -> Any:
    return another()


@pytest.fixture
def channel(connection: Any) -> Any:
    return connection.channel()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test has."""
    return f"{request.node.originalname}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def queue(channel: Any, name: str) -> str:
    """A durable queue."""
    declare(channel, name)
    return name


class Inbox(list[Any]):
    """A consumer's messages."""

    def consume(self, channel: Any, queue: str, **options: Any) -> str:
        return str(channel.basic_consume(queue, callback=self.append, **options))

    @property
    def bodies(self) -> list[Any]:
        return [message.body for message in self]


# ------------------------------------------------------------------ publish, get, ack
def test_a_message_comes_back_as_it_was_published(channel: Any, queue: str) -> None:
    sent = channel.prepare_message(
        b"\x00body\xff", 7, "application/x-thing", "binary", {"task": "t.add", "nested": {"a": [1, None]}, "n": 3},
        {"correlation_id": "c1", "reply_to": "r1", "delivery_mode": 2},
    )  # fmt: skip
    channel.basic_publish(sent, exchange="", routing_key=queue)
    got = channel.basic_get(queue)
    assert bytes(got.body) == b"\x00body\xff"
    assert (got.content_type, got.content_encoding) == ("application/x-thing", "binary")
    assert got.headers == {"task": "t.add", "nested": {"a": [1, None]}, "n": 3}
    assert got.properties["correlation_id"] == "c1"
    assert got.properties["reply_to"] == "r1"
    assert got.properties["priority"] == 7
    assert got.delivery_info["routing_key"] == queue
    assert got.delivery_info["exchange"] == ""
    assert got.delivery_info["redelivered"] is False
    got.ack()
    assert channel.basic_get(queue) is None


@pytest.mark.parametrize("size", [0, 65_535, 65_536, 70_000, 5 << 20])
def test_bodies_of_every_size(channel: Any, queue: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    send(channel, queue, body)
    got = channel.basic_get(queue)
    assert bytes(got.body) == body
    got.ack()
    assert channel._size(queue) == 0


def test_messages_come_in_the_order_of_their_publishing(channel: Any, queue: str) -> None:
    bodies = [str(number) for number in range(300)]
    send(channel, queue, *bodies)
    inbox = Inbox()
    inbox.consume(channel, queue)
    drain_until(channel.connection.client, lambda: len(inbox) == 300)
    assert inbox.bodies == bodies


def test_higher_priorities_come_first_and_equals_in_order(channel: Any, queue: str) -> None:
    for priority, body in [(0, "a"), (9, "b"), (5, "c"), (9, "d"), (255, "e"), (None, "f")]:
        channel.basic_publish(channel.prepare_message(body, priority), routing_key=queue)
    assert take_bodies(channel, queue) == ["e", "b", "d", "c", "a", "f"]


def test_acknowledging_up_to_a_tag(channel: Any, queue: str) -> None:
    send(channel, queue, *"abcde")
    tags = [message.delivery_tag for message in take(channel, queue)]
    channel.basic_ack(tags[2], multiple=True)
    channel.basic_recover(requeue=True)
    assert take_bodies(channel, queue) == ["d", "e"]


def test_a_tag_is_good_for_one_settlement(channel: Any, queue: str) -> None:
    send(channel, queue, "a")
    message = channel.basic_get(queue)
    channel.basic_ack(message.delivery_tag)
    with pytest.raises(errors.PreconditionFailed, match=f"delivery tag {message.delivery_tag} is unknown") as caught:
        channel.basic_ack(message.delivery_tag)
    assert isinstance(caught.value, amqp.PreconditionFailed)
    send(channel, queue, "the channel still works")
    assert take_bodies(channel, queue) == ["the channel still works"]


def test_get_without_acknowledgement(channel: Any, queue: str) -> None:
    send(channel, queue, "a", "b")
    assert channel.basic_get(queue, no_ack=True).body == "a"
    channel.basic_recover(requeue=True)
    assert take_bodies(channel, queue) == ["b"]


# ------------------------------------------------------------------ giving back
def test_a_requeued_message_is_first_again_and_marked_as_redelivered(channel: Any, queue: str) -> None:
    send(channel, queue, "a", "b", "c")
    for _ in range(10):
        first = channel.basic_get(queue)
        assert first.body == "a"
        first.requeue()
    again = channel.basic_get(queue)
    assert (again.body, again.delivery_info["redelivered"]) == ("a", True)
    again.ack()
    assert take_bodies(channel, queue) == ["b", "c"]


def test_a_rejected_message_does_not_come_back(channel: Any, queue: str) -> None:
    send(channel, queue, "a", "b")
    channel.basic_get(queue).reject()
    channel.basic_recover(requeue=True)
    assert take_bodies(channel, queue) == ["b"]
    assert channel._size(queue) == 0


def test_nack_of_many(channel: Any, queue: str) -> None:
    send(channel, queue, *"abcd")
    messages = take(channel, queue)
    channel.basic_nack(messages[1].delivery_tag, multiple=True, requeue=True)
    channel.basic_nack(messages[2].delivery_tag, requeue=False)
    messages[3].ack()
    assert take_bodies(channel, queue) == ["a", "b"]


def test_recover_brings_everything_back_in_order(channel: Any, queue: str) -> None:
    send(channel, queue, *"abc")
    assert len(take(channel, queue)) == 3
    assert channel._size(queue) == 0
    channel.basic_recover(requeue=True)
    assert channel._size(queue) == 3
    assert take_bodies(channel, queue) == ["a", "b", "c"]


def test_attempts_run_out(channel: Any, name: str) -> None:
    declare(channel, name, arguments={"x-delivery-limit": 3})
    send(channel, name, "poison")
    for _ in range(3):
        channel.basic_get(name).requeue()
    assert channel.basic_get(name) is None
    assert channel._size(name) == 0


def test_a_closed_channel_gives_back_what_it_held(connection: Any, channel: Any, queue: str) -> None:
    send(channel, queue, "a", "b")
    other = connection.channel()
    assert other.basic_get(queue).body == "a"
    other.close()
    got = take(channel, queue)
    assert [m.body for m in got] == ["a", "b"]
    assert [m.delivery_info["redelivered"] for m in got] == [False, False]


def test_a_closed_connection_gives_back_what_it_held(another: Callable[[], Any], channel: Any, queue: str) -> None:
    send(channel, queue, "a", "b")
    other = another()
    inbox = Inbox()
    inbox.consume(other.channel(), queue)
    drain_until(other, lambda: len(inbox) == 2)
    assert channel.basic_get(queue) is None
    other.close()
    assert take_bodies(channel, queue) == ["a", "b"]


# ------------------------------------------------------------------ consuming
def test_prefetch_bounds_what_is_held(connection: Any, channel: Any, queue: str) -> None:
    channel.basic_qos(0, 2, False)
    inbox = Inbox()
    inbox.consume(channel, queue)
    send(channel, queue, *"abcde")
    drain_quiet(connection)
    assert inbox.bodies == ["a", "b"]
    inbox[0].ack()
    drain_until(connection, lambda: len(inbox) == 3)
    channel.basic_qos(0, 0, False)
    drain_until(connection, lambda: len(inbox) == 5)
    assert inbox.bodies == list("abcde")


def test_a_higher_priority_overtakes_what_is_not_delivered_yet(connection: Any, channel: Any, queue: str) -> None:
    channel.basic_qos(0, 1, False)
    inbox = Inbox()
    inbox.consume(channel, queue)
    send(channel, queue, "a", "b")
    drain_until(connection, lambda: len(inbox) == 1)
    send(channel, queue, "urgent", priority=9)
    inbox[0].ack()
    drain_until(connection, lambda: len(inbox) == 2)
    assert inbox.bodies == ["a", "urgent"]


def test_a_cancelled_consumer_gets_nothing_more(connection: Any, channel: Any, queue: str) -> None:
    inbox = Inbox()
    tag = inbox.consume(channel, queue, consumer_tag="mine")
    assert tag == "mine"
    send(channel, queue, "a")
    drain_until(connection, lambda: inbox.bodies == ["a"])
    channel.basic_cancel(tag)
    send(channel, queue, "b")
    drain_quiet(connection)
    assert inbox.bodies == ["a"]
    inbox[0].ack()
    assert take_bodies(channel, queue) == ["b"]


def test_unread_deliveries_of_a_cancelled_consumer_go_back(connection: Any, channel: Any, queue: str) -> None:
    send(channel, queue, *"abc")
    inbox = Inbox()
    tag = inbox.consume(channel, queue)
    drain_until(connection, lambda: len(inbox) == 1)
    channel.basic_cancel(tag)
    assert take_bodies(channel, queue) == ["b", "c"]
    inbox[0].ack()


def test_consuming_without_acknowledgement(connection: Any, channel: Any, queue: str) -> None:
    channel.basic_qos(0, 1, False)
    inbox = Inbox()
    inbox.consume(channel, queue, no_ack=True)
    send(channel, queue, *"abc")
    drain_until(connection, lambda: len(inbox) == 3)
    channel.basic_recover(requeue=True)
    assert channel._size(queue) == 0


def test_two_consumers_share_a_queue(another: Callable[[], Any], connection: Any, channel: Any, queue: str) -> None:
    other = another()
    inboxes = Inbox(), Inbox()
    for inbox, its in zip(inboxes, (channel, other.channel()), strict=True):
        its.basic_qos(0, 2, False)
        inbox.consume(its, queue)
    send(channel, queue, *"abcd")
    drain_until(connection, lambda: len(inboxes[0]) == 2)
    drain_until(other, lambda: len(inboxes[1]) == 2)
    assert sorted(inboxes[0].bodies + inboxes[1].bodies) == ["a", "b", "c", "d"]


def test_an_exclusive_consumer_is_alone(another: Callable[[], Any], channel: Any, queue: str) -> None:
    Inbox().consume(channel, queue, exclusive=True)
    with pytest.raises(errors.AccessRefused, match="has an exclusive consumer") as caught:
        Inbox().consume(another().channel(), queue)
    assert isinstance(caught.value, amqp.ResourceLocked)


def test_a_consumer_learns_that_its_queue_was_deleted(
    another: Callable[[], Any], connection: Any, channel: Any, queue: str
) -> None:
    ended: list[str] = []
    tag = Inbox().consume(channel, queue, on_cancel=ended.append)
    another().channel().queue_delete(queue)
    drain_until(connection, lambda: ended)
    assert ended == [tag]


def test_a_consumer_without_a_cancel_callback_sees_an_error(
    another: Callable[[], Any], connection: Any, channel: Any, queue: str
) -> None:
    Inbox().consume(channel, queue)
    another().channel().queue_delete(queue)
    with pytest.raises(amqp.ConsumerCancelled, match="queue deleted"):
        connection.drain_events(timeout=10)


def test_credit_held_by_messages_of_a_deleted_queue_comes_back(connection: Any, channel: Any, queue: str) -> None:
    gone = f"{queue}-gone"
    declare(channel, gone)
    channel.basic_qos(0, 2, False)
    inbox = Inbox()
    inbox.consume(channel, gone, on_cancel=lambda tag: None)
    send(channel, gone, "x", "y")
    drain_until(connection, lambda: len(inbox) == 2)
    inbox.consume(channel, queue)
    channel.queue_delete(gone)
    for message in inbox[:2]:
        message.ack()
    send(channel, queue, *"abc")
    drain_until(connection, lambda: len(inbox) == 4)
    assert inbox.bodies == ["x", "y", "a", "b"]


# ------------------------------------------------------------------ queues
def test_declaring_tells_messages_and_consumers(channel: Any, queue: str) -> None:
    assert tuple(declare(channel, queue)) == (queue, 0, 0)
    send(channel, queue, "a", "b")
    assert tuple(declare(channel, queue)) == (queue, 2, 0)
    Inbox().consume(channel, queue)
    assert channel.queue_declare(queue, passive=True).consumer_count == 1


def test_passive_declare_of_nothing(channel: Any, name: str) -> None:
    with pytest.raises(errors.NotFound, match=f"no queue '{name}'") as caught:
        channel.queue_declare(name, passive=True)
    assert isinstance(caught.value, amqp.NotFound)
    assert caught.value.queue == name


@pytest.mark.parametrize("call", ["basic_get", "basic_consume", "queue_purge"])
def test_calls_on_a_queue_that_does_not_exist(channel: Any, name: str, call: str) -> None:
    with pytest.raises(amqp.NotFound):
        getattr(channel, call)(name)


def test_purge(channel: Any, queue: str) -> None:
    send(channel, queue, *"abc")
    held = channel.basic_get(queue)
    assert channel.queue_purge(queue) == 2
    assert channel._size(queue) == 0
    held.requeue()
    assert take_bodies(channel, queue) == ["a"]


def test_delete(channel: Any, queue: str) -> None:
    send(channel, queue, "a", "b")
    assert channel.queue_delete(queue) == 2
    with pytest.raises(amqp.NotFound):
        channel.queue_declare(queue, passive=True)
    assert channel.queue_delete(queue) == 0
    declare(channel, queue)
    assert channel.basic_get(queue) is None


def test_delete_only_if_empty_or_unused(channel: Any, queue: str) -> None:
    send(channel, queue, "a")
    with pytest.raises(errors.PreconditionFailed, match="has 1 messages"):
        channel.queue_delete(queue, if_empty=True)
    tag = Inbox().consume(channel, queue)
    with pytest.raises(amqp.PreconditionFailed, match="has 1 consumers"):
        channel.queue_delete(queue, if_unused=True)
    channel.basic_cancel(tag)
    channel.queue_purge(queue)
    assert channel.queue_delete(queue, if_empty=True, if_unused=True) == 0


def test_a_held_message_of_a_deleted_queue_can_be_settled(channel: Any, queue: str) -> None:
    send(channel, queue, "a")
    held = channel.basic_get(queue)
    channel.queue_delete(queue)
    held.ack()
    declare(channel, queue)
    assert channel._size(queue) == 0


@pytest.mark.parametrize("properties", [{"durable": False}, {"auto_delete": True}, {"exclusive": True}], ids=str)
def test_transient_queues(connection: Any, channel: Any, name: str, properties: dict[str, Any]) -> None:
    declare(channel, name, **properties)
    send(channel, name, "a", "b")
    assert channel._size(name) == 2
    first = channel.basic_get(name)
    first.requeue()
    again = channel.basic_get(name)
    assert (again.body, again.delivery_info["redelivered"]) == ("a", True)
    again.reject()
    inbox = Inbox()
    tag = inbox.consume(channel, name)
    drain_until(connection, lambda: inbox.bodies == ["b"])
    inbox[0].ack()
    assert channel.queue_purge(name) == 0
    channel.basic_cancel(tag)


def test_a_queue_that_the_broker_names(channel: Any) -> None:
    name = channel.queue_declare("", exclusive=True).queue
    assert name.startswith("amq.gen-")
    send(channel, name, "a")
    assert take_bodies(channel, name) == ["a"]


def test_an_exclusive_queue_is_its_connections(another: Callable[[], Any], name: str) -> None:
    owner, stranger = another(), another().channel()
    declare(owner.channel(), name, exclusive=True)
    for call in (stranger.basic_get, stranger.basic_consume, stranger.queue_delete):
        with pytest.raises(errors.AccessRefused, match="exclusive to another connection") as caught:
            call(name)
        assert isinstance(caught.value, amqp.ResourceLocked)
    owner.close()
    with pytest.raises(amqp.NotFound):
        stranger.queue_declare(name, passive=True)


def test_an_auto_delete_queue_goes_with_its_last_consumer(channel: Any, name: str) -> None:
    declare(channel, name, auto_delete=True)
    tags = [Inbox().consume(channel, name) for _ in range(2)]
    channel.basic_cancel(tags[0])
    assert channel.queue_declare(name, passive=True).consumer_count == 1
    channel.basic_cancel(tags[1])
    with pytest.raises(amqp.NotFound):
        channel.queue_declare(name, passive=True)


# ------------------------------------------------------------------ time
@pytest.mark.parametrize("durable", [True, False])
def test_an_expired_message_is_not_delivered(channel: Any, name: str, durable: bool) -> None:
    declare(channel, name, durable=durable)
    send(channel, name, "short", expiration="50")
    send(channel, name, "long", expiration="60000")
    send(channel, name, "for ever")
    time.sleep(0.06)  # it is the time itself that is tested
    assert take_bodies(channel, name) == ["long", "for ever"]


def test_a_message_that_lives_long_enough_is_delivered(channel: Any, queue: str) -> None:
    send(channel, queue, "a", expiration="20000")
    assert take_bodies(channel, queue) == ["a"]


# ------------------------------------------------------------------ exchanges
def test_the_default_exchange_reaches_queues_by_name(channel: Any, queue: str) -> None:
    send(channel, queue, "a")
    send(channel, f"{queue}-other", "dropped")
    assert take_bodies(channel, queue) == ["a"]


def test_a_direct_exchange(channel: Any, queue: str, name: str) -> None:
    channel.exchange_declare(name, "direct", durable=True, auto_delete=False)
    for key in ("red", "blue"):
        channel.queue_bind(queue, name, key)
    for key in ("red", "green", "blue"):
        send(channel, key, key, exchange=name)
    channel.queue_unbind(queue, name, "red")
    send(channel, "red", "too late", exchange=name)
    got = channel.basic_get(queue)
    assert got.delivery_info["exchange"] == name
    assert got.delivery_info["routing_key"] == "red"
    assert [got.body, *take_bodies(channel, queue)] == ["red", "blue"]


def test_a_topic_exchange(channel: Any, name: str) -> None:
    channel.exchange_declare(name, "topic", durable=True, auto_delete=False)
    patterns = {"all": "#", "one": "stock.*", "deep": "stock.#.nyse", "exact": "stock.ibm"}
    for suffix, pattern in patterns.items():
        declare(channel, f"{name}-{suffix}")
        channel.queue_bind(f"{name}-{suffix}", name, pattern)
    for key in ("stock.ibm", "stock.usd.nyse", "stock", "stock.nyse"):
        send(channel, key, key, exchange=name)
    assert take_bodies(channel, f"{name}-all") == ["stock.ibm", "stock.usd.nyse", "stock", "stock.nyse"]
    assert take_bodies(channel, f"{name}-one") == ["stock.ibm", "stock.nyse"]
    assert take_bodies(channel, f"{name}-deep") == ["stock.usd.nyse", "stock.nyse"]
    assert take_bodies(channel, f"{name}-exact") == ["stock.ibm"]


def test_a_fanout_exchange_with_durable_and_transient_queues(channel: Any, name: str) -> None:
    channel.exchange_declare(name, "fanout", durable=True, auto_delete=False)
    queues = [f"{name}-{number}" for number in range(3)]
    for number, queue in enumerate(queues):
        declare(channel, queue, durable=number < 2)
        channel.queue_bind(queue, name, "whatever")
    send(channel, "ignored", "news", exchange=name)
    assert [take_bodies(channel, queue) for queue in queues] == [["news"]] * 3


def test_two_bindings_give_one_copy(channel: Any, queue: str, name: str) -> None:
    channel.exchange_declare(name, "topic", durable=True, auto_delete=False)
    channel.queue_bind(queue, name, "a.*")
    channel.queue_bind(queue, name, "*.b")
    send(channel, "a.b", "once", exchange=name)
    assert take_bodies(channel, queue) == ["once"]


def test_publishing_to_an_exchange_that_does_not_exist(channel: Any, name: str) -> None:
    with pytest.raises(errors.NotFound, match=f"no exchange '{name}'") as caught:
        send(channel, "key", "a", exchange=name)
    assert isinstance(caught.value, amqp.NotFound)


def test_a_mandatory_message_that_no_queue_takes(channel: Any, name: str) -> None:
    message = channel.prepare_message("a")
    with pytest.raises(errors.Unroutable, match=f"routing key '{name}'"):
        channel.basic_publish(message, routing_key=name, mandatory=True)
    returned: list[Any] = []
    channel.events["basic_return"].add(lambda *args: returned.append(args[1:3]))
    channel.basic_publish(message, routing_key=name, mandatory=True)
    assert returned == [("", name)]


def test_passive_declare_and_delete_of_exchanges(channel: Any, queue: str, name: str) -> None:
    with pytest.raises(amqp.NotFound):
        channel.exchange_declare(name, passive=True)
    channel.exchange_declare(name, "direct", durable=True, auto_delete=False)
    channel.exchange_declare(name, passive=True)
    channel.queue_bind(queue, name, "k")
    assert (queue, name, "k") in channel.list_bindings()
    with pytest.raises(errors.PreconditionFailed, match="has bindings"):
        channel.exchange_delete(name, if_unused=True)
    channel.exchange_delete(name)
    assert (queue, name, "k") not in channel.list_bindings()
    with pytest.raises(amqp.NotFound):
        channel.exchange_declare(name, passive=True)


def test_an_auto_delete_exchange_goes_with_its_last_binding(channel: Any, queue: str, name: str) -> None:
    channel.exchange_declare(name, "direct", auto_delete=True)
    channel.queue_bind(queue, name, "k")
    channel.queue_unbind(queue, name, "k")
    with pytest.raises(amqp.NotFound):
        channel.exchange_declare(name, passive=True)


# ------------------------------------------------------------------ Kombu's own objects
def test_entities_producers_and_consumers(connection: Any, name: str) -> None:
    exchange = Exchange(name, "topic")  # type: ignore[no-untyped-call]
    queue = Queue(name, exchange, routing_key="add.#", max_priority=10)  # type: ignore[no-untyped-call]
    bodies: list[Any] = []
    messages: list[Any] = []
    with connection.Producer(serializer="json") as producer:
        producer.publish({"x": [1, "é"]}, exchange=queue.exchange, routing_key="add.one", declare=[queue], retry=True)
    with connection.Consumer([queue], accept=["json"]) as consumer:
        consumer.register_callback(lambda body, message: bodies.append(body))
        consumer.register_callback(lambda body, message: messages.append(message))
        drain_until(connection, lambda: messages)
    assert bodies == [{"x": [1, "é"]}]
    assert messages[0].delivery_info["routing_key"] == "add.one"
    messages[0].ack()
    with connection.SimpleQueue(f"{name}-simple") as simple:
        simple.put({"y": 2})
        message = simple.get(timeout=10)
        assert message.payload == {"y": 2}
        message.ack()
        assert simple.qsize() == 0


def test_compressed_messages(connection: Any, channel: Any, queue: str) -> None:
    body = {"text": "x" * 100_000}
    with connection.Producer(serializer="json", compression="zlib") as producer:
        producer.publish(body, routing_key=queue)
    message = channel.basic_get(queue)
    assert message.headers["compression"]
    assert message.decode() == body
    message.ack()
