"""Kombu's channel, call by call, over every way to reach a broker: publish, get, acknowledge, give back, expire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amqp.exceptions as amqp
import pytest

from kombu_opendata import errors
from kombu_opendata.errors import InvalidMessage
from tests.support.processes import wait_until

from ...support.kombu_client import Inbox, declare, drain_until, send, take, take_bodies


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
    assert [m.delivery_info["redelivered"] for m in got] == [True, False]


def test_a_closed_connection_gives_back_what_it_held(another: Callable[[], Any], channel: Any, queue: str) -> None:
    send(channel, queue, "a", "b")
    other = another()
    inbox = Inbox()
    inbox.consume(other.channel(), queue)
    drain_until(other, lambda: len(inbox) == 2)
    assert channel.basic_get(queue) is None
    other.close()
    assert take_bodies(channel, queue) == ["a", "b"]


@pytest.mark.parametrize("durable", [True, False])
def test_an_expired_message_is_not_delivered(channel: Any, name: str, durable: bool) -> None:
    declare(channel, name, durable=durable)
    send(channel, name, "short", expiration="50")
    send(channel, name, "long", expiration="60000")
    send(channel, name, "for ever")
    wait_until(lambda: channel._size(name) == 2, 60, "the end of the short one")
    assert take_bodies(channel, name) == ["long", "for ever"]


def test_a_message_that_lives_long_enough_is_delivered(channel: Any, queue: str) -> None:
    send(channel, queue, "a", expiration="20000")
    assert take_bodies(channel, queue) == ["a"]


@pytest.mark.parametrize("body", ["text", b"bytes"])
def test_a_bare_body_is_published(channel: Any, queue: str, body: str | bytes) -> None:
    channel.basic_publish(body, routing_key=queue)
    [got] = take(channel, queue)
    assert got.body == body
    assert (got.content_type, got.headers) == (None, {})


def test_something_else_than_a_message_is_refused(channel: Any, queue: str) -> None:
    with pytest.raises(InvalidMessage, match="takes what prepare_message returns, or a body"):
        channel.basic_publish(17, routing_key=queue)


def test_a_task_with_an_option_that_can_not_be_encoded_is_sent_without_it(connection: Any, queue: str) -> None:
    producer = connection.Producer()
    producer.publish("body", routing_key=queue, lock=object(), note="kept", correlation_id="c")
    with connection.channel() as channel:
        [got] = take(channel, queue)
    assert "lock" not in got.properties
    assert (got.properties["note"], got.properties["correlation_id"]) == ("kept", "c")
