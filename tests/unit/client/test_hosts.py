"""A list of hosts: the session goes to the active broker, whatever the others do."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import pytest

from kombu_opendata.client.client_clock import SYSTEM
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.client.session.open_session import open_session
from kombu_opendata.client.session.route import BrokerRoute
from kombu_opendata.client.session.session import ClientSession
from kombu_opendata.errors import AccessRefused, ConnectionLost, NotActive
from kombu_opendata.protocol import messages as m
from kombu_opendata.url import parse

from .conftest import SECONDS, Conversation


class Host:
    """A place where a broker listens that the test plays."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        self._listener.settimeout(SECONDS)
        self.name = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = ExitStack()

    def accept(self) -> Conversation:
        return Conversation(self._open.enter_context(self._listener.accept()[0]))

    def refuse(self, code: str, **values: Any) -> None:
        """Answer the next client with an error."""
        broker = self.accept()
        broker.preamble()
        broker.send(m.Failed(broker.receive(m.Hello).rid, code, f"{code} at {self.name}", values))

    def swallow(self) -> None:
        """From now on drop the packets of new clients: as many wait as the system keeps."""
        for _ in range(2):
            waiting = self._open.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(self._listener.getsockname())

    def leave(self) -> None:
        self._listener.close()
        self._open.close()


@pytest.fixture
def hosts() -> Iterator[Callable[[], Host]]:
    with ExitStack() as stack:

        def make() -> Host:
            host = Host()
            stack.callback(host.leave)
            return host

        yield make


@pytest.fixture
def connect(new_client: Callable[..., Any]) -> Iterator[Callable[..., tuple[BrokerConnection, Future[Any]]]]:
    """Begin to connect to hosts."""
    with ExitStack() as stack:

        def begin(*hosts: Host, **options: Any) -> tuple[BrokerConnection, Future[Any]]:
            settings = {"connect_timeout": 5.0, "reconnect_timeout": 5.0, "close_timeout": 1.0, **options}
            url = f"opendata://{','.join(host.name for host in hosts)}/instance"
            connection = BrokerConnection(parse(url), Options(**settings))
            stack.callback(connection.abandon)
            return connection, new_client().start(connection.connect)

        yield begin


def test_a_standby_is_passed_over(hosts: Any, connect: Any) -> None:
    standby, active = hosts(), hosts()
    _, connecting = connect(standby, active)
    standby.refuse("not_active", active="192.0.2.1:1")  # which is not in the list, so nobody goes there
    assert active.accept().welcome().instance == "instance"
    connecting.result(SECONDS)


def test_a_host_that_swallows_packets_costs_a_moment(hosts: Any, connect: Any) -> None:
    cut_off, active = hosts(), hosts()
    cut_off.swallow()
    began = time.monotonic()
    _, connecting = connect(cut_off, active, connect_timeout=60)
    active.accept().welcome()
    connecting.result(SECONDS)
    assert time.monotonic() - began < 30


def test_a_host_that_takes_the_connection_and_says_nothing_costs_its_share(hosts: Any, connect: Any) -> None:
    frozen, active = hosts(), hosts()
    began = time.monotonic()
    _, connecting = connect(frozen, active, connect_timeout=4.0)
    active.accept().welcome()
    connecting.result(SECONDS)
    assert 1.9 < time.monotonic() - began < 3.9


def test_the_session_goes_on_at_the_successor(hosts: Any, connect: Any, new_client: Any) -> None:
    first, second = hosts(), hosts()
    connection, connecting = connect(first, second)
    broker = first.accept()
    hello = broker.welcome()
    connecting.result(SECONDS)
    calling = new_client().start(connection.io.publish, m.Publish(0, 0, "x", "k", b"e", {}, 0, 1))
    request = broker.receive(m.Publish)
    broker.send(m.Failed(request.rid, "not_active", "fenced", {"active": second.name}))
    first.refuse("not_active", active="")
    second.refuse("not_active", active="")  # it has not taken over yet
    first.refuse("not_active", active="")
    successor = second.accept()
    resumed = successor.welcome()
    assert (resumed.session, resumed.resume) == (hello.session, True)
    again = successor.receive(m.Publish)
    assert again.seq == request.seq
    successor.send(m.PublishConfirm(again.rid, 42, 1))
    assert calling.result(SECONDS).message_id == 42


def test_the_host_that_worked_is_tried_first(hosts: Any, connect: Any, new_client: Any) -> None:
    first, second = hosts(), hosts()
    connection, connecting = connect(first, second)
    first.refuse("not_active", active="")
    broker = second.accept()
    broker.welcome()
    connecting.result(SECONDS)
    broker.close()
    calling = new_client().start(connection.call, m.PurgeQueue(0, "q"))
    again = second.accept()  # nobody came to the first one, which would not answer
    again.welcome()
    again.send(m.Count(again.receive(m.PurgeQueue).rid, 0))
    calling.result(SECONDS)


def attempt(*hosts: Host) -> Any:
    """One attempt to open a session."""
    url = f"opendata://{','.join(host.name for host in hosts)}"
    return open_session(ClientSession(b"s" * 16), BrokerRoute(parse(url)), Options(), SYSTEM, tuple)


def test_when_only_standbys_answer_the_error_says_so(hosts: Any, new_client: Any) -> None:
    one, other = hosts(), hosts()
    attempting = new_client().start(attempt, one, other)
    one.refuse("not_active", active="")
    other.refuse("not_active", active="")
    with pytest.raises(NotActive, match=f"not_active at {one.name}; not_active at {other.name}"):
        attempting.result(SECONDS)


def test_one_host_alone_is_told_to_be_listed_with_the_others(hosts: Any, new_client: Any) -> None:
    standby = hosts()
    attempting = new_client().start(attempt, standby)
    standby.refuse("not_active", active="192.0.2.1:1")
    with pytest.raises(NotActive, match="only to the hosts in its URL: name all of them") as caught:
        attempting.result(SECONDS)
    assert caught.value.active == "192.0.2.1:1"


@pytest.mark.parametrize("refused_first", [True, False])
def test_what_waiting_does_not_cure_is_raised(hosts: Any, connect: Any, refused_first: bool) -> None:
    pair = (hosts(), hosts())
    _, connecting = connect(*pair)
    pair[0].refuse("access_refused" if refused_first else "not_active")
    pair[1].refuse("not_active" if refused_first else "access_refused")
    with pytest.raises(AccessRefused, match="access_refused at"):
        connecting.result(SECONDS)


def test_nobody_there(hosts: Any, connect: Any) -> None:
    pair = (hosts(), hosts())
    for host in pair:
        host.leave()
    _, connecting = connect(*pair)
    with pytest.raises(ConnectionLost, match=f"{pair[0].name}.*refused; .*{pair[1].name}.*refused"):
        connecting.result(SECONDS)


def test_a_list_of_sockets(tmp_path: Any, new_client: Any) -> None:
    paths = [str(tmp_path / name) for name in ("a.sock", "b.sock")]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(paths[1])
        listener.listen()
        connection = BrokerConnection(parse(f"opendata://{','.join(path.replace('/', '%2F') for path in paths)}"))
        connecting = new_client().start(connection.connect)
        with listener.accept()[0] as sock:
            Conversation(sock).welcome()
            connecting.result(SECONDS)
            connection.abandon()


_GREEN = """
import sys
kind, url, port = sys.argv[1:]
green = __import__(kind)
if kind == "gevent":
    from gevent import monkey
    monkey.patch_all()
else:
    green.monkey_patch()
import socket
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.url import parse

peer = socket.create_connection(("127.0.0.1", int(port)))
def echo():
    while received := peer.recv(1):
        peer.sendall(received)
green.spawn(echo)
BrokerConnection(parse(url)).connect()
"""


@pytest.mark.parametrize("kind", ["gevent", "eventlet"])
def test_other_greenlets_run_while_one_connects(hosts: Any, kind: str) -> None:
    cut_off, active = hosts(), hosts()
    cut_off.swallow()
    url = f"opendata://{cut_off.name},{active.name}"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-c", _GREEN, kind, url, str(listener.getsockname()[1])]
        with subprocess.Popen(command) as process:
            listener.settimeout(SECONDS)
            other, _ = listener.accept()
            with other:
                other.settimeout(SECONDS)
                connecting = active.accept()
                for _ in range(10):
                    other.sendall(b"x")
                    assert other.recv(1) == b"x"
                connecting.welcome()
                assert process.wait(SECONDS) == 0


def test_a_resolver_that_fails_meanwhile_does_not_matter(
    hosts: Any, connect: Any, new_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = hosts()
    connection, connecting = connect(host)
    broker = host.accept()
    broker.welcome()
    connecting.result(SECONDS)

    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    broker.close()
    calling = new_client().start(connection.call, m.PurgeQueue(0, "q"))
    again = host.accept()
    again.welcome()
    again.send(m.Count(again.receive(m.PurgeQueue).rid, 0))
    calling.result(SECONDS)
