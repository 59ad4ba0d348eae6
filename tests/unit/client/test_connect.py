"""TCP and TLS sockets."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest

from kombu_opendata.client.client_clock import SYSTEM
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.open_session import shake_hands
from kombu_opendata.client.session.route import BrokerRoute
from kombu_opendata.client.socket import connect
from kombu_opendata.client.socket.framed_socket import PollingSocket
from kombu_opendata.errors import ConnectionLost, OpenDataError, RequestError
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import PREAMBLE, frame
from kombu_opendata.url import Address


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("openssl is not installed")
    cert, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert),
            *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def address(listener: socket.socket, host: str = "127.0.0.1", *, tls: bool = False) -> Address:
    return Address("tcp", host=host, port=listener.getsockname()[1], tls=tls)


def connect_tcp(broker: Address, options: Options) -> socket.socket:
    """The first socket of a connection to the broker."""
    results = [(result, seconds) for _, result, seconds in BrokerRoute(broker).attempts(options, SYSTEM)]
    # several, if a name has several addresses
    result, seconds = next((each for each in results if isinstance(each[0], socket.socket)), results[0])
    if isinstance(result, OpenDataError):
        raise result
    return connect.secured(result, broker, options, seconds)


def test_tcp_sends_at_once_and_notices_a_dead_peer(listener: socket.socket) -> None:
    with listener, connect_tcp(address(listener), Options()) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def test_nobody_there(listener: socket.socket) -> None:
    nobody = address(listener)
    listener.close()
    with pytest.raises(ConnectionLost, match=r"cannot connect to the broker at opendata://127.0.0.1:\d+/default: "):
        connect_tcp(nobody, Options())


def test_a_host_that_looks_like_a_folder_gets_a_hint() -> None:
    with pytest.raises(ConnectionLost, match=r"write three slashes: opendata:///tmp\.invalid"):
        connect_tcp(Address("tcp", host="tmp.invalid"), Options())


def serve_tls(listener: socket.socket, certificate: tuple[str, str], data: bytes) -> threading.Thread:
    """Accept one TLS connection, send the data, and wait for its end."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)

    def run() -> None:
        raw, _ = listener.accept()
        try:
            with context.wrap_socket(raw, server_side=True) as sock:
                sock.sendall(data)
                while sock.recv(65536):
                    pass
        except OSError:
            pass

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_tls_wire_reads_and_writes_without_blocking(listener: socket.socket, certificate: tuple[str, str]) -> None:
    big = m.Deliver(0, [m.Delivery(1, "t", "q", 1, 7, 1, b"y" * 100_000, False)])
    data = PREAMBLE + frame(m.Welcome(1, "0", 1 << 20, 1 << 20, 0, 0, 0)) + frame(big)
    server = serve_tls(listener, certificate, data)
    options = Options(tls={"ssl_ca_certs": certificate[0]})
    sock = connect_tcp(address(listener, "localhost", tls=True), options)
    wire, welcome, messages = shake_hands(sock, m.Hello(1, b"s" * 16, "n"), 5)
    assert isinstance(wire, PollingSocket)
    assert welcome.max_frame_bytes == 1 << 20
    while not messages:
        messages = wire.receive()
    assert messages == [big]
    assert wire.receive_now() is None
    assert not wire.wait(0.01)
    assert wire.send_now(b"x" * 100) == 100
    wire.close()
    server.join(10)
    listener.close()


def test_an_unknown_certificate_is_refused(listener: socket.socket, certificate: tuple[str, str]) -> None:
    server = serve_tls(listener, certificate, b"")
    with pytest.raises(ConnectionLost, match=r"(?i)certificate"):
        connect_tcp(address(listener, "localhost", tls=True), Options())
    server.join(10)
    listener.close()


def test_tls_options() -> None:
    assert connect.tls_context({}).verify_mode == ssl.CERT_REQUIRED
    assert connect.tls_context({}).check_hostname
    loose = connect.tls_context({"cert_reqs": ssl.CERT_NONE})
    assert (loose.verify_mode, loose.check_hostname) == (ssl.CERT_NONE, False)
    assert connect.tls_context({"cert_reqs": "none"}).verify_mode == ssl.CERT_NONE
    for given, checks in (("false", False), ("True", True), ("0", False), (1, True), (False, False)):
        assert connect.tls_context({"check_hostname": given}).check_hostname is checks
    with pytest.raises(RequestError, match="check_hostname: 'maybe' is neither true nor false"):
        connect.tls_context({"check_hostname": "maybe"})
    ready = ssl.create_default_context()
    assert connect.tls_context({"context": ready}) is ready
    with pytest.raises(RequestError, match="unknown TLS option 'cafile'; known are ca_certs"):
        connect.tls_context({"cafile": "x"})
    with pytest.raises(RequestError, match=r"with /no/such/file: .*No such file"):
        connect.tls_context({"ca_certs": "/no/such/file"})
    with pytest.raises(RequestError, match="with these ciphers"):
        connect.tls_context({"ciphers": "nonsense"})
    with pytest.raises(RequestError, match="not one of required"):
        connect.tls_context({"cert_reqs": "maybe"})
