"""Secrets that are not in the URL: from a file or from the environment, for each kind of client."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from kombu_opendata import QueueClient, errors
from kombu_opendata.celery_integration.broker_access import access_of
from kombu_opendata.client.session.open_session import FILE_VARIABLE, VARIABLE

from ...support.certificates import write_private
from ...support.kombu_client import connected, declare, drain_until, refused, send
from ...support.processes import Children, children, wait_until
from ...support.served import COMMAND, ServedBroker
from ...support.users import user_table, write_users


def serve(folder: Path, started: Children) -> ServedBroker:
    users = write_users(folder / "users", user_table("alice", "right"))
    store = ("--store", f"file://{folder}/store", "--listen", "tcp:127.0.0.1:0")
    served = ServedBroker(folder, *store, "--users", str(users))
    started.add(served)
    return served


@pytest.fixture(scope="module")
def broker(module_store_folder: Path) -> Iterator[ServedBroker]:
    with children() as started:
        served = serve(module_store_folder, started)
        yield served
        assert served.terminate() == 0


@pytest.fixture
def url(broker: ServedBroker) -> str:
    return f"opendata://alice@127.0.0.1:{broker.port}"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the environment names."""
    path = tmp_path / "secret"
    write_private(path, b"right\n")
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    return path


def log_in_everywhere(url: str) -> None:
    with connected(url) as connection:
        declare(connection.channel(), "q")
    with QueueClient(url) as client:
        assert [queue.name for queue in client.list_queues()] == ["q"]
    app = Celery(broker=url, backend=url)
    assert app.backend.get_state("unknown") == "PENDING"
    app.backend.client.close()
    with access_of(url).connect() as spark:
        assert spark.staging.staging_target().url
    done = subprocess.run([COMMAND, "queue", "list", "--url", url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_client_reads_the_file(url: str, file: Path) -> None:
    log_in_everywhere(url)


@pytest.mark.slow
def test_every_client_reads_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "right")
    log_in_everywhere(url)


def test_url_then_option_then_file_then_environment(url: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "wrong")
    with QueueClient(url) as client:
        client.list_queues()
    file.write_text("wrong")
    with QueueClient(url, secret="right") as client:
        client.list_queues()
    with QueueClient(url.replace("alice", "alice:right"), secret="wrong") as client:
        client.list_queues()
    monkeypatch.setenv(VARIABLE, "right")
    assert isinstance(refused(url), errors.AccessRefused)


def test_a_client_that_is_connected_takes_a_new_secret(store_folder: Path, started: Children, file: Path) -> None:
    url = f"opendata://alice@127.0.0.1:{serve(store_folder, started).port}"
    with connected(url) as connection:
        channel = connection.channel()
        declare(channel, "q")
        got: list[object] = []
        channel.basic_consume("q", callback=got.append)
        write_private(file, b"new")
        write_users(store_folder / "users", user_table("alice", "new"))
        log = store_folder / "served.log"
        wait_until(lambda: "has a new secret" in log.read_text(), 60, log.read_text)
        with connected(url) as other:
            send(other.channel(), "q", "still consumed")
        drain_until(connection, lambda: got)


@pytest.mark.parametrize(
    ("data", "mode", "said"),
    [
        (b"right", 0o644, r"is open to every user of this machine \(mode 644\): chmod o-rwx /"),
        (b"right", 0o602, r"is open to every user of this machine \(mode 602\)"),
        (b"\n", 0o600, "is empty: write the secret into it"),
        (b"\xff", 0o600, "is not UTF-8"),
        (None, 0, "can't be read: No such file or directory"),
    ],
)
def test_a_file_that_can_not_be_used(url: str, file: Path, data: bytes | None, mode: int, said: str) -> None:
    file.unlink()
    if data is not None:
        file.write_bytes(data)
        file.chmod(mode)
    with pytest.raises(errors.RequestError, match=said) as caught, QueueClient(url) as client:
        client.list_queues()
    assert caught.value.path == str(file)


def test_a_client_without_a_user_sends_no_secret(broker: ServedBroker, file: Path) -> None:
    os.unlink(file)
    assert "user '' is unknown" in str(refused(f"opendata://127.0.0.1:{broker.port}"))
