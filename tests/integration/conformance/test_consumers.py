"""Kombu's channel, call by call, over every way to reach a broker: consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import amqp.exceptions as amqp
import pytest

from kombu_opendata import errors

from ...support.kombu_client import Inbox, declare, drain_quiet, drain_until, send, take_bodies


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


def test_a_used_tag_is_refused_and_its_consumer_continues(connection: Any, channel: Any, queue: str) -> None:
    inbox = Inbox()
    inbox.consume(channel, queue, consumer_tag="mine")
    with pytest.raises(errors.ConsumerTagInUse, match="'mine' is in use") as caught:
        Inbox().consume(channel, queue, consumer_tag="mine", no_ack=True, on_cancel=lambda tag: None)
    assert isinstance(caught.value, amqp.NotAllowed)
    send(channel, queue, "a")
    drain_until(connection, lambda: inbox)
    inbox[0].ack()
    channel.basic_cancel("mine")
    inbox.consume(channel, queue, consumer_tag="mine")
    send(channel, queue, "b")
    drain_until(connection, lambda: len(inbox) == 2)
    assert inbox.bodies == ["a", "b"]


def test_a_consumer_without_a_callback_ends_at_its_first_message(
    another: Callable[[], Any], connection: Any, channel: Any, queue: str
) -> None:
    channel.basic_consume(queue)
    send(channel, queue, "a")
    drain_until(connection, lambda: channel._size(queue) == 1)
    assert take_bodies(another().channel(), queue) == ["a"]


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
        connection.drain_events(timeout=60)


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
