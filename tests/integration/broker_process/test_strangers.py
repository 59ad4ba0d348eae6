"""Connections that never log in, more of them than a process may have files, and what they may not do to others."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.errors import RetryLater, TooManyConnections
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import PREAMBLE, PREAMBLE_BYTES, FrameReader, broker_messages, frame
from kombu_opendata.url import parse

from ...support.broker import EmbeddedBroker
from ...support.certificates import Authority
from ...support.kombu_client import connected, declare, drain_until, open_connection, send, take_bodies
from ...support.processes import Children, wait_until
from ...support.raw import RawClient
from ...support.served import ServedBroker
from ...support.status import read_report

MIB = 1 << 20


@pytest.fixture
def serve_tcp(store_folder: Path, started: Children) -> Callable[..., ServedBroker]:
    """Runs ``opendata-queue broker`` on TCP; ``descriptors`` is its ``ulimit -n``."""

    def run(*options: str, descriptors: int | None = None) -> ServedBroker:
        store = ("--store", f"file://{store_folder}/store", "--listen", "tcp:127.0.0.1:0")
        broker = ServedBroker(store_folder, *store, *options, descriptors=descriptors)
        started.add(broker)
        return broker

    return run


@pytest.fixture
def tls(tmp_path: Path) -> tuple[str, ...]:
    """The options of a broker with a certificate for localhost."""
    both = Authority(tmp_path).issue("server", "localhost").both
    return "--tls-cert", str(both), "--tls-key", str(both)


@contextmanager
def silent(port: int, count: int, data: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, which send this and nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 500
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            with suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(data)
            opened.append(sock)
        yield opened


def last_word(sock: socket.socket) -> m.Failed:
    """What the broker says before it closes."""
    data = b""
    with suppress(ConnectionResetError):
        while chunk := sock.recv(4096):
            data += chunk
    assert data.startswith(PREAMBLE)
    (said,) = FrameReader(broker_messages).feed(data[PREAMBLE_BYTES:])
    assert isinstance(said, m.Failed)
    return said


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "tls"])
def test_more_silent_connections_than_file_descriptors(
    serve_tcp: Callable[..., ServedBroker], tls: tuple[str, ...], tmp_path: Path, with_tls: bool
) -> None:
    broker = serve_tcp(*tls if with_tls else (), descriptors=1024)
    url = f"opendata{'s' * with_tls}://localhost:{broker.port}"
    options = {"ssl": {"ca_certs": str(tmp_path / "ca.pem")}} if with_tls else {}
    with connected(url, **options) as before, silent(broker.port, 1050), connected(url, **options) as during:
        for number, connection in enumerate((before, during)):
            channel = connection.channel()
            declare(channel, f"q{number}")
            send(channel, f"q{number}", *(bytes(4 * MIB) for _ in range(5)))
            assert len(take_bodies(channel, f"q{number}")) == 5
        broker.check()
        assert len(os.listdir(f"/proc/{broker.pid}/fd")) < 600
    log = broker.log.read_text()
    assert "have not logged in: log in immediately" in log
    assert log.count("a connection was refused") + log.count("a connection was closed") < 30, "it floods the log"
    assert broker.terminate() == 0


def test_strangers_that_finish_the_handshake_and_say_nothing(
    serve_tcp: Callable[..., ServedBroker], tls: tuple[str, ...], tmp_path: Path
) -> None:
    """Nor do they answer when TLS says goodbye to them."""
    broker = serve_tcp(*tls, descriptors=256)
    context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    peak = 0
    with ExitStack() as stack:
        for _ in range(400):
            with suppress(OSError):
                sock = socket.create_connection(("localhost", broker.port), timeout=5)
                stack.enter_context(context.wrap_socket(sock, server_hostname="localhost"))
            peak = max(peak, len(os.listdir(f"/proc/{broker.pid}/fd")))
        options = {"ssl": {"ca_certs": str(tmp_path / "ca.pem")}}
        with connected(f"opendatas://localhost:{broker.port}", **options) as connection:
            declare(connection.channel(), "q")
    assert peak < 200
    assert broker.terminate() == 0


@pytest.mark.parametrize("promised", [8000, 4 * MIB - 1])
def test_unfinished_hellos_take_little_memory(serve_tcp: Callable[..., ServedBroker], promised: int) -> None:
    broker = serve_tcp()
    with silent(broker.port, 20, PREAMBLE):
        before = resident_bytes(broker.pid)
    data = PREAMBLE + struct.pack("<I", promised) + b"\x9a" + bytes(min(promised, 100_000) - 2)
    with silent(broker.port, 1000, data):
        with connected(f"opendata://127.0.0.1:{broker.port}") as connection:
            declare(connection.channel(), "q")
        assert resident_bytes(broker.pid) - before < 20 * MIB
    assert broker.terminate() == 0


def test_a_hello_has_a_deadline(serve_tcp: Callable[..., ServedBroker]) -> None:
    broker, lines = serve_tcp("--greeting-timeout", "0.3"), []
    with connected(f"opendata://127.0.0.1:{broker.port}") as connection:
        for data in (b"", PREAMBLE[:3], PREAMBLE, PREAMBLE + b"\x10\0\0\0half"):
            with silent(broker.port, 1, data) as (sock,):
                said = last_word(sock)
                assert (said.code, said.values) == ("greeting_timeout", {"seconds": 0.3}), data
                lines.append("({}:{}): no Hello within 0.3 s".format(*sock.getsockname()))
        wait_until(lambda: all(line in broker.log.read_text() for line in lines), 60, broker.log.read_text)
        declare(connection.channel(), "q")  # whoever logged in may be silent for long
    assert broker.terminate() == 0


def test_a_tls_handshake_has_the_same_deadline(serve_tcp: Callable[..., ServedBroker], tls: tuple[str, ...]) -> None:
    broker = serve_tcp("--greeting-timeout", "0.3", *tls)
    for data in (b"", b"\x16\x03\x01\x02\x00\x01"):
        with silent(broker.port, 1, data) as (sock,), suppress(ConnectionResetError):
            assert sock.recv(1) == b""
    assert broker.log.read_text().count("no Hello within 0.3 s") == 2
    assert broker.terminate() == 0


def test_the_limit_on_all_connections(serve_tcp: Callable[..., ServedBroker]) -> None:
    broker = serve_tcp("--max-connections", "3")
    url = f"opendata://127.0.0.1:{broker.port}"

    def client() -> BrokerConnection:
        return BrokerConnection(parse(url), Options(connect_timeout=1))

    opened = [client() for _ in range(3)]
    for connection in opened:
        connection.connect()
    with pytest.raises(TooManyConnections, match="the broker has 3 connections and takes no more") as caught:
        client().connect()
    assert caught.value.values == {"what": "connections", "limit": 3}
    opened.pop().close()
    report = read_report(url)
    assert (report["connections"], report["connections_limit"], report["connections_not_logged_in"]) == (3, 3, 0)
    for connection in opened:
        connection.close()
    assert broker.terminate() == 0


def test_kombu_waits_for_a_place(serve_tcp: Callable[..., ServedBroker]) -> None:
    """As a Celery worker does while it connects."""
    broker = serve_tcp("--max-connections", "1")
    url = f"opendata://127.0.0.1:{broker.port}"
    told: list[Exception] = []
    with connected(url) as first, open_connection(url) as second:
        second.connect_timeout = 0.2

        def on_refused(exc: Exception, _interval: float) -> None:
            told.append(exc)
            first.close()

        second.ensure_connection(on_refused, max_retries=10, interval_start=0.1)
        declare(second.channel(), "q")
    assert isinstance(told[0], RetryLater)
    assert "takes no more" in str(told[0])
    assert broker.terminate() == 0


def test_a_publish_with_a_retry_policy_waits_for_a_place(serve_tcp: Callable[..., ServedBroker]) -> None:
    broker = serve_tcp("--max-connections", "1")
    url = f"opendata://127.0.0.1:{broker.port}"
    with connected(url) as first, open_connection(url) as second:
        declare(first.channel(), "q")
        second.connect_timeout = 0.2
        policy = {"max_retries": 10, "interval_start": 0.1, "errback": lambda _exc, _interval: first.close()}
        second.Producer().publish("hello", routing_key="q", retry=True, retry_policy=policy)
        assert take_bodies(second.channel(), "q") == [b"hello"]
    assert broker.terminate() == 0


def test_when_the_system_gives_no_more_descriptors(serve_tcp: Callable[..., ServedBroker]) -> None:
    """The broker waits, does not spin, and serves the client when there are some again."""
    broker = serve_tcp()
    with connected(f"opendata://127.0.0.1:{broker.port}") as connection:
        declare(connection.channel(), "q")
        before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        used = least_free_descriptor(broker.pid)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used, before[1]))

        def refusals() -> int:
            return broker.log.read_text().count("has no file descriptor")

        try:
            with silent(broker.port, 1):
                wait_until(refusals, 60, broker.log.read_text)
                began, lines = cpu_ticks(broker.pid), refusals()
                wait_until(lambda: refusals() > lines, 10, "it did not try again")
                assert cpu_ticks(broker.pid) - began < 20, "it spins: half a second is 50 ticks"
        finally:
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
        with connected(f"opendata://127.0.0.1:{broker.port}") as other:
            declare(other.channel(), "q")
    assert broker.terminate() == 0


def least_free_descriptor(pid: int, seconds: float = 1.0) -> int:
    """The least number that the next file of a process could have had in a second: some are open for a moment only."""
    until, least = time.monotonic() + seconds, 1 << 20
    while time.monotonic() < until:
        used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
        least = min(least, next(number for number in range(len(used) + 1) if number not in used))
    return least


def cpu_ticks(pid: int) -> int:
    """User and system time, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


# ------------------------------------------------------------------ what a Hello no longer carries
def test_a_session_that_holds_more_than_a_hello_can_say(connect: Callable[..., Any], broker_url: str) -> None:
    """The broker is killed while a consumer holds 2,000 messages; all of them stay its own."""
    connection = connect(broker_url)
    channel = connection.channel()
    declare(channel, "q")
    with QueueClient(broker_url) as client:
        client.send_batch("q", [str(number) for number in range(2000)])
    got: list[Any] = []
    channel.basic_consume("q", callback=got.append)
    drain_until(connection, lambda: len(got) == 2000)
    broker = EmbeddedBroker(Path(parse(broker_url).folder))
    broker.kill()
    send(channel, "q", "after")
    drain_until(connection, lambda: len(got) == 2001)
    assert broker.queue("q") == (0, 2001)
    for message in got:
        message.ack()
    broker.wait_queue("q", 0, 0)
    assert len({message.payload for message in got}) == 2001


def test_a_client_that_says_in_its_hello_what_it_holds(broker_url: str, store_folder: Path) -> None:
    """As clients did before there was a Resume."""
    with connected(broker_url):
        with RawClient(f"{store_folder}/broker.sock") as first:
            first.hello()
            first.declare("q")
            first.publish("q", 1)
            first.consume("q")
            queue, id, token = first.wait_deliveries(1)[0].lease
        with RawClient(f"{store_folder}/broker.sock") as second:
            welcome = second.hello(first.session, resume=True, held=[(1, queue, id, token)])
            assert (welcome.adopted, welcome.last_seq) == (1, 1)


def test_frames_behind_a_hello_are_not_kept(broker_url: str, store_folder: Path) -> None:
    with connected(broker_url), RawClient(f"{store_folder}/broker.sock") as raw:
        frames = [m.Hello(1, bytes(16), "raw"), m.Heartbeat(), m.Heartbeat()]
        raw.send_bytes(b"".join(map(frame, frames)))
        said = raw.last_word()
        assert said is not None
        assert "nothing may follow the Hello" in said.text


def test_something_else_where_a_resume_was_announced(broker_url: str, store_folder: Path) -> None:
    with connected(broker_url), RawClient(f"{store_folder}/broker.sock") as raw:
        answer = raw.call(m.Hello(0, bytes(16), "raw", resume=True, resume_follows=True))
        assert isinstance(answer, m.LoggedIn)
        raw.send(m.ListBindings(0))
        said = raw.last_word()
        assert said is not None
        assert "must be the Resume" in said.text
