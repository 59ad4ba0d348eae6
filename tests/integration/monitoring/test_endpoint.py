"""The endpoint itself: where it listens, what it says no to, and that nobody who talks to it harms a client."""

from __future__ import annotations

import gzip
import os
import socket
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import errors
from kombu_opendata.broker.endpoints import http_server

from ...support.broker import EmbeddedBroker
from ...support.disks import small_disk
from ...support.kombu_client import connected, declare, refused, send, take_bodies
from ...support.neighbour import Neighbour
from ...support.processes import Children, wait_until
from ...support.scrape import Scrape, fetch, scrape, scrape_until
from ...support.served import ServedBroker
from .conftest import Serve

MIB = 1 << 20


def port_of(served: ServedBroker) -> int:
    return int(served.report["metrics_port"])


@pytest.fixture
def neighbour(served: ServedBroker) -> Iterator[Neighbour]:
    """Another client, who must notice nothing."""
    with connected(f"opendata://127.0.0.1:{served.port}") as connection:
        found = Neighbour(connection, lambda: served.pid)
        yield found
        found.check()


# ---------------------------------------------------------------------- where it listens
def test_nothing_listens_unless_told_to(store_folder: Path, started: Children) -> None:
    served = ServedBroker(store_folder, "--store", f"file://{store_folder}/s", "--listen", "tcp:127.0.0.1:0")
    started.add(served)
    assert "metrics_port" not in served.report
    assert "metrics at" not in served.log.read_text()
    assert "prometheus_client" not in Path(f"/proc/{served.pid}/maps").read_text()


def test_a_port_alone_is_for_this_host(serve: Serve) -> None:
    served = serve(metrics="0")
    assert f"metrics at http://127.0.0.1:{port_of(served)}/metrics" in served.log.read_text()
    assert "can read the metrics" not in served.log.read_text()
    scrape(port_of(served))


def test_a_network_address_is_warned_of(serve: Serve) -> None:
    served = serve(metrics="0.0.0.0:0")
    assert "can read the metrics, names of queues included" in served.log.read_text()
    scrape(port_of(served))


def test_ipv6(serve: Serve) -> None:
    served = serve(metrics="[::1]:0")
    assert f"metrics at http://[::1]:{port_of(served)}/metrics" in served.log.read_text()
    with socket.create_connection(("::1", port_of(served)), timeout=10) as sock:
        sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert sock.recv(12) == b"HTTP/1.0 200"


def test_an_address_that_is_none(serve: Serve) -> None:
    text = "127.0.0.1"
    served = serve(metrics=text)
    assert served.report["code"] == "invalid_configuration"
    assert served.report["text"] == f"--metrics: {text!r} is not HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464"
    assert served.wait(60) == 2


def test_a_port_that_is_taken(serve: Serve, started: Children, store_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = serve(metrics=f"127.0.0.1:{port}")
        assert served.report["code"] == "start_error"
        assert served.report["text"] == (
            f"metrics can't be served at 127.0.0.1:{port}: Address already in use; give --metrics another HOST:PORT"
        )
        assert served.report["values"] == {"host": "127.0.0.1", "port": port}
        assert served.wait(60) == 1
        assert not (store_folder / "store" / "default").exists(), "it did not touch the store"


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_that_is_not_here(serve: Serve, host: str) -> None:
    served = serve(metrics=f"{host}:0")
    assert served.report["code"] == "start_error"
    assert f"metrics can't be served at {host}:0: " in served.report["text"]
    assert served.wait(60) == 1


def test_a_broker_that_was_killed_gets_its_port_back(serve: Serve) -> None:
    first = serve()
    with fetch(port_of(first)):
        first.kill()
    second = serve(metrics=str(port_of(first)))
    assert scrape(port_of(second)).value("opendata_queue_connections") == 0


def test_an_embedded_broker_has_the_options_of_the_client_that_starts_it(
    broker_url: str, broker: EmbeddedBroker
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with connected(broker_url, broker_options={"metrics": str(port), "log_format": "json"}) as connection:
        declare(connection.channel(), "q")
        assert scrape(port).value("opendata_queue_messages_ready", queue="q") == 0
        assert broker.log.read_text().startswith('{"time": ')


def test_an_embedded_broker_whose_port_is_taken_is_refused(broker_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = refused(broker_url, broker_options={"metrics": f"127.0.0.1:{port}"})
    assert isinstance(error, errors.StartError)
    assert "Address already in use" in str(error)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            "127.0.0.1:9464",
            "broker_options '127.0.0.1:9464' is not a dictionary; its keys may be metrics, log_retention",
        ),
        ({"metric": "1"}, "broker_options has the unknown key 'metric'; known are metrics, log_retention"),
        ({"retention_bytes": "lots"}, "broker_options: retention_bytes: 'lots' is not a size: write"),
        ({"log_format": "yaml"}, "broker_options: log_format: 'yaml' is not one of text, json"),
        ({"metrics": "nonsense"}, "broker_options: metrics: 'nonsense' is not HOST:PORT"),
    ],
)
def test_options_for_the_embedded_broker_that_are_none(broker_url: str, given: Any, text: str) -> None:
    assert text in str(refused(broker_url, broker_options=given))


# ---------------------------------------------------------------------- what it answers
def test_paths_and_methods(served: ServedBroker) -> None:
    port = port_of(served)
    with fetch(port, "/") as answer:
        assert answer.read() == b"there is /metrics, /healthz, /readyz, /queues\n"
    with fetch(port, "/metrics?name[]=x") as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert answer.headers["Server"].strip() == "opendata-queue"
        assert b"opendata_queue_connections" in answer.read()
    for path in ("/metrics/../../etc/passwd", "/favicon.ico", "/-/ready"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(port, path)
    for method in (b"POST", b"DELETE", b"BREW"):
        assert answer_to(port, method + b" /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 501")
    head = answer_to(port, b"HEAD /metrics HTTP/1.0\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200")
    assert head.endswith(b"\r\n\r\n")


def test_a_compressed_answer_is_the_same(served: ServedBroker) -> None:
    with fetch(port_of(served), **{"Accept-Encoding": "deflate, gzip"}) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        Scrape(gzip.decompress(answer.read()).decode()).value("opendata_queue_connections")


def answer_to(port: int, request: bytes) -> bytes:
    """All that comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(request)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    found = b""
    try:
        while chunk := sock.recv(65_536):
            found += chunk
    except ConnectionResetError:
        pass
    return found


# ---------------------------------------------------------------------- hostile and slow clients
def test_requests_without_end_are_cut_off(served: ServedBroker, neighbour: Neighbour) -> None:
    port = port_of(served)
    assert b" 400 " in answer_to(port, b"\xff\xfe\x00 nonsense\r\n\r\n").split(b"\r\n")[0]
    assert b" 431 " in answer_to(port, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 10_000).split(b"\r\n")[0]
    answer_to(port, b"GET /" + b"a" * (1 << 20))
    scrape(port)


def test_connections_that_say_nothing_do_not_keep_others_out(served: ServedBroker, neighbour: Neighbour) -> None:
    port = port_of(served)
    silent = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(100)]
    try:
        scrape(port)
        assert threads_of(served.pid) < 100
        for sock in silent[:10]:
            assert read_all(sock) == b"", "the oldest had to go"
    finally:
        for sock in silent:
            sock.close()
    wait_until(lambda: scrape(port).value("process_open_fds") < 60, 60, "end of the connections")


def test_who_reads_nothing_holds_up_nobody(served: ServedBroker, neighbour: Neighbour) -> None:
    port = port_of(served)
    lazy = []
    try:
        for _ in range(http_server.MAX_CONNECTIONS):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            sock.connect(("127.0.0.1", port))
            sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            lazy.append(sock)
        scrape(port)
    finally:
        for sock in lazy:
            sock.close()


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


# ---------------------------------------------------------------------- under load
@pytest.mark.slow
def test_concurrent_scrapes_while_messages_flow(served: ServedBroker, channel: Any) -> None:
    declare(channel, "q")
    found: list[Scrape] = []
    failed: list[BaseException] = []
    stop = threading.Event()

    def scrape_on() -> None:
        try:
            while not stop.is_set():
                found.append(scrape(port_of(served)))
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=scrape_on) for _ in range(6)]
    for thread in threads:
        thread.start()
    for number in range(300):
        send(channel, "q", str(number))
        channel.basic_get("q").ack()
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not failed
    assert len(found) > 6
    last = scrape_until(port_of(served), lambda s: s.of("q").get("messages_acked_total") == 300)
    for each in (*found, last):
        figures = {"messages_acked_total": 0.0, "messages_in_flight": 0.0, "messages_ready": 0.0, **each.of("q")}
        published = figures.get("messages_published_total", 0)
        waiting = figures["messages_ready"] + figures.get("messages_delayed", 0) + figures["messages_in_flight"]
        assert published == waiting + figures["messages_acked_total"], "a queue's figures are of one moment"


def test_a_scrape_while_the_store_takes_no_writes(tmp_path: Path, started: Children) -> None:
    with small_disk("size=96m") as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(40 * MIB))
        listen = ("--store", f"file://{disk}/store", "--listen", "tcp:127.0.0.1:0", "--metrics", "0")
        served = ServedBroker(tmp_path, *listen)  # its log is on another disk: a full one would lose lines
        started.add(served)
        with connected(f"opendata://127.0.0.1:{served.port}") as connection:
            channel = connection.channel()
            declare(channel, "q")
            wait_until(lambda: is_full(channel, port_of(served)), 120, "a full disk")
            found = scrape_until(port_of(served), lambda s: 'code="store_full"' in s.text)
            assert found.value("opendata_queue_requests_refused_total", code="store_full") >= 1
            assert found.of("q")["messages_ready"] > 4
            wait_until(lambda: "the store has accepted no writes for" in served.log.read_text(), 60, "a warning")
            ballast.unlink()
            scrape_until(port_of(served), lambda s: s.value("opendata_queue_store_stalled_seconds") == 0, 60)
            wait_until(lambda: "the store accepts writes again" in served.log.read_text(), 60, "a line in the log")
            assert take_bodies(channel, "q")
        served.kill()  # what it still has may not fit the disk


def is_full(channel: Any, port: int) -> bool:
    """Publish; whether that is refused, and the store takes no writes. The journal may be full before the disk is."""
    try:
        send(channel, "q", os.urandom(MIB))  # segments and tables are compressed
    except errors.StoreFull:
        with suppress(errors.StoreFull):
            send(channel, "q", os.urandom(60_000))  # is in the journal and the tables, not in a segment
        return scrape(port).value("opendata_queue_store_stalled_seconds") > 0
    return False
