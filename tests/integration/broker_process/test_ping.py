"""``ping``, and what ``status`` says about a broker's health."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner, Result

from kombu_opendata.broker.access.secret_hashes import hash_secret
from kombu_opendata.cli.root import main
from tests.support.broker import EmbeddedBroker
from tests.support.kombu_client import connected
from tests.support.pair import Pair, url
from tests.support.processes import children
from tests.support.served import ServedBroker


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


def test_a_broker_that_answers(broker_url: str, broker: EmbeddedBroker) -> None:
    with connected(broker_url):
        folder = broker_url.removeprefix("opendata://")
        told = run("ping", folder)
        assert (told.exit_code, told.stderr) == (0, "")
        assert told.stdout.startswith("connected in ")
        found = json.loads(run("ping", "--url", folder, "--json").stdout)
        assert 0 < found["answer_seconds"] < 60
        assert set(found) == {"connect_seconds", "answer_seconds"}
        assert run("status", folder).stdout.splitlines()[0].endswith(f"pid {broker.pid()}, active, connections: 2")


def test_nothing_is_started_to_be_pinged(store_folder: Path) -> None:
    told = run("ping", str(store_folder / "none"))
    assert (told.exit_code, told.stdout) == (3, "")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert run("ping", f"opendata://127.0.0.1:{port}").exit_code == 3
    assert run("ping", f"opendata://127.0.0.1:{port}", "--timeout", "0").exit_code == 2
    assert run("ping", f"opendata://127.0.0.1:{port}", "--timeout", "9000000000").exit_code == 3


def test_a_login_that_is_refused(serve: Callable[..., ServedBroker], tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    users.touch(0o600)
    users.write_text(f'[users.app]\nsecret = "{hash_secret("right")}"\n[users.app.instances."*"]\nread = ".*"\n')
    broker = serve("--users", str(users), "--listen", "tcp:127.0.0.1:0")
    for login, code in (("app:right", 0), ("app:wrong", 1)):
        assert run("ping", f"opendata://{login}@127.0.0.1:{broker.port}").exit_code == code


def test_a_broker_that_is_frozen(serve: Callable[..., ServedBroker]) -> None:
    broker = serve("--listen", "tcp:127.0.0.1:0")
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        told = run("ping", f"opendata://127.0.0.1:{broker.port}", "--timeout", "0.5")
        assert told.exit_code in (3, 5), told.stderr
        assert time.monotonic() - began < 60
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_a_pair(tmp_path: Path) -> None:
    with children() as started:
        pair = Pair(str(tmp_path / "store"), tmp_path, started)
        first = pair.start()
        pair.wait_active(first)
        assert run("ping", url(first)).exit_code == 0
        second = pair.start()
        pair.wait_connected(first)
        began = time.monotonic()
        told = run("ping", url(second), "--timeout", "60")
        assert time.monotonic() - began < 30, "a standby's answer is an answer"
        assert told.exit_code == 5
        assert f"connect to 127.0.0.1:{first.port}" in told.stderr
        told = run("ping", url(second), "--allow-standby")
        assert (told.exit_code, told.stdout) == (0, f"a standby answered; active is 127.0.0.1:{first.port}\n")
        found = run("ping", url(second), "--allow-standby", "--json")
        assert json.loads(found.stdout) == {"standby": True, "active": f"127.0.0.1:{first.port}"}
