"""Calls that interrupt another call of their thread: in a signal handler, a finalizer or a logging handler."""

from __future__ import annotations

import logging
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.result_client import ResultClient
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.client.session.reentrance import Reentrance
from kombu_opendata.errors import ConnectionInUse, ConnectionLost
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.url import Address
from tests.support.processes import wait_until

SECONDS = 60
LOGGER = logging.getLogger("kombu_opendata")


def publish(envelope: bytes) -> m.Publish:
    return m.Publish(0, 0, "x", "k", envelope, {}, 0, 1)


def declare(*, exclusive: bool = False) -> m.DeclareQueue:
    return m.DeclareQueue(0, "q", not exclusive, exclusive, False, {}, False)


class Interrupted(Exception):
    """Raised by a signal handler."""


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], Any]], list[Any]]]:
    """Install a signal handler; returns the list that gets what it returned or raised."""
    before = signal.getsignal(signal.SIGUSR1)

    def install(handler: Callable[[], Any]) -> list[Any]:
        outcomes: list[Any] = []

        def handle(_number: int, _frame: Any) -> None:
            try:
                outcomes.append(handler())
            except Interrupted:
                raise
            except BaseException as exc:
                outcomes.append(exc)

        signal.signal(signal.SIGUSR1, handle)
        return outcomes

    yield install
    signal.signal(signal.SIGUSR1, before)


def interrupt() -> None:
    """Run the signal handler in the main thread, which is in a call."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def answer_other(peer: Any, kind: type, answer: Callable[[int], Any]) -> Any:
    """Play the broker of the other connection; returns the request."""
    other = peer.accept()
    other.welcome()
    request = other.receive(kind)
    other.send(answer(request.rid))
    return request


def test_a_publish_that_interrupts_a_publish_goes_over_another_connection(met: Any, peer: Any, on_signal: Any) -> None:
    client, broker = met
    outcomes = on_signal(lambda: client.connection.publish(publish(b"inner")))

    def play() -> None:
        for turn in range(2):
            request = broker.receive(m.Publish)
            interrupt()
            if turn == 0:
                other = peer.accept()
                other.welcome()
            inner = other.receive(m.Publish)
            assert inner.envelope == b"inner"
            other.send(m.PublishConfirm(inner.rid, 7 + turn, 1))
            broker.send(m.PublishConfirm(request.rid, turn, 1))

    playing = client.start(play)
    for turn in range(2):
        assert client.connection.publish(publish(b"outer")).message_id == turn
    playing.result(SECONDS)
    assert [published.message_id for published in outcomes] == [7, 8]
    client.connection.abandon()
    with pytest.raises(ConnectionLost, match="is closed"):
        client.connection.publish(publish(b"late"))


def test_a_declaration_goes_over_another_connection_unless_the_queue_belongs_to_the_session(
    met: Any, peer: Any, on_signal: Any
) -> None:
    client, broker = met

    def both() -> tuple[Any, Any]:
        declared = client.connection.call(declare())
        with pytest.raises(ConnectionInUse, match="open another connection"):
            client.connection.call(declare(exclusive=True))
        return declared.queue, client.connection.closed

    outcomes = on_signal(both)

    def play() -> None:
        request = broker.receive(m.Publish)
        interrupt()
        answer_other(peer, m.DeclareQueue, lambda rid: m.QueueDeclared(rid, "q", 0, 0, []))
        broker.send(m.PublishConfirm(request.rid, 1, 1))

    playing = client.start(play)
    client.connection.publish(publish(b"outer"))
    playing.result(SECONDS)
    assert outcomes == [("q", False)]


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.get(1, "q", no_ack=False),
        lambda c: c.consume(m.Consume(0, 1, "t", "q", False, False, {})),
        lambda c: c.set_prefetch(1, 5),
        lambda c: c.set_credit(1, 1),
        lambda c: c.drain(1),
        lambda c: c.flush(1),
        lambda c: c.connect(),
    ],
    ids=["get", "consume", "prefetch", "credit", "drain", "flush", "connect"],
)
def test_what_needs_the_session_is_refused(met: Any, on_signal: Any, call: Callable[[BrokerConnection], Any]) -> None:
    client, broker = met
    outcomes = on_signal(lambda: call(client.connection))

    def play() -> None:
        request = broker.receive(m.Publish)
        interrupt()
        broker.send(m.PublishConfirm(request.rid, 1, 1))

    playing = client.start(play)
    assert client.connection.publish(publish(b"outer")).message_id == 1
    playing.result(SECONDS)
    (error,) = outcomes
    assert isinstance(error, ConnectionInUse)
    assert "the connection is in use by the call that this one interrupted" in str(error)


def _run_message() -> Any:
    class Message:
        lease = ("q", 2, 7)
        run = TaskReport(TaskState.SUCCEEDED)

    return Message()


@pytest.mark.parametrize(
    ("settle", "kind"),
    [
        (lambda c: c.settle(1, m.Outcome.ACK, [("q", 2, 7)]), m.Settle),
        (lambda c: c.settle_message(1, m.Outcome.ACK, _run_message()), m.ReportTasks),
        (lambda c: c.settle_task(1, m.Outcome.ACK, ("q", 2, 7), TaskReport(TaskState.SUCCEEDED)), m.ReportTasks),
        (lambda c: c.close_channel(c.add_channel(object())), m.CloseChannel),
        (lambda c: c.close(), m.Goodbye),
    ],
    ids=["settle", "settle_message", "settle_task", "close_channel", "close"],
)
def test_settling_and_closing_wait_for_the_end_of_the_interrupted_call(
    peer: Any, new_client: Any, on_signal: Any, settle: Callable[[BrokerConnection], Any], kind: type
) -> None:
    client = new_client()
    connecting = client.start(client.connection.connect)
    broker = peer.accept()
    broker.welcome(task_outcomes=True)
    connecting.result(SECONDS)
    outcomes = on_signal(lambda: settle(client.connection))

    def play() -> None:
        request = broker.receive(m.Publish)
        interrupt()
        broker.send(m.PublishConfirm(request.rid, 1, 1))
        waited = broker.receive(kind)
        if kind in (m.CloseChannel, m.Goodbye):
            broker.send(m.Ok(waited.rid))

    playing = client.start(play)
    assert client.connection.publish(publish(b"outer")).message_id == 1
    playing.result(SECONDS)
    assert outcomes == [None]
    assert client.connection.closed == (kind is m.Goodbye)


def test_a_handler_that_closes_and_ends_the_program(met: Any, on_signal: Any) -> None:
    client, broker = met

    def stop() -> None:
        client.connection.close()
        raise Interrupted

    on_signal(stop)

    def play() -> None:
        broker.receive(m.Publish)
        interrupt()

    playing = client.start(play)
    with pytest.raises(Interrupted):
        client.connection.publish(publish(b"outer"))
    playing.result(SECONDS)
    assert client.connection.closed
    broker.assert_closed_by_client()


def test_another_thread_waits_for_the_lock_as_before(met: Any) -> None:
    client, broker = met
    calls = [client.start(client.connection.publish, publish(b"%d" % number)) for number in range(2)]
    for number in range(2):
        request = broker.receive(m.Publish)
        broker.send(m.PublishConfirm(request.rid, number, 1))
    assert sorted(call.result(SECONDS).message_id for call in calls) == [0, 1]


def test_a_wait_for_a_result_that_interrupts_another_one_is_refused(
    peer: Any, new_client: Any, store_folder: Path, on_signal: Any
) -> None:
    results = ResultClient([Address("embedded", folder=str(store_folder))], Options(connect_timeout=5))
    outcomes = on_signal(lambda: results.drain(0, lambda _changes: None))

    def play() -> None:
        broker = peer.accept()
        broker.welcome()
        broker.receive(m.WatchResults)

        def is_refused() -> bool:  # when the main thread waits
            interrupt()
            return any(isinstance(outcome, ConnectionInUse) for outcome in outcomes)

        wait_until(is_refused, SECONDS, "the wait of the main thread")
        broker.send(m.ResultsChanged([(b"a", b"1", True)]))

    playing = new_client().start(play)
    results.watch(b"a")
    changes: list[Any] = []
    while not changes:
        results.drain(SECONDS, changes.extend)
    playing.result(SECONDS)
    results.close()
    assert changes == [(b"a", b"1")]


# ------------------------------------------------------------------ the log
class Publishing(logging.Handler):
    """Publishes each record on the connection that logs it."""

    def __init__(self, connection: BrokerConnection) -> None:
        super().__init__(logging.INFO)
        self.connection = connection
        self.entered: list[bool] = []
        self.texts: list[str] = []
        self.depth = self.deepest = 0
        self.is_lost = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.append(self.connection.link.reentrance.is_entered())
        self.texts.append(record.getMessage())
        self.depth += 1
        self.deepest = max(self.depth, self.deepest)
        self.is_lost.set()
        self.connection.publish(publish(record.getMessage().encode()))
        self.depth -= 1


@pytest.fixture
def publishing(met: Any) -> Iterator[Publishing]:
    handler = Publishing(met[0].connection)
    LOGGER.addHandler(handler)
    yield handler
    LOGGER.removeHandler(handler)


def resumed_broker(peer: Any, broker: Any, handler: Publishing) -> Any:
    """Lose the connection, refuse to resume it until that was logged, then resume it."""
    broker.receive(m.Publish)
    broker.close()
    while not handler.is_lost.is_set():
        peer.accept().close()
    again = peer.accept()
    again.welcome()
    return again


def answer_publishes(broker: Any, number: int) -> list[bytes]:
    """Confirm this many different publishes; a resume sends those that are not confirmed again."""
    confirmed: dict[int, bytes] = {}
    while len(confirmed) < number:
        request = broker.receive(m.Publish)
        confirmed[request.rid] = request.envelope
        broker.send(m.PublishConfirm(request.rid, request.rid, 1))
    return list(confirmed.values())


def test_nothing_is_logged_under_the_lock_and_a_handler_may_publish(
    met: Any, peer: Any, publishing: Publishing
) -> None:
    client, broker = met
    calling = client.start(client.connection.publish, publish(b"outer"))
    again = resumed_broker(peer, broker, publishing)
    sent = answer_publishes(again, 3)
    calling.result(SECONDS)
    assert [text.split(" is ")[1].split()[0] for text in publishing.texts] == ["lost,", "back"]
    assert set(sent) == {b"outer", *(text.encode() for text in publishing.texts)}
    assert publishing.entered == [False, False]
    assert publishing.deepest == 1


def test_a_thread_that_publishes_in_a_logging_handler_does_not_block_another_one_that_logs(
    met: Any, peer: Any, publishing: Publishing
) -> None:
    """The first has the handler's lock and wants that of the session, the second the other way round."""
    client, broker = met
    calling = client.start(client.connection.publish, publish(b"outer"))
    logging_too: list[Any] = []

    def log_too() -> None:
        publishing.is_lost.wait(SECONDS)
        logging_too.append(client.start(partial(LOGGER.error, "another thread")))

    waiting = client.start(log_too)
    again = resumed_broker(peer, broker, publishing)
    answer_publishes(again, 4)
    calling.result(SECONDS)
    waiting.result(SECONDS)
    logging_too[0].result(SECONDS)
    assert not any(publishing.entered)
    assert "another thread" in publishing.texts


class LateWork(deque[Callable[[], object]]):
    """Work to which another thread adds at the moment when this one has found it empty."""

    def __init__(self, add: Callable[[], object]) -> None:
        super().__init__()
        self._add = [add]

    def __bool__(self) -> bool:
        is_empty = not len(self)
        if is_empty and self._add:
            self._add.pop()()
        return not is_empty


def test_work_that_another_thread_adds_at_the_end_is_done() -> None:
    done: list[str] = []

    def add() -> None:
        reentrance.later(partial(done.append, "late"))
        reentrance.run()  # the other thread leaves it to the one that does work

    work = LateWork(add)
    reentrance = Reentrance(threading.RLock(), work)
    reentrance.later(partial(done.append, "first"))
    reentrance.run()
    assert (done, len(work)) == (["first", "late"], 0)
