"""``ping``, and what ``status`` says about a broker's health."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kombu_opendata.broker.access.secret_hashes import hash_secret
from tests.support.broker import EmbeddedBroker
from tests.support.kombu_client import connected
from tests.support.pair import Pair, url
from tests.support.processes import children
from tests.support.served import COMMAND, ServedBroker


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(COMMAND), *words], capture_output=True, text=True, timeout=60)


def test_a_broker_that_answers(broker_url: str, broker: EmbeddedBroker) -> None:
    with connected(broker_url):
        folder = broker_url.removeprefix("opendata://")
        told = run("ping", folder)
        assert (told.returncode, told.stderr) == (0, "")
        assert told.stdout.startswith("connected in ")
        found = json.loads(run("ping", "--url", folder, "--json").stdout)
        assert 0 < found["answer_seconds"] < 60
        assert set(found) == {"connect_seconds", "answer_seconds"}
        assert run("status", folder).stdout.splitlines()[0].endswith(f"pid {broker.pid()}, active, connections: 2")


def test_nothing_is_started_to_be_pinged(store_folder: Path) -> None:
    told = run("ping", str(store_folder / "none"))
    assert (told.returncode, told.stdout) == (3, "")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert run("ping", f"opendata://127.0.0.1:{port}").returncode == 3
    assert run("ping", f"opendata://127.0.0.1:{port}", "--timeout", "0").returncode == 2


def test_a_login_that_is_refused(serve: Callable[..., ServedBroker], tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.touch(0o600)
    users.write_text(f'[users.app]\nsecret = "{hash_secret("right")}"\n[users.app.instances."*"]\nread = ".*"\n')
    broker = serve("--users", str(users), "--listen", "tcp:127.0.0.1:0")
    for login, code in (("app:right", 0), ("app:wrong", 1)):
        assert run("ping", f"opendata://{login}@127.0.0.1:{broker.port}").returncode == code


def test_a_broker_that_is_frozen(serve: Callable[..., ServedBroker]) -> None:
    broker = serve("--listen", "tcp:127.0.0.1:0")
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        told = run("ping", f"opendata://127.0.0.1:{broker.port}", "--timeout", "0.5")
        assert told.returncode in (3, 5), told.stderr
        assert time.monotonic() - began < 10
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@pytest.mark.parametrize("which", ["active", "standby"])
def test_a_pair(tmp_path: Path, which: str) -> None:
    with children() as started:
        pair = Pair(str(tmp_path / "store"), tmp_path, started)
        first = pair.start()
        pair.wait_active(first)
        second = pair.start()
        told = run("ping", url(first if which == "active" else second))
        assert told.returncode == (0 if which == "active" else 5)
        if which == "standby":
            assert f"connect to 127.0.0.1:{first.port}" in told.stderr
