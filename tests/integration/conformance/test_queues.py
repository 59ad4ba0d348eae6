"""Kombu's channel, call by call, over every way to reach a broker: queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amqp.exceptions as amqp
import pytest

from kombu_opendata import errors

from ...support.kombu_client import Inbox, declare, drain_until, send, take_bodies


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
