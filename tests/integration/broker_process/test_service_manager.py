"""What systemd is told: a real broker, and a real NOTIFY_SOCKET."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kombu_opendata.broker.access.secret_hashes import hash_secret
from kombu_opendata.broker.process.service_manager import notify_address
from tests.support.broker import EmbeddedBroker
from tests.support.kombu_client import connected
from tests.support.pair import Pair
from tests.support.processes import children
from tests.support.served import ServedBroker
from tests.support.service_manager import NotifySocket


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.fixture
def systemd(address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotifySocket]:
    heard = NotifySocket(address)
    monkeypatch.setenv("NOTIFY_SOCKET", heard.address)
    yield heard
    heard.close()


def test_a_service_from_its_start_to_its_end(
    systemd: NotifySocket, serve: Callable[..., ServedBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    broker = serve()
    systemd.hear_until(lambda text: text == "READY=1\nSTATUS=active")
    assert systemd.heard[0] == "STATUS=starting"
    assert "EXTEND_TIMEOUT_USEC=120000000" in systemd.heard
    systemd.hear_until(lambda text: text == "WATCHDOG=1")
    began, before = time.monotonic(), len(systemd.heard)
    for _ in range(10):
        systemd.hear_until(lambda text: text == "WATCHDOG=1")
    assert time.monotonic() - began > 0.5, "one each 0.2 s; the first ones may have waited to be read"
    assert set(systemd.heard[before:]) == {"WATCHDOG=1"}, "a start is extended only until it is done"

    os.kill(broker.pid, signal.SIGSTOP)
    systemd.forget()
    assert systemd.hear(1.5) == "", "a broker that hangs is not alive"
    os.kill(broker.pid, signal.SIGCONT)
    systemd.hear_until(lambda text: text == "WATCHDOG=1")

    assert broker.terminate() == 0
    systemd.hear_until(lambda text: text == "STOPPING=1\nSTATUS=stopping")


@pytest.mark.parametrize("address", [f"@odq-{uuid.uuid4().hex}"], ids=["abstract"])
def test_an_abstract_socket(systemd: NotifySocket, serve: Callable[..., ServedBroker]) -> None:
    serve()
    systemd.hear_until(lambda text: text == "READY=1\nSTATUS=active")


def test_a_reload(systemd: NotifySocket, serve: Callable[..., ServedBroker], tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.touch(0o600)
    users.write_text(f'[users.app]\nsecret = "{hash_secret("right")}"\n')
    broker = serve("--users", str(users))
    systemd.hear_until(lambda text: text.startswith("READY=1"))
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    os.kill(broker.pid, signal.SIGHUP)
    begun = systemd.hear_until(lambda text: text.startswith("RELOADING=1\nMONOTONIC_USEC="))
    assert before <= int(begun.rpartition("=")[2]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert systemd.hear_until(lambda text: text.startswith("READY=1")) == "READY=1\nSTATUS=active"
    users.write_text("nonsense")
    os.kill(broker.pid, signal.SIGHUP)
    systemd.hear_until(lambda text: text.startswith("RELOADING=1"))
    assert "STATUS=active; the reload failed: " in systemd.hear_until(lambda text: text.startswith("READY=1"))


def test_a_standby_has_started(systemd: NotifySocket, tmp_path: Path) -> None:
    with children() as started:
        pair = Pair(str(tmp_path / "store"), tmp_path, started)
        first = pair.start()
        systemd.hear_until(lambda text: text == "READY=1\nSTATUS=active")
        second = pair.start()
        systemd.hear_until(lambda text: text.startswith("READY=1\nSTATUS=standby: another broker is active"))
        first.kill()
        systemd.hear_until(lambda text: text == "STATUS=active")
        assert second.terminate() == 0


def test_a_folders_broker_does_not_answer_for_the_service_that_started_it(
    systemd: NotifySocket, broker_url: str, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    with connected(broker_url):
        broker.terminate()
    assert systemd.hear(0) == ""


def test_a_service_manager_that_is_gone_ends_nothing(systemd: NotifySocket, serve: Callable[..., ServedBroker]) -> None:
    systemd.close()
    broker = serve()
    assert "systemd was not notified of" in broker.log.read_text()
    assert broker.terminate() == 0


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, None),
        ({"NOTIFY_SOCKET": ""}, None),
        ({"NOTIFY_SOCKET": "vsock:2:1234"}, None),
        ({"NOTIFY_SOCKET": "/run/n"}, ("/run/n", 0.0)),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "30000000"}, ("@n", 30.0)),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, ("@n", 30.0)),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, ("@n", 0.0)),
        ({"NOTIFY_SOCKET": "@n", "WATCHDOG_USEC": "soon"}, ("@n", 0.0)),
    ],
)
def test_what_the_environment_asks_for(given: dict[str, str], asked: tuple[str, float] | None) -> None:
    environment = {**given, "HOME": "/root"}
    assert notify_address(environment, 7) == asked
    assert environment == {"HOME": "/root"}, "children of the broker are not the service"
