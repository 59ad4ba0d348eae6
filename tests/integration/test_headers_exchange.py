"""Headers exchanges, alternate exchanges and what a redelivery says, through Kombu and over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kombu
import pytest

from kombu_opendata.errors import OpenDataError
from tests.support.broker import EmbeddedBroker
from tests.support.kombu_client import declare, drain_until, send, take_bodies

entities: Any = kombu  # which is not typed


@pytest.fixture(scope="module")
def folder(module_store_folder: Path) -> Path:
    return module_store_folder


def headers_exchange(channel: Any, name: str, **arguments: Any) -> None:
    channel.exchange_declare(name, "headers", durable=True, auto_delete=False, arguments=arguments)


def test_kombus_headers_exchange(connection: Any, name: str) -> None:
    assert "headers" in connection.transport.implements.exchange_type
    with connection.channel() as channel:
        exchange = entities.Exchange(name, type="headers")
        pdf = {"format": "pdf", "pages": 3, "x-match": "all"}
        reports = entities.Queue(f"{name}.reports", exchange, binding_arguments=pdf, channel=channel)
        urgent = entities.Queue(
            f"{name}.urgent", exchange, binding_arguments={"urgent": True, "x-match": "any"}, channel=channel
        )
        reports.declare()
        urgent.declare()
        producer = entities.Producer(channel, exchange, serializer="json")
        producer.publish("both", headers={"format": "pdf", "pages": 3, "urgent": True})
        producer.publish("report", headers={"format": "pdf", "pages": 3, "urgent": False})
        producer.publish("text", headers={"format": "pdf", "pages": "3"})
        producer.publish("none")
        assert [body.strip('"') for body in take_bodies(channel, reports.name)] == ["both", "report"]
        assert [body.strip('"') for body in take_bodies(channel, urgent.name)] == ["both"]


def test_bindings_are_told_apart_by_their_arguments_over_a_restart(folder: Path, channel: Any, name: str) -> None:
    headers_exchange(channel, name)
    declare(channel, name)
    for kind in ("a", "b", "c"):
        channel.queue_bind(name, name, "k", arguments={"kind": kind})
    channel.queue_unbind(name, name, "k", arguments={"kind": "b"})
    channel.queue_unbind(name, name, "k", arguments={})  # there is no such binding
    EmbeddedBroker(folder).kill()
    for kind in ("a", "b", "c"):
        send(channel, "any", kind, exchange=name, headers={"kind": kind})
    assert take_bodies(channel, name) == ["a", "c"]
    channel.queue_unbind(name, name, "k", arguments={"kind": "a"})
    channel.queue_unbind(name, name, "k", arguments={"kind": "c"})
    channel.exchange_delete(name, if_unused=True)


def test_transient_headers_bindings_come_back_after_a_restart(folder: Path, channel: Any, name: str) -> None:
    channel.queue_declare(name, auto_delete=False)
    for kind in ("a", "b", "c"):
        channel.queue_bind(name, "amq.headers", arguments={name: kind})
    channel.queue_unbind(name, "amq.headers", arguments={name: "b"})
    EmbeddedBroker(folder).kill()
    for kind in ("a", "b", "c"):
        send(channel, "any", kind, exchange="amq.match", headers={name: kind})
        send(channel, "any", kind, exchange="amq.headers", headers={name: kind})
    assert take_bodies(channel, name) == ["a", "c"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-match": "most"}, "use all, any, all-with-x, any-with-x"),
        ({"a": [1]}, "'a' of a headers binding is a list"),
        ({"a": b"1"}, "can't be stored as JSON|'a' of a headers binding is a bytes"),
    ],
)
def test_wrong_binding_arguments(channel: Any, name: str, arguments: dict[str, Any], text: str) -> None:
    declare(channel, name)
    with pytest.raises(OpenDataError, match=text):
        channel.queue_bind(name, "amq.headers", arguments=arguments)
    with pytest.raises(OpenDataError, match=text):
        channel.queue_unbind(name, "amq.headers", arguments=arguments)


def test_what_nobody_takes_goes_to_the_alternate_exchange(channel: Any, name: str) -> None:
    channel.exchange_declare(f"{name}.rest", "fanout", durable=True, auto_delete=False)
    headers_exchange(channel, name, **{"alternate-exchange": f"{name}.rest"})
    with pytest.raises(OpenDataError, match="no queue takes"):
        channel.basic_publish(channel.prepare_message("lost"), exchange=name, routing_key="k", mandatory=True)
    declare(channel, name)
    declare(channel, f"{name}.rest")
    channel.queue_bind(name, name, arguments={"a": 1})
    channel.queue_bind(f"{name}.rest", f"{name}.rest")
    message = channel.prepare_message("rest")
    assert channel.basic_publish(message, exchange=name, routing_key="k", mandatory=True).queues == 1
    send(channel, "k", "taken", exchange=name, headers={"a": 1})
    assert take_bodies(channel, name) == ["taken"]
    taken = take_bodies(channel, f"{name}.rest")
    assert taken == ["rest"]


def test_an_alternate_exchange_that_is_no_name(channel: Any, name: str) -> None:
    with pytest.raises(OpenDataError, match="alternate-exchange must be the name of an exchange, not 5"):
        headers_exchange(channel, name, **{"alternate-exchange": 5})


@pytest.mark.parametrize("durable", [True, False])
def test_delivery_counts(channel: Any, name: str, durable: bool) -> None:
    channel.queue_declare(name, durable=durable, auto_delete=False)
    send(channel, name, "body", headers={"x-delivery-count": 99})
    for failures in range(3):
        message = channel.basic_get(name)
        assert message.headers == ({"x-delivery-count": failures} if failures else {})
        assert message.delivery_info["redelivered"] is bool(failures)
        message.requeue()


@pytest.mark.parametrize("durable", [True, False])
def test_what_is_recovered_is_redelivered_at_no_cost(connection: Any, channel: Any, name: str, durable: bool) -> None:
    channel.queue_declare(name, durable=durable, auto_delete=False)
    got: list[Any] = []
    channel.basic_consume(name, callback=got.append)
    send(channel, name, "body")
    drain_until(connection, lambda: len(got) == 1)
    assert got[0].delivery_info["redelivered"] is False
    channel.basic_recover(requeue=True)
    drain_until(connection, lambda: len(got) == 2)
    assert got[1].delivery_info["redelivered"] is True
    assert "x-delivery-count" not in got[1].headers
