"""Peers that are there no more, or just too busy, over TCP; and a list of brokers to fail over to."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from amqp import exceptions as amqp
from kombu.asynchronous import Hub as _Hub
from kombu.connection import Connection as _Connection

from kombu_opendata.protocol.messages import BrokerHeartbeat

from ..support.broker import EmbeddedBroker
from ..support.farm import Heard
from ..support.kombu_client import connected, declare, drain_until, open_connection, send, take_bodies
from ..support.ledger import Ledger
from ..support.processes import Children, wait_until
from ..support.raw import RawClient
from ..support.served import ServedBroker
from ..support.workers import Worker, sender

HEARTBEAT = 0.5
#: of brokers whose clients must not take them for dead when the machine stands still
PATIENT_HEARTBEAT = 60
#: as Any: the package says it is typed, but most of its functions are not
Hub: Any = _Hub
Connection: Any = _Connection


@pytest.fixture
def serve(store_folder: Path, started: Children) -> Callable[..., ServedBroker]:
    """A broker on TCP, on a store of this name."""

    def run(name: str = "store", *options: str, port: int = 0, heartbeat: float = HEARTBEAT) -> ServedBroker:
        folder = store_folder / name
        folder.mkdir(exist_ok=True)
        listen = ("--listen", f"tcp:127.0.0.1:{port}", "--heartbeat", str(heartbeat))
        broker = ServedBroker(folder, "--store", f"file://{folder}/store", *listen, *options)
        started.add(broker)
        return broker

    return run


def hear_heartbeats(broker: ServedBroker, count: int) -> None:
    """Receive so many heartbeats on another connection: the broker's time passes."""
    with RawClient(broker.port) as client:
        client.hello()
        while count:
            count -= isinstance(client.receive(), BrokerHeartbeat)


class Proxy:
    """Forwards TCP until it is told to stop: then it is a network that drops everything, and says nothing."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._dead: list[socket.socket] = []
        self._wake, self._woken = socket.socketpair()
        self._cut = self._ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def cut(self) -> None:
        """Forward nothing more on the connections that are open; new ones work."""
        self._cut = True
        self._wake.send(b"x")
        wait_until(lambda: not self._cut, 60, "the cut")

    def _run(self) -> None:
        while not self._ended:
            ready, _, _ = select.select([self._server, self._woken, *self._pairs], [], [])
            for sock in ready:
                if sock is self._woken:
                    self._woken.recv(10)
                    if self._cut:
                        self._dead += self._pairs
                        self._pairs.clear()
                        self._cut = False
                elif sock is self._server:
                    near, _ = self._server.accept()
                    far = socket.create_connection(("127.0.0.1", self.target))
                    self._pairs.update({near: far, far: near})
                elif sock in self._pairs:
                    self._forward(sock, self._pairs[sock])

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            data = source.recv(1 << 16)
            target.sendall(data)
        except OSError:
            data = b""
        if not data:
            for sock in (source, target):
                self._pairs.pop(sock, None)
                sock.close()

    def close(self) -> None:
        self._ended = True
        self._wake.send(b"x")
        self._thread.join(10)
        for sock in (*self._pairs, *self._dead, self._server, self._wake, self._woken):
            sock.close()


@pytest.fixture
def proxy(serve: Callable[..., ServedBroker]) -> Iterator[Proxy]:
    proxy = Proxy(serve().port)
    yield proxy
    proxy.close()


# ---------------------------------------------------------------- agreeing
@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"), [(0.5, 120, 0.5), (60, 2, 2), (0, 3, 3), (4, 0, 4), (0, 0, 0), (60, 0.001, 0.1)]
)
def test_the_smaller_heartbeat_counts(
    serve: Callable[..., ServedBroker], ours: float, theirs: float, agreed: float
) -> None:
    with Connection(f"opendata://127.0.0.1:{serve(heartbeat=ours).port}", heartbeat=theirs) as connection:
        connection.connect()
        assert connection.get_heartbeat_interval() == agreed
        assert connection.supports_heartbeats


def test_a_unix_socket_needs_none(broker_url: str) -> None:
    with Connection(broker_url, heartbeat=10, transport_options={"idle_exit": 5}) as connection:
        connection.connect()
        assert connection.get_heartbeat_interval() == 0
        connection.heartbeat_check()


# ---------------------------------------------------------------- a dead broker
def test_a_call_notices_a_dead_network(proxy: Proxy) -> None:
    with connected(f"opendata://127.0.0.1:{proxy.port}") as connection:
        channel = connection.channel()
        declare(channel, "q")
        send(channel, "q", "one")
        proxy.cut()
        began = time.monotonic()
        send(channel, "q", "two")  # over a new connection
        assert time.monotonic() - began < 20  # without heartbeats the system would take half a minute
        assert take_bodies(channel, "q") == ["one", "two"]


def test_who_waits_for_deliveries_notices_a_dead_network(proxy: Proxy) -> None:
    with connected(f"opendata://127.0.0.1:{proxy.port}") as connection, connection.clone() as other:
        channel = connection.channel()
        got: list[Any] = []
        declare(channel, "q")
        channel.basic_consume("q", callback=got.append)
        proxy.cut()
        send(other.channel(), "q", "one")
        drain_until(connection, lambda: got)
        got[0].ack()


def test_an_event_loop_notices_a_dead_network(proxy: Proxy) -> None:
    hub = Hub()
    with connected(f"opendata://127.0.0.1:{proxy.port}") as connection, connection.clone() as other:
        channel = connection.channel()
        got: list[Any] = []
        declare(channel, "q")
        connection.transport.register_with_event_loop(connection.connection, hub)
        channel.basic_consume("q", callback=got.append)
        hub.timer.call_repeatedly(HEARTBEAT / 2, connection.heartbeat_check, (2,))
        proxy.cut()
        send(other.channel(), "q", "one")
        deadline = time.monotonic() + 60
        while not got:
            assert time.monotonic() < deadline
            hub.run_once()
        got[0].ack()
    hub.close()


def test_a_green_worker_notices_a_dead_network(proxy: Proxy, tmp_path: Path, started: Children) -> None:
    """Both on the connection that it consumes on and on that of its events."""
    ledger = Ledger(tmp_path / "ran")
    worker = Worker(f"opendata://127.0.0.1:{proxy.port}", tmp_path, "green", "-E", pool="gevent", concurrency=2)
    started.add(worker)
    worker.wait_ready()
    with sender(f"opendata://127.0.0.1:{proxy.target}") as app, Heard(app) as heard:
        for turn in ("before", "after"):
            task_id = app.send_task("farm.note", (str(ledger), turn)).id
            ledger.wait_for(turn)
            wait_until(lambda: "task-succeeded" in heard.types(task_id), 60, lambda: str(heard.events))  # noqa: B023
            proxy.cut()
        beats = heard.heartbeats()
        wait_until(lambda: heard.heartbeats() > beats, 60, "a heartbeat of the worker after the last cut")
    assert worker.terminate() == 0
    ledger.assert_once(["before", "after"])


def test_a_stopped_broker_is_noticed_and_resumed_when_it_goes_on(serve: Callable[..., ServedBroker]) -> None:
    broker = serve()
    url = f"opendata://127.0.0.1:{broker.port}"
    with connected(url) as connection:
        channel = connection.channel()
        declare(channel, "q")
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            patient = connection.connection.options
            connection.connection.link.options = replace(
                patient, connect_timeout=0.5, reconnect_timeout=1, resume_timeout=60
            )
            with pytest.raises(amqp.RecoverableConnectionError, match="not resumed within 1 s"):
                send(channel, "q", "one")
            assert time.monotonic() - began < 30
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        connection.connection.link.options = patient
        send(channel, "q", "two")  # the session is still there
        assert take_bodies(channel, "q")[-1] == "two"


# ---------------------------------------------------------------- a busy client
def test_a_client_that_does_nothing_is_not_dead(serve: Callable[..., ServedBroker], started: Children) -> None:
    """A stopped process is as good as a solo worker in a long task: its kernel answers."""
    broker = serve(heartbeat=1.5)
    with connected(f"opendata://127.0.0.1:{broker.port}") as connection:
        channel = connection.channel()
        declare(channel, "q")
        send(channel, "q", "one")
        message = channel.basic_get("q")
        session = connection.connection.session.id
        wire = connection.connection.link.current
        hear_heartbeats(broker, 3)  # nobody looks at the socket: a broker unheard of for two intervals would be dead
        message.ack()
        assert channel._size("q") == 0
        assert (connection.connection.session.id, connection.connection.link.current) == (session, wire)


def test_a_solo_worker_in_a_long_task_keeps_its_connection(
    serve: Callable[..., ServedBroker], tmp_path: Path, started: Children
) -> None:
    broker, ledger, gate = serve(heartbeat=0.1), Ledger(tmp_path / "ran"), tmp_path / "gate"
    url = f"opendata://127.0.0.1:{broker.port}"
    with sender(url) as app:
        app.send_task("farm.hold_late", (str(ledger), "long", str(gate)))
        worker = Worker(url, tmp_path, "solo")
        started.add(worker)
        ledger.wait_for("long began", seconds=240)
        other = Worker(url, tmp_path, "other")
        started.add(other)
        other.wait_ready()
        hear_heartbeats(broker, 25)  # for longer than the grace after a loss
        gate.touch()
        ledger.wait_for("long ended")
        app.send_task("farm.note", (str(ledger), "after"))
        ledger.wait_for("after")
    assert worker.terminate() == 0
    assert other.terminate() == 0
    ledger.assert_once(["long began", "long ended", "after"])


# ---------------------------------------------------------------- a long outage, and failing over
def test_a_worker_resumes_after_an_outage_that_publishers_do_not_wait_for(
    serve: Callable[..., ServedBroker], tmp_path: Path, started: Children
) -> None:
    broker = serve(heartbeat=PATIENT_HEARTBEAT)
    port, ledger, gate = broker.port, Ledger(tmp_path / "ran"), tmp_path / "gate"
    url = f"opendata://127.0.0.1:{port}"
    settings = {"broker_transport_options": {"reconnect_timeout": 0.5}, "task_acks_late": True}
    with sender(url) as app:
        app.conf.broker_transport_options = {"reconnect_timeout": 0.5}
        worker = Worker(url, tmp_path, "worker", pool="prefork", concurrency=1, **settings)
        started.add(worker)
        app.send_task("farm.hold_late", (str(ledger), "long", str(gate)))
        ledger.wait_for("long began")
        broker.kill()
        for _ in range(4):  # the outage is four times as long as calls wait
            with pytest.raises(Exception, match=r"not resumed within 0\.5 s|cannot connect|Connection refused"):
                app.send_task("farm.note", (str(ledger), "lost"), retry=False)
        gate.touch()
        ledger.wait_for("long ended")
        serve(port=port, heartbeat=PATIENT_HEARTBEAT)
        app.send_task("farm.note", (str(ledger), "after"))
        ledger.wait_for("after")
    assert worker.terminate() == 0
    assert "Trying to re-establish the connection" not in worker.log.read_text()
    ledger.assert_once(["long began", "long ended", "after"])


def test_when_the_first_broker_is_gone_the_next_one_is_used(serve: Callable[..., ServedBroker]) -> None:
    first, second = serve("a", heartbeat=PATIENT_HEARTBEAT), serve("b", heartbeat=PATIENT_HEARTBEAT)
    url = f"opendata://127.0.0.1:{first.port};opendata://127.0.0.1:{second.port}"
    queue = "q"
    with connected(url, reconnect_timeout=0.3, resume_timeout=0.3) as connection:
        producer = connection.Producer()
        declare(connection.default_channel, queue)
        producer.publish("on a", routing_key=queue, retry=True)
        first.kill()
        with connected(f"opendata://127.0.0.1:{second.port}") as other:
            declare(other.default_channel, queue)
            producer.publish("on b", routing_key=queue, retry=True, retry_policy={"max_retries": 5})
            assert connection.connection.address.port == second.port
            assert take_bodies(other.default_channel, queue) == [b"on b"]


def test_a_consumer_fails_over_when_its_session_can_not_be_resumed(serve: Callable[..., ServedBroker]) -> None:
    first, second = serve("a", heartbeat=PATIENT_HEARTBEAT), serve("b", heartbeat=PATIENT_HEARTBEAT)
    url = f"opendata://127.0.0.1:{first.port};opendata://127.0.0.1:{second.port}"
    connection = open_connection(url, reconnect_timeout=0.3, resume_timeout=0.3)
    with connection:
        declare(connection.default_channel, "q")
        connection.default_channel.basic_consume("q", callback=print)
        first.kill()
        with pytest.raises(connection.recoverable_connection_errors):
            connection.drain_events()
        connection.collect()
        connection.ensure_connection(max_retries=4)
        assert connection.connection.address.port == second.port


def test_an_embedded_broker_that_can_not_start_is_passed_over(store_folder: Path) -> None:
    (store_folder / "a").write_text("a file where a folder should be")
    with open_connection(f"opendata://{store_folder}/a;opendata://{store_folder}/b") as connection:
        connection.ensure_connection(max_retries=4)
        channel = connection.channel()
        declare(channel, "q")
        send(channel, "q", "x")
        assert take_bodies(channel, "q") == ["x"]
        assert EmbeddedBroker(store_folder / "b").pid()
