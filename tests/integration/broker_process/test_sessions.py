"""Sessions of clients that fork, die or connect twice."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import errors
from kombu_opendata.broker import memory
from kombu_opendata.broker.delivery.lease_tokens import FREE_RETURNS
from kombu_opendata.broker.instance.x_death_headers import FREE_REJECTIONS
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.messages import queue_messages as q
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.transport.kombu_message import encode
from kombu_opendata.url import parse

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import declare, drain_until, send, take, take_bodies
from ...support.plain_store import PlainStore
from ...support.processes import Child, wait_until
from ...support.raw import RawClient
from ...support.served import ServedBroker


def _run_in_child(work: Callable[[], None]) -> int:
    """Fork, run, return the child's exit code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as exc:
            print(f"in the child: {exc!r}", file=sys.stderr)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_has_a_session_of_its_own(connect: Callable[..., Any], broker_url: str) -> None:
    connection = connect(broker_url)
    channel = connection.channel()
    for queue in ("parents", "childs", "answers"):
        declare(channel, queue)
    send(channel, "parents", "held", "later")
    send(channel, "childs", "x", "y")
    held = channel.basic_get("parents")
    inbox: list[Any] = []
    channel.basic_consume("parents", callback=inbox.append)

    def child() -> None:
        got: list[Any] = []
        its = connection.channel()
        its.basic_consume("childs", callback=got.append)
        drain_until(connection, lambda: len(got) == 2)
        for message in got:
            send(its, "answers", f"{message.body} in the child")
            message.ack()
        send(channel, "answers", "over the parent's channel object")
        connection.close()

    assert _run_in_child(child) == 0
    held.ack()
    drain_until(connection, lambda: inbox)
    assert [message.body for message in inbox] == ["later"]
    inbox[0].ack()
    assert take_bodies(channel, "answers") == ["x in the child", "y in the child", "over the parent's channel object"]
    assert channel._size("childs") == 0
    assert take(channel, "childs") == []


def test_a_broker_in_memory_is_not_for_forked_children(connect: Callable[..., Any]) -> None:
    """Its thread stays behind in the parent; a child must not wait for it."""
    channel = connect("opendata+memory://forked").channel()
    declare(channel, "q")

    def child() -> None:
        with pytest.raises(errors.RequestError, match="stays in the process that started it"):
            declare(channel, "q")

    assert _run_in_child(child) == 0
    assert channel._size("q") == 0
    channel.connection.client.close()
    memory.stop("forked")


def test_the_leases_of_a_killed_client_return_after_the_grace(
    connect: Callable[..., Any], broker_url: str, script: Callable[..., Child]
) -> None:
    connection = connect(broker_url)
    channel = connection.channel()
    declare(channel, "q")
    send(channel, "q", "a", "b")
    victim = script('[channel.basic_get("q") for _ in range(2)]\nprint("holding", flush=True)\nsignal.pause()\n')
    wait_until(lambda: "holding" in victim.log.read_text(), 60, "the victim's leases")
    victim.kill()
    assert channel.basic_get("q") is None, "it may still come back"
    inbox: list[Any] = []
    channel.basic_consume("q", callback=inbox.append)
    drain_until(connection, lambda: len(inbox) == 2)
    assert [(message.body, message.delivery_info["redelivered"]) for message in inbox] == [("a", True), ("b", True)]


def test_a_session_that_held_nothing_leaves_nothing(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    connect(broker_url)
    with RawClient(f"{store_folder}/broker.sock") as raw:
        raw.hello()
    wait_until(lambda: broker.report()["sessions"] == 2, 60, "the end of the grace")  # the test's and the report's own
    wait_until(lambda: raw.session not in _sessions(store_folder), 60, "its record to go")


def test_a_worker_that_is_shut_down_while_it_is_away_hears_it_when_it_is_back(broker_url: str) -> None:
    """The first message of a connection is the Welcome, whatever happened to the session meanwhile."""
    names = "boss", "worker"
    boss, worker = (BrokerConnection(parse(broker_url), Options(name=name, start_timeout=60)) for name in names)
    try:
        boss.connect()
        boss.call(m.DeclareQueue(0, "q", True, False, False, {}, False))
        worker.consume(m.Consume(0, 1, "tag", "q", False, False, {}))
        worker.link.drop()

        def away() -> list[bytes]:
            rows = boss.call(q.ListWorkers(0)).workers
            return [row["session"] for row in rows if row["name"] == "worker" and not row["connected"]]

        wait_until(away, 60, "the broker to notice the break")
        assert boss.call(q.ControlWorker(0, away()[0], "shutdown")).count == 1
        assert worker.call(m.DeclareQueue(0, "q", True, False, False, {}, False)).consumers == 0
        assert [type(event) for event in worker.events] == [m.Cancelled]
    finally:
        for connection in (boss, worker):
            connection.close()


def _sessions(folder: Path) -> set[bytes]:
    return set(PlainStore(folder).of[RecordKind.LEASES])


def test_a_second_connection_of_a_session_replaces_the_first(
    connect: Callable[..., Any], broker_url: str, store_folder: Path
) -> None:
    channel = connect(broker_url).channel()
    path = f"{store_folder}/broker.sock"
    with RawClient(path) as first, RawClient(path) as second:
        first.hello()
        first.declare("q")
        for seq in (1, 2):
            first.publish("q", seq, encode(f"body {seq}", None, None, {}, {}, "", "q"))
        first.consume("q")
        held, unread = first.wait_deliveries(2)
        welcome = second.hello(first.session, resume=True, held=[(1, *held.lease)])
        assert (welcome.adopted, welcome.last_seq) == (1, 2)
        assert first.receive() is None
        got = channel.basic_get("q")
        assert (got.body, got.delivery_info["redelivered"]) == ("body 2", True)
        assert unread.id > held.id
        got.ack()
        second.send(m.Settle(1, m.Outcome.ACK, 1, [held.lease]))
        assert second.publish("q", 3).queues == 1
    assert channel._size("q") == 1


@pytest.mark.parametrize("outcome", [-1, 77])
def test_a_resume_with_an_unknown_settlement_releases_the_message(
    broker_url: str, connect: Callable[..., Any], store_folder: Path, outcome: int
) -> None:
    channel = connect(broker_url).channel()
    path = f"{store_folder}/broker.sock"
    with RawClient(path) as first, RawClient(path) as second:
        first.hello()
        first.declare("q")
        first.publish("q", 1, encode("body", None, None, {}, {}, "", "q"))
        first.consume("q")
        (held,) = first.wait_deliveries(1)
        second.hello(first.session, resume=True, settles=[(outcome, *held.lease)])
        assert channel.basic_get("q").body == "body"


@pytest.mark.parametrize("durable", [True, False], ids=["stored", "transient"])
@pytest.mark.parametrize("outcome", [m.Outcome.RELEASE, m.Outcome.REQUEUE])
def test_a_client_that_only_returns_messages_is_slowed_down(
    store_folder: Path, serve: Callable[..., ServedBroker], durable: bool, outcome: m.Outcome
) -> None:
    serve()
    with RawClient(f"{store_folder}/by-hand.sock") as client:
        client.hello()
        client.call(m.DeclareQueue(0, "q", durable, False, False, {"x-delivery-limit": -1} if durable else {}, False))
        client.consume("q")
        client.publish("q", 1)
        began, settled = time.monotonic(), 0
        while time.monotonic() - began < 1.5:
            delivery = client.wait_deliveries(settled + 1)[-1]
            settled += 1
            client.send(m.Settle(settled, outcome, 1, [delivery.lease]))
        assert FREE_RETURNS < settled < FREE_RETURNS + 12
        delivery = client.wait_deliveries(settled + 1)[-1]
        client.send(m.Settle(settled + 1, m.Outcome.ACK, 1, [delivery.lease]))
        client.publish("q", 2)
        client.wait_deliveries(settled + 2)


def test_a_message_that_is_rejected_into_its_own_queue_is_slowed_down(
    store_folder: Path, serve: Callable[..., ServedBroker]
) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    serve()
    with RawClient(f"{store_folder}/by-hand.sock") as client:
        client.hello()
        client.call(m.DeclareQueue(0, "q", True, False, False, arguments, False))
        client.consume("q")
        client.publish("q", 1)
        began, settled = time.monotonic(), 0
        while time.monotonic() - began < 1.5:
            delivery = client.wait_deliveries(settled + 1)[-1]
            settled += 1
            client.send(m.Settle(settled, m.Outcome.REJECT, 1, [delivery.lease]))
        assert settled < FREE_REJECTIONS + 12
