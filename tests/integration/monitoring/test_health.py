"""Probes and the list of queues, over HTTP."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.errors import OpenDataError
from tests.support.pair import Pair
from tests.support.processes import Child, Children, children, wait_until
from tests.support.s3 import BUCKET, S3
from tests.support.scrape import fetch
from tests.support.served import COMMAND, ServedBroker
from tests.support.service_manager import NotifySocket


def port_of(served: ServedBroker) -> int:
    return int(served.report["metrics_port"])


def ask(port: int, path: str) -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    try:
        with fetch(port, path) as answer:
            assert answer.headers["Content-Type"] == "application/json"
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def wait_for(port: int, path: str, status: int, seconds: float = 60, **values: Any) -> dict[str, Any]:
    """Ask until the answer is this one."""
    found: list[Any] = []

    def is_so() -> bool:
        try:
            found[:] = ask(port, path)
        except OSError:
            return False
        return bool(found[0] == status and values.items() <= found[1].items())

    wait_until(is_so, seconds, lambda: f"{path} {status} {values}, last: {found}")
    return dict(found[1])


@pytest.fixture(scope="module")
def served(module_store_folder: Path) -> Iterator[ServedBroker]:
    """A broker for all tests that do it no harm."""
    with children() as started:
        options = ("--listen", "tcp:127.0.0.1:0", "--metrics", "0")
        broker = ServedBroker(module_store_folder, "--store", f"file://{module_store_folder}/store", *options)
        started.add(broker)
        yield broker


@pytest.fixture
def client(served: ServedBroker) -> Iterator[QueueClient]:
    with QueueClient(f"opendata://127.0.0.1:{served.port}") as opened:
        yield opened


# ---------------------------------------------------------------------- probes
def test_an_active_broker_is_healthy_and_ready(served: ServedBroker) -> None:
    port = port_of(served)
    assert ask(port, "/healthz") == (200, {"healthy": True, "state": "active"})
    ready = {"state": "active", "ready": True, "reason": "", "stalled_seconds": {}}
    assert ask(port, "/readyz") == (200, ready)
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(b"HEAD /readyz HTTP/1.0\r\n\r\n")
        head = sock.makefile("rb").read()
    assert head.startswith(b"HTTP/1.0 200 ")
    assert head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "request_text", [b"GET\r\n\r\n", b"GET /readyz HTTP/9.x\r\n\r\n", b"\0\1\2\r\n\r\n", b"GET  /readyz /a b\r\n\r\n"]
)
def test_what_is_no_request(served: ServedBroker, request_text: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port_of(served)), 10) as sock:
        sock.sendall(request_text)
        assert sock.makefile("rb").read().startswith(b"HTTP/1.0 400 ")
    assert ask(port_of(served), "/readyz")[0] == 200


def test_a_standby_is_healthy_and_not_ready(tmp_path: Path) -> None:
    with children() as started:
        pair = Pair(str(tmp_path / "store"), tmp_path, started, "--metrics", "0")
        first, second = pair.start(), pair.start()
        pair.wait_active(first)
        port = port_of(second)
        where = f"another broker is active: 127.0.0.1:{first.port}"
        wait_for(port, "/readyz", 503, state="standby", ready=False, reason=where)
        assert ask(port, "/healthz") == (200, {"healthy": True, "state": "standby"})
        assert ask(port, "/queues") == (503, {"error": where}), "an empty list would scale workers down"
        first.kill()
        wait_for(port, "/readyz", 200, state="active")
        assert ask(port, "/queues") == (200, {"queues": [], "left_out": 0})


def test_a_broker_that_is_frozen_answers_nothing(served: ServedBroker) -> None:
    os.kill(served.pid, signal.SIGSTOP)
    try:
        with socket.create_connection(("127.0.0.1", port_of(served)), 10) as sock:
            sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            sock.settimeout(0.5)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            os.kill(served.pid, signal.SIGCONT)
            sock.settimeout(20)
            assert sock.recv(12) == b"HTTP/1.0 200"
    finally:
        os.kill(served.pid, signal.SIGCONT)


# ---------------------------------------------------------------------- a store that does not answer
@pytest.mark.slow  # a store counts as stalled after five seconds
def test_a_bucket_that_does_not_answer(
    s3: S3, started: Children, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = NotifySocket(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.address)
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
        port, metrics = free.getsockname()[1], other.getsockname()[1]
    s3.proxy.stop_answering()
    command = ("broker", "--store", f"s3://{BUCKET}/health", "--listen", f"tcp:127.0.0.1:{port}")
    broker = Child([str(COMMAND), *command, "--metrics", str(metrics)], tmp_path / "broker.log", cwd=tmp_path)
    started.add(broker)
    wait_for(metrics, "/healthz", 200, state="starting")
    wait_for(metrics, "/readyz", 503, reason="the broker is starting")
    systemd.forget()
    assert systemd.hear(1).replace("EXTEND_TIMEOUT_USEC=120000000", "") == ""

    s3.proxy.go_on()
    wait_for(metrics, "/readyz", 200, 60)
    systemd.hear_until(lambda text: text == "READY=1\nSTATUS=active")
    with QueueClient(f"opendata://127.0.0.1:{port}") as client, ThreadPoolExecutor(1) as pool, ExitStack() as around:
        client.create("q")
        around.callback(s3.proxy.go_on)
        s3.proxy.stop_answering()
        sending = pool.submit(client.send, "q", "x")
        since = "the store of instance default has taken no writes since 2"
        reason = wait_for(metrics, "/readyz", 503, state="active")["reason"]
        assert reason.startswith(since)
        assert ask(metrics, "/healthz") == (200, {"healthy": True, "state": "active"})
        assert systemd.hear_until(lambda text: "STATUS=active" in text) == f"STATUS=active: {reason}"
        done = subprocess.run([str(COMMAND), "status", "--url", f"opendata://127.0.0.1:{port}"], capture_output=True)
        assert b"active" in done.stdout.splitlines()[0]
        assert b"STALLED: the store has taken no writes" in done.stdout
        s3.proxy.go_on()
        wait_for(metrics, "/readyz", 200)
        systemd.hear_until(lambda text: text == "STATUS=active")
        with suppress(OpenDataError):  # refused while the store did not answer
            sending.result(60)
    assert broker.terminate(60) == 0
    systemd.close()


# ---------------------------------------------------------------------- queues
def test_the_queues_for_an_autoscaler(served: ServedBroker, client: QueueClient) -> None:
    port = port_of(served)
    for name in ("mails", "orders/é&"):
        client.create(name)
    client.send_batch("mails", ["a", "b", "c"])
    client.send("mails", "later", delay=3600)
    client.read("mails", vt=60)
    found = wait_for(port, "/queues?queue=mails", 200)
    (mails,) = found["queues"]
    assert mails["oldest_ready_seconds"] >= 0
    rates = {name: mails.pop(name) for name in list(mails) if name.endswith("_per_second")}
    assert set(rates) == {"published_per_second", "delivered_per_second", "acked_per_second", "failed_per_second"}
    del mails["oldest_ready_seconds"]
    assert mails == {
        "instance": "default", "queue": "mails", "ready": 2, "in_flight": 1, "delayed": 1, "consumers": 0,
            "paused": False,
    }  # fmt: skip
    found = wait_for(port, "/queues?queue=mails&queue=orders%2F%C3%A9%26", 200)
    assert [one["queue"] for one in found["queues"]] == ["mails", "orders/é&"]
    assert ask(port, "/queues?instance=default&queue=orders%2F%C3%A9%26")[1]["queues"][0]["queue"] == "orders/é&"
    assert ask(port, "/queues?queue=none") == (200, {"queues": [], "left_out": 0})


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("limit=3", "the query has only instance= and queue=, not limit"),
        ("queue", "the query is not instance=NAME&queue=NAME"),
        ("&".join(["queue=a"] * 101), "the query is not instance=NAME&queue=NAME"),
    ],
)
def test_a_query_that_can_not_be(served: ServedBroker, query: str, text: str) -> None:
    assert ask(port_of(served), f"/queues?{query}") == (400, {"error": text})


def test_many_queues_are_a_bounded_answer(served: ServedBroker, client: QueueClient) -> None:
    before = len(client.list_queues())
    for number in range(1005 - before):
        client.create(f"q{number:04}")
    wait_for(port_of(served), "/queues", 200, left_out=5)
    with fetch(port_of(served), "/queues", **{"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        found = json.loads(gzip.decompress(answer.read()))
    assert len(found["queues"]) == 1000
    last = f"q{1004 - before:04}"
    assert ask(port_of(served), f"/queues?queue={last}")[1]["queues"][0]["queue"] == last
