"""What happens when the socket breaks: the session goes on, on a new one."""

from __future__ import annotations

import contextvars
import logging
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.client.client_clock import ClientClock
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.client.session.session_link import LinkState, Outlasting, outlasts_outage
from kombu_opendata.errors import AccessRefused, ConnectionLost, FailedPublish, ProtocolError, TooManyConnections
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import PREAMBLE, PREAMBLE_BYTES, frame
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.url import Address


def publish(envelope: bytes = b"e") -> m.Publish:
    return m.Publish(0, 0, "x", "k", envelope, {}, 0, 1)


def delivery(number: int, tag: str = "t") -> m.Delivery:
    return m.Delivery(1, tag, "q", number, 7, 1, b"e", False)


def call(met: Any, message: Any, answer: Any) -> None:
    """Let the client send a request and the broker give this answer (its rid is filled in)."""
    client, broker = met
    method = client.connection.consume if isinstance(message, m.Consume) else client.connection.call
    calling = client.start(method, message)
    answer.rid = broker.receive(type(message)).rid
    broker.send(answer)
    calling.result(10)


def consume(met: Any, tag: str = "t", queue: str = "q") -> None:
    call(met, m.Consume(0, 1, tag, queue, False, False, {}), m.Ok(0))


def test_a_publish_is_sent_again_with_the_same_number(met: Any, peer: Any) -> None:
    client, broker = met
    calling = client.start(client.connection.io.publish, publish())
    first = broker.receive(m.Publish)
    broker.close()
    second = peer.accept()
    hello = second.welcome()
    assert hello.resume
    assert hello.session == client.connection.session.id
    again = second.receive(m.Publish)
    assert (again.seq, again.envelope) == (first.seq, first.envelope)
    second.send(m.PublishConfirm(again.rid, 42, 1))
    assert calling.result(10).message_id == 42


def test_the_hello_carries_leases_in_hand_and_unconfirmed_settlements(met: Any, peer: Any) -> None:
    client, broker = met
    consume(met)
    broker.send(m.Deliver(0, [delivery(n) for n in range(1, 6)]))
    connection = client.connection
    connection.drain(10)
    connection.events.popleft()  # 1 is with the application, the others wait
    connection.settle(1, m.Outcome.ACK, [("q", 2, 7)])
    connection.settle(1, m.Outcome.ACK, [("q", 3, 7)])
    connection.settle(1, m.Outcome.REQUEUE, [("q", 4, 7)])
    for _ in range(3):
        broker.receive(m.Settle)
    broker.send(m.SettleConfirm(1))
    calling = client.start(connection.call, m.PurgeQueue(0, "q"))
    broker.receive(m.PurgeQueue)
    broker.close()

    second = peer.accept()
    hello = second.welcome()
    assert hello.held == [(1, "q", 1, 7), (1, "q", 5, 7)]
    assert hello.settles == [(0, "q", 3, 7), (1, "q", 4, 7)]
    second.send(m.Ok(second.receive(m.Consume).rid))
    second.send(m.Count(second.receive(m.PurgeQueue).rid, 0))
    calling.result(10)
    assert not connection.session.settlements.unconfirmed

    connection.settle(1, m.Outcome.ACK, [("q", 1, 7)])
    assert second.receive(m.Settle).seq == 1, "a new connection counts from 0"
    assert [event.id for event in connection.events] == [2, 3, 4, 5]


def test_the_resume_carries_unconfirmed_reports(peer: Any, new_client: Any) -> None:
    client = new_client()
    connecting = client.start(client.connection.connect)
    broker = peer.accept()
    broker.welcome(task_outcomes=True)
    connecting.result(10)
    connection = client.connection
    connection.settle(1, m.Outcome.START, [("q", 1, 7)])
    connection.settle_task(1, m.Outcome.REPORT, ("q", 1, 7), TaskReport(TaskState.SUCCEEDED, 5))
    connection.settle(1, m.Outcome.ACK, [("q", 2, 7)])
    for kind in (m.Settle, m.ReportTasks, m.Settle):
        broker.receive(kind)
    failure = TaskReport(TaskState.RAISED, 5, traceback="x" * 16384)
    for number in range(300):
        connection.settle_task(1, m.Outcome.ACK, ("q", 3 + number, 7), failure)
        broker.receive(m.ReportTasks)
    calling = client.start(connection.call, m.PurgeQueue(0, "q"))
    broker.close()
    second = peer.accept()
    second.welcome(task_outcomes=True)
    resume = second.resume
    assert [settled[0] for settled in resume.settles[:4]] == [4, 5, 0, 0]
    assert [place for place, _report in resume.reports] == [1, *range(3, 303)]
    told = [report for _place, report in resume.reports]
    assert told[0] == TaskReport(TaskState.SUCCEEDED, 5)
    assert [bool(report.traceback) for report in told[1:]] == [True] * 256 + [False] * 44, "4 MiB of texts"
    assert {report.state for report in told[1:]} == {TaskState.RAISED}
    second.send(m.Count(second.receive(m.PurgeQueue).rid, 0))
    calling.result(10)
    assert not connection.session.settlements.unconfirmed


def test_what_the_old_socket_still_holds_is_read_first(met: Any, peer: Any) -> None:
    client, broker = met
    consume(met)
    calling = client.start(client.connection.io.publish, publish())
    request = broker.receive(m.Publish)
    broker.send(m.Deliver(0, [delivery(1)]), m.PublishConfirm(request.rid, 42, 1), m.Deliver(0, [delivery(2)]))
    broker.close()
    assert calling.result(10).message_id == 42
    draining = client.start(client.connection.call, m.PurgeQueue(0, "q"))
    second = peer.accept()
    assert second.welcome().held == [(1, "q", 1, 7), (1, "q", 2, 7)]
    second.send(m.Ok(second.receive(m.Consume).rid))
    second.send(m.Count(second.receive(m.PurgeQueue).rid, 0))
    draining.result(10)


def test_consumers_prefetch_and_transient_topology_are_declared_again(met: Any, peer: Any) -> None:
    client, broker = met
    transient = m.DeclareQueue(0, "reply", False, False, True, {}, False)
    call(met, m.DeclareExchange(0, "bus", "fanout", False, False, {}, False), m.Ok(0))
    call(met, m.DeclareExchange(0, "durable", "direct", True, False, {}, False), m.Ok(0))
    call(met, transient, m.QueueDeclared(0, "reply", 0, 0))
    call(met, m.DeclareQueue(0, "kept", True, False, False, {}, False), m.QueueDeclared(0, "kept", 0, 0))
    call(met, m.DeclareQueue(0, "", False, True, False, {}, False), m.QueueDeclared(0, "made-up", 0, 0))
    call(met, m.Bind(0, "reply", "bus", "", {}), m.Ok(0))
    call(met, m.Bind(0, "kept", "durable", "k", {}), m.Ok(0))
    call(met, m.DeclareQueue(0, "gone", False, False, False, {}, False), m.QueueDeclared(0, "gone", 0, 0))
    call(met, m.DeleteQueue(0, "gone", False, False), m.Count(0, 0))
    client.connection.set_prefetch(1, 8)
    assert broker.receive(m.Qos).prefetch == 8
    consume(met, "t", "reply")
    broker.close()

    calling = client.start(client.connection.call, m.PurgeQueue(0, "q"))
    second = peer.accept()
    second.welcome()
    said = [second.receive(kind) for kind in (m.DeclareExchange, m.DeclareQueue, m.DeclareQueue, m.Bind)]
    assert [(s.exchange if isinstance(s, (m.DeclareExchange, m.Bind)) else s.queue) for s in said] == [
        "bus",
        "reply",
        "made-up",
        "bus",
    ]
    qos, consumer = second.receive(m.Qos), second.receive(m.Consume)
    assert (qos.channel, qos.prefetch, consumer.tag, consumer.queue) == (1, 8, "t", "reply")
    second.send(*(m.Ok(s.rid) for s in [*said, qos, consumer]))
    second.send(m.Count(second.receive(m.PurgeQueue).rid, 0))
    calling.result(10)


def test_the_last_cancel_of_an_auto_delete_queue_forgets_it(met: Any, peer: Any) -> None:
    client, broker = met
    call(met, m.DeclareQueue(0, "reply", False, False, True, {}, False), m.QueueDeclared(0, "reply", 0, 0))
    consume(met, "t", "reply")
    cancelling = client.start(client.connection.cancel, 1, "t")
    broker.send(m.Ok(broker.receive(m.Cancel).rid))
    cancelling.result(10)
    broker.close()
    calling = client.start(client.connection.call, m.PurgeQueue(0, "q"))
    second = peer.accept()
    second.welcome()
    second.send(m.Count(second.receive(m.PurgeQueue).rid, 0))  # nothing is declared before
    calling.result(10)


@pytest.mark.parametrize(
    ("run_id", "session_known", "again"),
    [
        (b"run", True, {"exclusive": True, "transient": True, "bus": True, "durable": True}),
        (b"run", False, {"exclusive": False, "transient": True, "bus": False, "durable": True}),
        (b"next", False, {"exclusive": False, "transient": False, "bus": False, "durable": True}),
    ],
)
def test_what_should_still_exist_is_not_created_again(
    peer: Any, new_client: Any, run_id: bytes, session_known: bool, again: dict[str, bool]
) -> None:
    client = new_client()
    connecting = client.start(client.connection.connect)
    broker = peer.accept()
    assert broker.welcome(run_id=b"run").undeclared
    connecting.result(10)
    met = client, broker
    call(met, m.DeclareExchange(0, "bus", "fanout", False, True, {}, False), m.Ok(0))
    call(met, m.DeclareExchange(0, "durable", "fanout", True, True, {}, False), m.Ok(0))
    for name, exclusive in (("exclusive", True), ("transient", False), ("gone", False)):
        call(met, m.DeclareQueue(0, name, False, exclusive, False, {}, False), m.QueueDeclared(0, name, 0, 0))
    call(met, m.Bind(0, "exclusive", "bus", "", {}), m.Ok(0))
    broker.send(m.Undeclared("gone"))
    calling = client.start(client.connection.call, m.DeclareQueue(0, "short", False, False, False, {}, False))
    broker.send(m.QueueDeclared(broker.receive(m.DeclareQueue).rid, "short", 0, 0), m.Undeclared("short"))
    calling.result(10)
    broker.close()

    calling = client.start(client.connection.call, m.PurgeQueue(0, "q"))
    second = peer.accept()
    second.welcome(run_id=run_id, session_known=session_known)
    kinds = (m.DeclareExchange, m.DeclareExchange, m.DeclareQueue, m.DeclareQueue, m.Bind)
    declared = [second.receive(kind) for kind in kinds]
    assert {getattr(d, "queue", "") or d.exchange: d.again for d in declared[:4]} == again
    assert declared[4].again == again["exclusive"]
    second.send(*(m.Failed(d.rid, "not_found", "gone", {}) if d.again else m.Ok(d.rid) for d in declared))
    second.send(m.Count(second.receive(m.PurgeQueue).rid, 0))
    calling.result(10)
    left = list(client.connection.session.declared.declarations())
    assert [d.again for d in left] == [False] * len([d for d in declared if not d.again])


def test_a_consumer_whose_queue_is_gone_ends(met: Any, peer: Any) -> None:
    client, broker = met
    consume(met)
    broker.close()
    draining = client.start(client.connection.drain, 10)
    second = peer.accept()
    second.welcome()
    second.send(m.Failed(second.receive(m.Consume).rid, "not_found", "no queue 'q'", {}))
    draining.result(10)
    assert client.connection.events.popleft() == m.Cancelled(1, "t", "no queue 'q'")
    assert client.connection.session.consumers == {}


def test_a_consume_that_was_not_answered_is_sent_once(met: Any, peer: Any) -> None:
    client, broker = met
    consuming = client.start(client.connection.consume, m.Consume(0, 1, "t", "q", False, False, {}))
    broker.receive(m.Consume)
    broker.close()
    second = peer.accept()
    second.welcome()
    second.send(m.Ok(second.receive(m.Consume).rid))
    consuming.result(10)
    calling = client.start(client.connection.call, m.PurgeQueue(0, "q"))
    second.send(m.Count(second.receive(m.PurgeQueue).rid, 0))
    calling.result(10)


def test_a_stopping_broker_is_left_for_its_successor(met: Any, peer: Any) -> None:
    client, broker = met
    calling = client.start(client.connection.io.publish, publish())
    request = broker.receive(m.Publish)
    broker.send(m.BrokerGoodbye("stopped"), m.Failed(request.rid, "broker_stopping", "stopping", {}))
    second = peer.accept()  # still the old one, which refuses
    second.preamble()
    second.send(m.Failed(second.receive(m.Hello).rid, "broker_stopping", "stopping", {}))
    third = peer.accept()
    third.welcome()
    again = third.receive(m.Publish)
    assert again.seq == request.seq
    third.send(m.PublishConfirm(again.rid, 1, 1))
    assert calling.result(10).message_id == 1


def test_a_settlement_on_a_broken_socket_goes_with_the_hello(met: Any, peer: Any) -> None:
    client, broker = met
    consume(met)
    broker.send(m.Deliver(0, [delivery(1)]))
    client.connection.drain(10)
    broker.close()
    settling = client.start(client.connection.settle, 1, m.Outcome.ACK, [("q", 1, 7)])
    second = peer.accept()
    hello = second.welcome()
    assert (hello.held, hello.settles) == ([], [(0, "q", 1, 7)])
    second.send(m.Ok(second.receive(m.Consume).rid))
    settling.result(10)


def test_a_refused_resume_is_final(met: Any, peer: Any) -> None:
    client, broker = met
    calling = client.start(client.connection.io.publish, publish())
    broker.receive(m.Publish)
    broker.close()
    second = peer.accept()
    second.preamble()
    second.send(m.Failed(second.receive(m.Hello).rid, "access_refused", "wrong secret", {}))
    with pytest.raises(AccessRefused, match="wrong secret"):
        calling.result(10)
    assert client.connection.closed


class _Timer:
    """A clock that jumps by what is slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance(self, seconds: float) -> None:
        self.now += seconds


def test_when_nobody_comes_back_the_connection_is_lost(store_folder: Any, new_client: Any) -> None:
    timer = _Timer()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    connection = BrokerConnection(
        Address("tcp", host="127.0.0.1", port=port),
        Options(reconnect_timeout=10),
        clock=ClientClock(monotonic=lambda: timer.now, sleep=timer.advance),
    )
    connecting = new_client().start(connection.connect)
    server, _ = listener.accept()
    listener.close()
    server.sendall(PREAMBLE + frame(m.Welcome(1, "0", 1 << 20, 1 << 20, 0, 0, 0)))
    connecting.result(10)
    server.close()
    with pytest.raises(ConnectionLost, match=r"not resumed within 10 s: cannot connect to the broker at opendata://"):
        connection.io.publish(publish())
    assert 10 <= timer.now < 12
    with pytest.raises(ConnectionLost, match="not resumed within 10 s"):
        connection.io.publish(publish())
    assert timer.now < 12, "the next call tries once"
    assert not connection.closed, "the session is kept"
    with pytest.raises(TimeoutError):
        connection.drain(30)
    assert 40 <= timer.now < 44
    with pytest.raises(ConnectionLost, match="not resumed within 60 s"):
        connection.drain()
    assert connection.closed
    assert 60 <= timer.now < 62


def test_the_time_until_an_attempt_and_until_the_last_one_counts_from_the_loss(
    store_folder: Path, peer: Any, new_client: Any
) -> None:
    timer, path = _Timer(), store_folder / "broker.sock"
    connection = BrokerConnection(
        Address("unix", host=str(path)), clock=ClientClock(monotonic=lambda: timer.now, sleep=timer.advance)
    )
    connecting = new_client().start(connection.connect)
    broker = peer.accept()
    broker.welcome()
    connecting.result(10)
    link = connection.link
    assert [link.resume_after(seconds) for seconds in (0.25, 0.0)] == [0.25, 0.0], "it is connected"
    broker.close()
    path.unlink()
    link.lost(ConnectionResetError(), resume=False)
    timer.now = 0.125
    assert link.resume_after(0.25) == 0.125
    timer.now = 0.25
    assert link.resume_after(0.25) == link.backoff > 0, "an attempt has failed"
    timer.now = 59.9
    assert not link.resume_once()
    timer.now = 60
    with pytest.raises(ConnectionLost, match=r"was lost and not resumed within 60 s: no broker listens"):
        link.resume_once()
    assert connection.closed
    assert link.resume_after(0.25) is None


@pytest.mark.parametrize("is_known", [False, True], ids=["first connection", "later connection"])
def test_the_log_has_the_beginning_and_the_end_of_an_outage(
    store_folder: Path, peer: Any, new_client: Any, caplog: pytest.LogCaptureFixture, is_known: bool
) -> None:
    timer, path, away, client = _Timer(), store_folder / "broker.sock", store_folder / "away.sock", new_client()

    def sleep(seconds: float) -> None:
        timer.advance(seconds)
        if timer.now > 300 and away.exists():
            away.rename(path)

    connection = BrokerConnection(
        Address("unix", host=str(path)), clock=ClientClock(monotonic=lambda: timer.now, sleep=sleep)
    )
    if is_known:
        connecting = client.start(connection.connect)
        broker = peer.accept()
        broker.welcome()
        connecting.result(10)
        broker.close()
    path.rename(away)
    context = contextvars.copy_context()
    context.run(outlasts_outage.set, Outlasting(lambda: True))
    calling = client.start(context.run, connection.call, m.PurgeQueue(0, "q"))
    broker = peer.accept()
    broker.welcome()
    broker.send(m.Count(broker.receive(m.PurgeQueue).rid, 0))
    calling.result(10)
    reason = f"no broker listens on {path}"
    lost = f"the connection to {connection.address} is lost, resuming it: {reason}"
    unreachable = f"the broker at {connection.address} is unreachable; the result of a task waits for it: {reason}"
    back = f"the connection to {connection.address} is back after {timer.now:.1f} s"
    texts = [log.getMessage().partition(": start it")[0] for log in caplog.records if log.levelno == logging.WARNING]
    assert texts == [*([lost] if is_known else []), unreachable, back]
    connection.abandon()


@pytest.mark.parametrize("is_known", [False, True], ids=["first connection", "later connection"])
def test_a_call_may_outlast_any_outage(store_folder: Path, peer: Any, is_known: bool) -> None:
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    address = Address("unix", host=str(store_folder / "broker.sock"))
    clock = ClientClock(monotonic=lambda: now, sleep=advance)
    connection = BrokerConnection(address, Options(reconnect_timeout=1, resume_timeout=2), clock=clock)
    if is_known:
        connecting = threading.Thread(target=connection.connect)
        connecting.start()
        peer.accept().welcome()
        connecting.join()
    peer.close()
    token = outlasts_outage.set(Outlasting(lambda: now < 600))
    try:
        with pytest.raises(ConnectionLost):
            connection.call(m.GetStatus(0))
    finally:
        outlasts_outage.reset(token)
    assert 600 <= now < 610
    connection.abandon()


def test_a_signal_handler_does_not_wait_within_a_call_that_does(store_folder: Path) -> None:
    handled: list[str] = []
    address = Address("unix", host=str(store_folder / "broker.sock"))

    def interrupt(_seconds: float) -> None:
        if not handled:
            with pytest.raises(ConnectionLost):
                other.call(m.GetStatus(0))
            handled.append("once")

    connection = BrokerConnection(address, clock=ClientClock(sleep=interrupt))
    other = BrokerConnection(address, clock=ClientClock(sleep=lambda _seconds: pytest.fail("the handler waited")))
    token = outlasts_outage.set(Outlasting(lambda: not handled))
    try:
        with pytest.raises(ConnectionLost):
            connection.call(m.GetStatus(0))
    finally:
        outlasts_outage.reset(token)
    assert handled == ["once"]


@pytest.mark.parametrize("kind", ["tcp", "embedded"])
def test_a_broker_that_has_too_many_connections_is_not_hammered(store_folder: Path, new_client: Any, kind: str) -> None:
    timer, refused = _Timer(), m.Failed(1, "too_many_connections", "no place", {"limit": 1})
    is_local = kind == "embedded"
    listener = socket.socket(socket.AF_UNIX if is_local else socket.AF_INET)
    with listener:
        listener.bind(str(store_folder / "broker.sock") if is_local else ("127.0.0.1", 0))
        listener.listen()
        port = 0 if is_local else listener.getsockname()[1]
        connection = BrokerConnection(
            Address("embedded", folder=str(store_folder)) if is_local else Address("tcp", host="127.0.0.1", port=port),
            Options(connect_timeout=4, start_timeout=6),
            clock=ClientClock(monotonic=lambda: timer.now, sleep=timer.advance),
        )
        connecting = new_client().start(connection.connect)
        attempts = 0
        listener.settimeout(0.1)
        while not connecting.done():
            try:
                server, _ = listener.accept()
            except TimeoutError:
                continue
            attempts += 1
            with server:
                server.sendall(PREAMBLE + frame(refused))
                server.settimeout(10)
                while server.recv(65536):  # until the client has read it
                    pass
        with pytest.raises(TooManyConnections, match="no place"):
            connecting.result(10)
    limit = 6 if is_local else 4
    assert limit <= timer.now < limit + 1
    assert attempts < 20  # the pauses grow, and are random: 10 to 14


def test_an_embedded_broker_of_another_protocol_is_tried_once(store_folder: Path, peer: Any, new_client: Any) -> None:
    connection = BrokerConnection(
        Address("embedded", folder=str(store_folder)),
        clock=ClientClock(sleep=lambda _seconds: pytest.fail("the client tries again")),
    )
    connecting = new_client().start(connection.connect)
    peer.accept().preamble(b"x" * PREAMBLE_BYTES)
    with pytest.raises(ProtocolError):
        connecting.result(10)


def test_a_close_ends_the_attempts_to_connect(new_client: Any) -> None:
    refused = m.Failed(1, "too_many_connections", "no place", {"limit": 1})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = BrokerConnection(
            Address("tcp", host="127.0.0.1", port=listener.getsockname()[1]),
            clock=ClientClock(sleep=lambda _seconds: connection.close()),
        )
        connecting = new_client().start(connection.connect)
        listener.settimeout(10)
        server, _ = listener.accept()
        with server:
            server.sendall(PREAMBLE + frame(refused))
            with pytest.raises(ConnectionLost, match="closed"):
                connecting.result(10)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert connection.closed


def test_publishes_in_flight_fail_with_the_connection(met: Any) -> None:
    client, broker = met
    failures: list[FailedPublish] = []
    client.connection.pipeline.publish(publish(), failures)
    broker.receive(m.Publish)
    client.connection.abandon()
    assert [str(failure.error) for failure in failures] == ["the connection ended before the broker confirmed it"]
    assert client.connection.closed


def test_a_forked_child_has_the_limits_of_the_broker_and_the_end_of_its_parent(peer: Any, new_client: Any) -> None:
    client = new_client()
    connection = client.connection
    connecting = client.start(connection.connect)
    peer.accept().welcome(max_message_bytes=5000, task_outcomes=True)
    connecting.result(10)
    assert connection.link.welcome.max_message_bytes == 5000
    for is_closed in (False, True):
        parent = connection.link
        connection.after_fork_in_child()
        assert parent.is_closed
        assert (connection.link.welcome, connection.takes_reports) == (parent.welcome, True)
        assert connection.closed == is_closed
        connection.abandon()


class _Observer:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def socket_opened(self, fd: int) -> None:
        self.told.append("opened")

    def socket_closing(self, fd: int) -> None:
        self.told.append("closing")

    def events_buffered(self) -> None:
        self.told.append("buffered")

    def connection_lost(self) -> None:
        self.told.append("lost")


def test_under_an_event_loop_a_break_blocks_nobody(met: Any, peer: Any) -> None:
    client, broker = met
    consume(met)
    connection = client.connection
    observer = connection.link.observer = _Observer()
    broker.send(m.Deliver(0, [delivery(1), delivery(2)]))
    broker.close()
    connection.io.read_available()
    connection.io.read_available()  # meets the end
    assert observer.told == ["closing", "lost", "buffered"]
    connection.settle(1, m.Outcome.ACK, [("q", 1, 7)])  # returns at once
    resuming = client.start(connection.link.resume_once)
    second = peer.accept()
    hello = second.welcome()
    assert (hello.held, hello.settles) == ([(1, "q", 2, 7)], [(0, "q", 1, 7)])
    second.send(m.Ok(second.receive(m.Consume).rid))
    assert resuming.result(10)
    assert observer.told[3:] == ["opened", "buffered"]
    assert connection.link.resume_once(), "there is nothing left to do"


def test_an_interrupted_call_does_not_leave_the_stream_out_of_step(met: Any, peer: Any) -> None:
    client, broker = met

    class Interrupt(BaseException):
        pass

    connection = client.connection
    real = connection.session.receive

    def interrupted(messages: Any) -> None:
        connection.session.receive = real
        raise Interrupt

    connection.session.receive = interrupted
    calling = client.start(connection.io.publish, publish())
    request = broker.receive(m.Publish)
    broker.send(m.PublishConfirm(request.rid, 1, 1))
    with pytest.raises(Interrupt):
        calling.result(10)
    calling = client.start(connection.io.publish, publish())
    second = peer.accept()
    assert second.welcome().resume
    request = second.receive(m.Publish)
    assert request.seq == 2
    second.send(m.PublishConfirm(request.rid, 2, 1))
    assert calling.result(10).message_id == 2


def test_the_credit_that_is_left_is_said_again_before_the_consumers(met: Any, peer: Any) -> None:
    client, broker = met
    connection = client.connection
    connection.set_credit(1, 0)
    assert broker.receive(m.Credit) == m.Credit(1, 0)
    consume(met)
    connection.set_credit(1, 2)
    assert broker.receive(m.Credit) == m.Credit(1, 2)
    broker.send(m.Deliver(0, [delivery(1)]))
    connection.drain(10)
    broker.close()
    calling = client.start(connection.call, m.PurgeQueue(0, "q"))
    second = peer.accept()
    second.welcome()
    assert second.receive(m.Credit) == m.Credit(1, 1)
    second.send(m.Ok(second.receive(m.Consume).rid))
    second.send(m.Count(second.receive(m.PurgeQueue).rid, 0))
    calling.result(10)


def test_the_reconnect_thread_resumes_while_nobody_uses_the_connection(met: Any, peer: Any) -> None:
    """The observer of an event loop that stands still does nothing; what is in hand goes into the Hello."""
    client, broker = met
    consume(met)
    broker.send(m.Deliver(0, [delivery(1)]))
    client.connection.drain(10)
    client.connection.link.start_reconnect_thread()
    for _ in range(2):
        broker.close()
        broker = peer.accept()
        assert broker.welcome().held == [(1, "q", 1, 7)]
        broker.send(m.Ok(broker.receive(m.Consume).rid))
    client.connection.settle(1, m.Outcome.ACK, [("q", 1, 7)])
    assert broker.receive(m.Settle).seq == 1


def test_a_hang_up_that_the_thread_noticed_is_handled_once(met: Any, caplog: pytest.LogCaptureFixture) -> None:
    client, _broker = met
    link = client.connection.link
    broken = link.current
    caplog.set_level(logging.DEBUG)
    for _ in range(2):
        link.hung_up(broken)
        assert (link.current, link.state) == (None, LinkState.LOST)
        (text,) = [log.getMessage() for log in caplog.records if " lost: " in log.getMessage()]
        assert text == f"connection to {client.connection.address} lost: the broker closed the connection"


def test_the_reconnect_thread_ends_with_its_connection(met: Any, peer: Any) -> None:
    client, _ = met
    before = set(threading.enumerate())
    client.connection.link.start_reconnect_thread()
    (thread,) = set(threading.enumerate()) - before
    client.connection.abandon()
    thread.join(10)
    assert not thread.is_alive()
