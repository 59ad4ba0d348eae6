"""A folder that another host uses, too, on a file system that does not show that host's lock.

The other host is a thread, which writes and renews the mark in ``broker.lock`` as a broker there would.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.broker.standby.active_role import EXIT_FENCED
from kombu_opendata.file_system import boot_id

from ...support.broker import EmbeddedBroker
from ...support.kombu_client import declare, send, take_bodies
from ...support.pair import Pair
from ...support.processes import Children, tail, wait_until
from ...support.served import ServedBroker

OTHER = "0c1d6c1e-6cf3-4f5e-9d2f-1f2d3c4b5a69 other.example"
IN_USE = "a broker on the host other.example uses"
WATCHED = "ran on another host (other.example)"


@contextmanager
def other_host(folder: Path) -> Iterator[None]:
    """A broker on another host that lives, and has written its mark."""
    mark, over = folder / "broker.lock", threading.Event()
    mark.write_text(OTHER)

    def renew() -> None:
        while not over.wait(0.5):
            os.utime(mark)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_folder_with_a_live_broker_on_another_host_is_refused(
    store_folder: Path, serve: Callable[..., ServedBroker]
) -> None:
    with other_host(store_folder):
        refused = serve()
        assert refused.report["code"] == "store_in_use"
        assert IN_USE in refused.report["text"]
        assert refused.wait(60) == 1
        assert (store_folder / "broker.lock").read_text() == OTHER
        assert not (store_folder / "default").exists()


def test_a_standby_there_is_refused_too(tmp_path: Path, started: Children) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    with other_host(tmp_path / "store"):
        standby = Pair(str(tmp_path / "store"), tmp_path, started).start()
        assert standby.wait(60) == 1
    assert IN_USE in tail(standby.log)


def test_the_mark_of_a_host_that_was_lost_delays_a_start(  # so it takes the seconds that the mark is watched
    store_folder: Path, serve: Callable[..., ServedBroker]
) -> None:
    (store_folder / "broker.lock").write_text(OTHER)
    broker = serve()
    assert broker.report["ready"]
    assert WATCHED in broker.log.read_text()
    assert (store_folder / "broker.lock").read_text() == f"{boot_id()} {socket.gethostname()}"


@pytest.mark.slow
def test_a_standby_takes_over_after_a_host_that_was_lost(tmp_path: Path, started: Children) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    (tmp_path / "store/broker.lock").write_text(OTHER)
    pair = Pair(str(tmp_path / "store"), tmp_path, started)
    standby = pair.start()
    pair.wait_active(standby)
    assert WATCHED in standby.log.read_text()


def test_a_broker_ends_when_another_host_has_taken_the_folder(
    store_folder: Path, serve: Callable[..., ServedBroker]
) -> None:
    broker = serve()
    with other_host(store_folder):
        assert broker.wait(60) == EXIT_FENCED
        assert (store_folder / "broker.lock").read_text() == OTHER
    assert "a broker on another host (other.example) has taken over the store's folder" in tail(broker.log)


def test_a_start_after_a_crash_or_an_end_on_the_same_host_is_not_delayed(
    connect: Callable[..., Any], broker_url: str, broker: EmbeddedBroker, store_folder: Path
) -> None:
    mark = store_folder / "broker.lock"
    channel = connect(broker_url).channel()
    declare(channel, "q")
    send(channel, "q", "a")
    renewed = mark.stat().st_mtime_ns
    wait_until(lambda: mark.stat().st_mtime_ns != renewed, 60, "a renewal")
    broker.kill()
    assert mark.read_text()
    assert take_bodies(connect(broker_url).channel(), "q") == ["a"]
    broker.terminate()
    assert mark.read_text() == ""
    assert "another host" not in broker.log.read_text()
