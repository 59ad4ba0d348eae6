"""Kombu's channel, call by call, over every way to reach a broker: exchanges."""

from __future__ import annotations

from typing import Any

import amqp.exceptions as amqp
import pytest

from kombu_opendata import errors

from ...support.kombu_client import declare, send, take_bodies


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


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_a_filter_queue(channel: Any, queue: str, name: str, durable: bool) -> None:
    arguments = {"x-filter": f"\"{name}\" LIKE 'a%' AND priority >= 3"}
    channel.queue_declare(f"{name}-filter", durable=durable, auto_delete=False, arguments=arguments)
    for value, priority in (("ab", 3), ("ab", 2), ("b", 9), ("a", 9)):
        send(channel, queue, f"{value}{priority}", headers={name: value}, priority=priority)
    assert sorted(take_bodies(channel, f"{name}-filter")) == ["a9", "ab3"]
    assert len(take_bodies(channel, queue)) == 4
    with pytest.raises(errors.SelectorError, match="line 1, column 4") as caught:
        channel.queue_declare(f"{name}-none", durable=durable, arguments={"x-filter": "a ="})
    assert isinstance(caught.value, amqp.IrrecoverableChannelError)
