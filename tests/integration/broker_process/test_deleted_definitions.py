"""Deleted definitions stay deleted when the session that declared them resumes, also after a restart of the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from kombu_opendata.protocol import messages as m

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import declare, send
from ...support.processes import wait_until
from ...support.raw import RawClient


class Two(NamedTuple):
    """The channels of two connections: of the one that declares and of another one."""

    mine: Any
    other: Any


@pytest.fixture
def two(connect: Callable[..., Any], broker_url: str) -> Two:
    mine, other = connect(broker_url).channel(), connect(broker_url).channel()
    mine.exchange_declare("stays", "fanout", durable=True, auto_delete=False)
    return Two(mine, other)


def _transient(channel: Any, queue: str, **properties: Any) -> None:
    declare(channel, queue, durable=False, **properties)
    channel.queue_bind(queue, "stays", queue)


def _wait_until_gone(channel: Any, queue: str) -> None:
    """To declare the queue passively would prolong its life."""
    wait_until(lambda: queue not in {binding.queue for binding in channel.state.bindings}, 60, f"end of {queue}")


def deleted_by_another(two: Two, name: str) -> None:
    _transient(two.mine, name)
    two.other.queue_delete(name)


def last_consumer_of_another(two: Two, name: str) -> None:
    _transient(two.mine, name, auto_delete=True)
    two.other.basic_cancel(two.other.basic_consume(name, callback=print))


def expired(two: Two, name: str) -> None:
    _transient(two.mine, name, arguments={"x-expires": 100})
    _wait_until_gone(two.other, name)


def expired_exclusive(two: Two, name: str) -> None:
    _transient(two.mine, name, exclusive=True, arguments={"x-expires": 100})
    _wait_until_gone(two.other, name)


def deleted_exchange(two: Two, name: str) -> None:
    two.mine.exchange_declare(name, "fanout", durable=False, auto_delete=False)
    two.other.exchange_delete(name)


def durable_exchange_without_bindings(two: Two, name: str) -> None:
    two.mine.exchange_declare(name, "fanout", durable=True, auto_delete=True)
    _transient(two.mine, "kept")
    two.mine.queue_bind("kept", name, "")
    two.other.queue_unbind("kept", name, "")


def exchange_whose_last_queue_was_deleted(two: Two, name: str) -> None:
    two.mine.exchange_declare(name, "direct", durable=False, auto_delete=True)
    declare(two.other, "stored")
    two.mine.queue_bind("stored", name, "key")
    two.other.queue_delete("stored")


def unbound_queue(two: Two, name: str) -> None:
    _transient(two.mine, "unbound")
    two.mine.queue_bind("unbound", "stays", name, arguments={"of": "no use"})
    two.other.queue_unbind("unbound", "stays", name, arguments={"of": "no use"})
    two.other.queue_unbind("unbound", "stays", "unbound")


DELETIONS = (
    deleted_by_another, last_consumer_of_another, expired, expired_exclusive, deleted_exchange,
    durable_exchange_without_bindings, exchange_whose_last_queue_was_deleted, unbound_queue,
)  # fmt: skip


def _definitions(channel: Any) -> set[tuple[str, ...]]:
    state = channel.state
    names = ("kept", "stored", "unbound", *(delete.__name__ for delete in DELETIONS))
    found: set[tuple[str, ...]] = {("exchange", name) for name in state.exchanges if name in names}
    found |= {("queue", name) for name in names if channel._has_queue(name)}
    return found | {(binding.queue, binding.exchange, binding.routing_key) for binding in state.bindings}


@pytest.mark.parametrize("ends", ["restart", "break"])
def test_what_was_deleted_is_not_declared_again(two: Two, broker: EmbeddedBroker, ends: str) -> None:
    for delete in DELETIONS:
        delete(two, delete.__name__)
    before = _definitions(two.other)
    assert before == {("queue", "kept"), ("queue", "unbound"), ("kept", "stays", "kept")}
    if ends == "restart":
        broker.kill()
    else:
        two.mine.connection.link.drop()
    send(two.mine, "", "to one queue", exchange="stays")  # resumes
    assert _definitions(two.other) == before


def test_what_was_not_deleted_is_declared_again(two: Two, broker: EmbeddedBroker) -> None:
    _transient(two.mine, "kept", auto_delete=True)
    two.other.basic_consume("kept", callback=print)
    two.mine.basic_cancel(two.mine.basic_consume("kept", callback=print))
    before = _definitions(two.other)
    assert ("queue", "kept") in before
    broker.kill()
    send(two.mine, "", "to the queue", exchange="stays")
    assert _definitions(two.other) == before


def test_a_session_that_ended_gets_back_what_ended_with_it(two: Two) -> None:
    _transient(two.mine, "own", exclusive=True)
    _transient(two.mine, "consumed", auto_delete=True)
    _transient(two.mine, "gone")
    two.mine.basic_consume("consumed", callback=print)
    two.mine.connection.link.drop()
    _wait_until_gone(two.other, "consumed")
    assert not two.other._has_queue("own")
    two.other.queue_delete("gone")
    send(two.mine, "", "to one queue", exchange="stays")
    assert two.mine._has_queue("own")
    assert two.other._has_queue("consumed")
    assert not two.other._has_queue("gone")


def test_an_auto_delete_queue_waits_for_a_consumer_that_lost_its_connection(two: Two) -> None:
    _transient(two.mine, "shared", auto_delete=True)
    two.mine.basic_consume("shared", callback=print)
    others = two.other.basic_consume("shared", callback=print)
    two.mine.connection.link.drop()
    two.other.basic_cancel(others)
    send(two.other, "shared", "kept")
    assert two.mine._size("shared") <= 1  # resumes
    assert two.other._has_queue("shared")


def test_a_client_that_does_not_know_the_report_gets_none(two: Two, broker: EmbeddedBroker) -> None:
    with RawClient(f"{broker.folder}/broker.sock") as client:
        client.hello()
        client.call(m.DeclareQueue(0, "gone", False, False, False, {}, False))
        two.other.queue_delete("gone")
        client.send(m.Qos(0, 1, 1))
        assert isinstance(client.receive(), m.Ok)
