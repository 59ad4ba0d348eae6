"""Starting an embedded broker, with a stand-in for the broker process."""

from __future__ import annotations

import json
import os
import shlex
import socket
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.client import launch_broker
from kombu_opendata.client.client_clock import SYSTEM, ClientClock
from kombu_opendata.client.connection_options import Options
from kombu_opendata.errors import ConnectionLost, NewerFormat, SocketPathTooLong, StartError, StoreUnwritable
from kombu_opendata.url import Address

SCRIPT = """
import json, os, socket, sys
args = sys.argv[1:]
fd = int(args[args.index("--ready-fd") + 1])
path = args[args.index("--listen") + 1].removeprefix("unix:")
with open({starts!r}, "a") as log:
    log.write(json.dumps(args) + "\\n")
if os.fork():
    os._exit(0)
{body}
"""
LISTEN = """
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(64)
os.write(fd, b'{"ready": true}\\n')
os.close(fd)
listener.settimeout(10)
try:
    while listener.accept()[0].recv(1) != b"q":
        pass
finally:
    os.unlink(path)
"""


@pytest.fixture
def stand_in(store_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Replaces the broker process by a script with this body; returns the file that lists its starts."""

    def install(body: str) -> Path:
        starts = store_folder / "starts"
        script, interpreter = store_folder / "stand-in.py", store_folder / "stand-in"
        script.write_text(SCRIPT.format(starts=str(starts), body=body))
        interpreter.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {script} "$@"\n')
        interpreter.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(interpreter))
        return starts

    return install


def attach(folder: Path, start_timeout: float = 10) -> socket.socket:
    return launch_broker.attach(Address("embedded", folder=str(folder)), Options(start_timeout=start_timeout), SYSTEM)


def test_the_first_client_starts_the_broker_for_its_user_alone(store_folder: Path, stand_in: Any) -> None:
    starts = stand_in(LISTEN)
    folder = store_folder / "new"
    with attach(folder) as sock:
        sock.sendall(b"q")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "broker.log").stat().st_mode) == 0o600
    args = json.loads(starts.read_text())
    assert args[:8] == [
        "-m",
        "kombu_opendata.cli",
        "broker",
        "--store",
        f"file://{folder}",
        "--listen",
        f"unix:{folder}/broker.sock",
        "--embedded",
    ]
    assert args[-2:] == ["--idle-exit", "60"]


def test_many_clients_start_one_broker(store_folder: Path, stand_in: Any) -> None:
    starts = stand_in(LISTEN)
    sockets: list[socket.socket] = []
    threads = [threading.Thread(target=lambda: sockets.append(attach(store_folder))) for _ in range(8)]
    # POSIX locks do not keep threads of one process apart; processes are in the integration tests
    for thread in threads:
        thread.start()
        thread.join(10)
    assert len(sockets) == 8
    assert len(starts.read_text().splitlines()) == 1
    sockets[0].sendall(b"q")
    for sock in sockets:
        sock.close()


def test_a_stale_socket_is_no_broker(store_folder: Path, stand_in: Any) -> None:
    path = store_folder / "broker.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    stand_in("os.unlink(path)" + LISTEN)
    with attach(store_folder) as sock:
        sock.sendall(b"q")


def test_the_brokers_own_error_reaches_the_caller(store_folder: Path, stand_in: Any) -> None:
    stand_in("""os.write(fd, b'{"code": "newer_format", "text": "format 9", "values": {"format": 9}}\\n')""")
    with pytest.raises(NewerFormat, match="format 9") as caught:
        attach(store_folder)
    assert caught.value.values == {"format": 9}


def test_store_in_use_means_to_go_on_connecting(store_folder: Path, stand_in: Any) -> None:
    in_use = """
if not os.path.exists(path + ".second"):
    open(path + ".second", "w").close()
    os.write(fd, b'{"code": "store_in_use", "text": "pid 1 owns it", "values": {}}\\n')
    os._exit(0)
"""
    starts = stand_in(in_use + LISTEN)
    with attach(store_folder) as sock:
        sock.sendall(b"q")
    assert len(starts.read_text().splitlines()) == 2


def test_a_broker_that_listens_elsewhere_is_named_at_the_deadline(store_folder: Path, stand_in: Any) -> None:
    stand_in("""os.write(fd, b'{"code": "store_in_use", "text": "pid 1 owns it", "values": {}}\\n')""")
    slept: list[float] = []
    clock = ClientClock(monotonic=lambda: 10.0 * len(slept), sleep=slept.append)
    with pytest.raises(StartError, match=r"within 15 s: another broker has this store .*pid 1 owns it"):
        launch_broker.attach(Address("embedded", folder=str(store_folder)), Options(), clock)
    assert len(slept) == 2


def test_a_broker_that_dies_is_quoted_from_its_log(store_folder: Path, stand_in: Any) -> None:
    (store_folder / "broker.log").write_text("an older trouble\n")
    starts = stand_in("""sys.exit("ImportError: no slatedb")""")
    # its time is over when it was started twice, however long that takes
    clock = ClientClock(monotonic=lambda: 100.0 * (starts.exists() and len(starts.read_text().splitlines()) > 1))
    with pytest.raises(StartError, match=r"ended before it was ready.*ImportError: no slatedb") as caught:
        launch_broker.attach(Address("embedded", folder=str(store_folder)), Options(start_timeout=10), clock)
    assert "older trouble" not in str(caught.value)
    assert isinstance(caught.value, ConnectionLost), "the next attempt may start it"
    assert len(starts.read_text().splitlines()) > 1


def test_a_broker_that_never_gets_ready_is_given_up(store_folder: Path, stand_in: Any) -> None:
    gate = store_folder / "gate"
    os.mkfifo(gate)
    stand_in(f"open({str(gate)!r}).close()")  # waits until the pipe has a writer
    try:
        with pytest.raises(StartError, match=r"no broker answered .* within 0.5 s: see .*broker.log"):
            attach(store_folder, start_timeout=0.5)
    finally:
        gate.open("w").close()


def test_a_file_is_no_folder(store_folder: Path) -> None:
    (store_folder / "file").write_text("")
    for path in (store_folder / "file", store_folder / "file" / "below"):
        with pytest.raises(StoreUnwritable, match="is a file"):
            attach(path)


def test_a_folder_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreUnwritable, match=r"can't be used|permission denied"):
        attach(Path("/proc/such"))


def test_a_socket_path_that_is_too_long_says_what_to_do(store_folder: Path) -> None:
    folder = store_folder / ("x" * 100)
    with pytest.raises(SocketPathTooLong, match=r"limit is \d+: use a shorter folder, or .*--listen tcp:") as caught:
        attach(folder)
    assert caught.value.values["size"] == len(f"{folder}/broker.sock")
    assert not folder.exists()
