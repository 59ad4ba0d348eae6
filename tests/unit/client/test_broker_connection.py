"""Calls, deliveries and settlements on one unbroken connection."""

from __future__ import annotations

import os
import select
import socket
import threading
from typing import Any

import pytest

from kombu_opendata.errors import (
    ConnectionLost,
    MessageTooLarge,
    NotFound,
    ProtocolError,
    VersionMismatch,
)
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import MAGIC


def publish(envelope: bytes = b"e") -> m.Publish:
    return m.Publish(0, 0, "x", "k", envelope, {}, 0, 1)


def consume(tag: str = "t", no_ack: bool = False) -> m.Consume:
    return m.Consume(0, 1, tag, "q", no_ack, False, {})


def delivery(number: int, tag: str = "t", token: int = 7) -> m.Delivery:
    return m.Delivery(1, tag, "q", number, token, 1, b"e", False)


def start_consumer(met: Any, tag: str = "t", no_ack: bool = False) -> None:
    client, broker = met
    consuming = client.start(client.connection.consume, consume(tag, no_ack))
    broker.send(m.Ok(broker.receive(m.Consume).rid))
    consuming.result(10)


def test_the_hello_names_a_new_session(peer: Any, new_client: Any) -> None:
    client = new_client(name="worker@host", user="u", secret=lambda: "s3cret")
    connecting = client.start(client.connection.connect)
    hello = peer.accept().welcome()
    connecting.result(10)
    assert (hello.name, hello.user, hello.secret, hello.instance) == ("worker@host", "u", "s3cret", "default")
    assert len(hello.session) == 16
    assert not hello.resume
    assert hello.session == client.connection.session.id


def test_deliveries_that_come_while_a_call_waits_are_kept(met: Any) -> None:
    client, broker = met
    start_consumer(met)
    calling = client.start(client.connection.io.publish, publish())
    request = broker.receive(m.Publish)
    broker.send(m.Deliver(0, [delivery(1), delivery(2)]), m.PublishConfirm(request.rid, 99, 1))
    assert calling.result(10).message_id == 99
    client.connection.drain(0)
    assert [event.id for event in client.connection.events] == [1, 2]
    assert set(client.connection.session.held) == {("q", 1, 7), ("q", 2, 7)}


def test_publishes_count_from_one(met: Any) -> None:
    client, broker = met
    for expected in (1, 2, 3):
        calling = client.start(client.connection.io.publish, publish())
        request = broker.receive(m.Publish)
        assert request.seq == expected
        broker.send(m.PublishConfirm(request.rid, expected, 1))
        calling.result(10)


def test_a_failed_answer_is_raised_as_its_class_with_its_values(met: Any) -> None:
    client, broker = met
    calling = client.start(client.connection.call, m.PurgeQueue(0, "q"))
    broker.send(m.Failed(broker.receive(m.PurgeQueue).rid, "not_found", "no queue 'q'", {"queue": "q"}))
    with pytest.raises(NotFound, match="no queue 'q'") as caught:
        calling.result(10)
    assert caught.value.values == {"queue": "q"}


def test_an_answer_that_comes_too_late_is_dropped(met: Any) -> None:
    client, broker = met
    calling = client.start(client.connection.call, m.PurgeQueue(0, "q"), 0.05)
    late = broker.receive(m.PurgeQueue)
    with pytest.raises(socket.timeout):
        calling.result(10)
    calling = client.start(client.connection.call, m.PurgeQueue(0, "q"))
    second = broker.receive(m.PurgeQueue)
    broker.send(m.Count(late.rid, 1), m.Count(second.rid, 2))
    assert calling.result(10).count == 2


def test_a_message_that_is_claimed_too_late_goes_back(met: Any) -> None:
    client, broker = met
    calling = client.start(client.connection.call, m.Get(0, 1, "q", False), 0.05)
    late = broker.receive(m.Get)
    with pytest.raises(socket.timeout):
        calling.result(10)
    broker.send(m.Got(late.rid, delivery(5, tag=""), 0))
    with pytest.raises(socket.timeout):
        client.connection.drain(0.2)
    assert broker.receive(m.Settle) == m.Settle(1, m.Outcome.RELEASE, 1, [("q", 5, 7)])


def test_a_message_over_the_limit_is_not_sent(peer: Any, new_client: Any) -> None:
    client = new_client()
    connecting = client.start(client.connection.connect)
    broker = peer.accept()
    broker.welcome(max_message_bytes=100, max_frame_bytes=400)
    connecting.result(10)
    with pytest.raises(MessageTooLarge, match=r"101 bytes .* limit is 100") as caught:
        client.connection.io.publish(publish(b"x" * 101))
    assert (caught.value.size, caught.value.limit) == (101, 100)
    with pytest.raises(MessageTooLarge, match="limit for a frame is 400"):
        client.connection.call(m.PurgeQueue(0, "q" * 500))
    calling = client.start(client.connection.io.publish, publish(b"x" * 100))
    request = broker.receive(m.Publish)
    assert request.seq == 1, "what was not sent was not counted"
    broker.send(m.PublishConfirm(request.rid, 1, 1))
    calling.result(10)


def test_settlements_are_kept_until_they_are_confirmed(met: Any) -> None:
    client, broker = met
    start_consumer(met)
    broker.send(m.Deliver(0, [delivery(n) for n in (1, 2, 3)]))
    connection = client.connection
    connection.drain(10)
    connection.settle(1, m.Outcome.ACK, [("q", 1, 7)])
    connection.settle(1, m.Outcome.REJECT, [("q", 2, 7), ("q", 3, 7)])
    assert broker.receive(m.Settle) == m.Settle(1, 0, 1, [("q", 1, 7)])
    assert broker.receive(m.Settle) == m.Settle(3, 2, 1, [("q", 2, 7), ("q", 3, 7)])
    assert len(connection.session.settlements.unconfirmed) == 3
    assert connection.session.held == {}
    broker.send(m.SettleConfirm(2))
    connection.link.current.wait(10)
    connection.io.read_available()
    assert list(connection.session.settlements.unconfirmed) == [(2, "q", 3, 7)]


def test_no_ack_deliveries_are_not_held(met: Any) -> None:
    client, broker = met
    start_consumer(met, no_ack=True)
    broker.send(m.Deliver(0, [delivery(1)]))
    client.connection.drain(10)
    assert client.connection.session.held == {}


def test_cancel_gives_back_what_nobody_has_read(met: Any) -> None:
    client, broker = met
    start_consumer(met)
    start_consumer(met, tag="other")
    cancelling = client.start(client.connection.cancel, 1, "t")
    request = broker.receive(m.Cancel)
    broker.send(m.Deliver(0, [delivery(1), delivery(2, tag="other"), delivery(3)]), m.Ok(request.rid))
    cancelling.result(10)
    assert broker.receive(m.Settle) == m.Settle(2, m.Outcome.RELEASE, 1, [("q", 1, 7), ("q", 3, 7)])
    assert [event.id for event in client.connection.events] == [2]


def test_a_cancelled_consumer_is_an_event_and_is_forgotten(met: Any) -> None:
    client, broker = met
    start_consumer(met)
    broker.send(m.Cancelled(1, "t", "queue deleted"))
    client.connection.drain(10)
    assert client.connection.events.popleft() == m.Cancelled(1, "t", "queue deleted")
    assert client.connection.session.consumers == {}


def test_drain_wakes_when_another_threads_call_took_the_delivery(met: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, broker = met
    start_consumer(met)
    connection = client.connection
    waiting = threading.Event()

    def deaf_to_the_socket(timeout: float, *, waker: Any) -> bool:
        waiting.set()
        return bool(select.select([waker.fd], [], [], timeout)[0])

    monkeypatch.setattr(connection.link.current, "wait", deaf_to_the_socket)
    draining = client.start(connection.drain, 10)
    assert waiting.wait(60)
    calling = client.start(connection.io.publish, publish())
    request = broker.receive(m.Publish)
    broker.send(m.Deliver(0, [delivery(1)]), m.PublishConfirm(request.rid, 1, 1))
    calling.result(10)
    draining.result(10)


def test_a_big_publish_and_big_deliveries_do_not_wait_for_each_other(peer: Any, new_client: Any) -> None:
    client = new_client()
    connecting = client.start(client.connection.connect)
    broker = peer.accept()
    broker.welcome(max_message_bytes=32 << 20, max_frame_bytes=64 << 20)
    connecting.result(10)
    start_consumer((client, broker))
    calling = client.start(client.connection.io.publish, publish(b"x" * (8 << 20)))
    big = m.Delivery(1, "t", "q", 1, 7, 1, b"y" * (8 << 20), False)
    broker.send(m.Deliver(0, [big]))  # reads nothing before this is out
    request = broker.receive(m.Publish)
    broker.send(m.PublishConfirm(request.rid, 1, 1))
    calling.result(10)
    assert len(client.connection.events) == 1


def test_garbage_from_the_broker_is_a_protocol_error_and_closes(met: Any) -> None:
    client, broker = met
    calling = client.start(client.connection.call, m.PurgeQueue(0, "q"))
    broker.receive(m.PurgeQueue)
    broker.sock.sendall(b"\x04\x00\x00\x00nope")
    with pytest.raises(ProtocolError, match="does not decode"):
        calling.result(10)
    assert client.connection.closed
    broker.assert_closed_by_client()
    with pytest.raises(ConnectionLost, match="closed"):
        client.connection.call(m.PurgeQueue(0, "q"))


def test_a_frame_over_the_limit_is_a_protocol_error(met: Any) -> None:
    client, broker = met
    broker.sock.sendall((3 << 20).to_bytes(4, "little"))
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        client.connection.drain(10)


def test_a_broker_that_gives_the_connection_up_says_why(met: Any) -> None:
    client, broker = met
    calling = client.start(client.connection.call, m.PurgeQueue(0, "q"))
    broker.receive(m.PurgeQueue)
    broker.send(m.Failed(0, "protocol_error", "a frame does not decode", {}))
    broker.close()
    with pytest.raises(ProtocolError, match="a frame does not decode"):
        calling.result(10)
    assert client.connection.closed


@pytest.mark.parametrize(
    ("version", "says"), [(0, "the broker is older than this side"), (9, "this side is older than the broker")]
)
def test_a_version_mismatch_says_which_side_is_older(peer: Any, new_client: Any, version: int, says: str) -> None:
    client = new_client()
    connecting = client.start(client.connection.connect)
    peer.accept().preamble(MAGIC + version.to_bytes(2, "little") + b"\0\0")
    with pytest.raises(VersionMismatch, match=says):
        connecting.result(10)


def test_a_server_of_another_protocol_is_named(peer: Any, new_client: Any) -> None:
    client = new_client()
    connecting = client.start(client.connection.connect)
    peer.accept().preamble(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(ProtocolError, match="does not speak the opendata protocol"):
        connecting.result(10)


def test_closing_waits_for_the_brokers_answer(met: Any) -> None:
    client, broker = met
    closing = client.start(client.connection.close)
    broker.send(m.Ok(broker.receive(m.Goodbye).rid))
    closing.result(10)
    broker.assert_closed_by_client()
    client.connection.close()  # again: nothing happens


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_leaves_the_parents_session_alone(met: Any, peer: Any) -> None:
    client, broker = met
    start_consumer(met)
    broker.send(m.Deliver(0, [delivery(1)]))
    client.connection.drain(10)
    child = os.fork()
    if child == 0:  # no assertion here: the child reports by what it sends
        status = 1
        try:
            connection = client.connection
            if not connection.events and not connection.session.held and not connection.session.consumers:
                connection.call(m.PurgeQueue(0, "child"))
                status = 0
        finally:
            os._exit(status)
    second = peer.accept()
    hello = second.welcome()
    assert hello.session != client.connection.session.id
    assert (hello.resume, hello.held) == (False, [])
    second.send(m.Count(second.receive(m.PurgeQueue).rid, 0))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    calling = client.start(client.connection.io.publish, publish())
    request = broker.receive(m.Publish)  # the parent's socket is open and had no Goodbye
    broker.send(m.PublishConfirm(request.rid, 1, 1))
    calling.result(10)
    assert len(client.connection.events) == 1


def test_many_leases_are_settled_in_several_messages(met: Any) -> None:
    client, broker = met
    leases = [("q", number, 7) for number in range(25_000)]
    settling = client.start(client.connection.settle, 1, m.Outcome.ACK, leases)
    got = [broker.receive(m.Settle) for _ in range(3)]
    settling.result(10)
    assert [message.seq for message in got] == [10_000, 20_000, 25_000]
    assert [lease for message in got for lease in message.leases] == leases
