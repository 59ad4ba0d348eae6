"""A broker that is killed while it starts, or hangs: publishes are retried as after any lost connection."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kombu.entity import Queue

from kombu_opendata import errors

from ..support.broker import EmbeddedBroker
from ..support.kombu_client import connected, open_connection, refused, take_bodies
from ..support.processes import is_running, tail, wait_until
from ..support.workers import sender

ATTEMPTS = 4  # more than one call of the client makes by itself
POLICY = {"max_retries": 50, "interval_start": 0, "interval_step": 0.05, "interval_max": 0.2}


class Starts:
    """Stops each new broker of a folder as soon as it has the lock, before it listens, and deals with it."""

    def __init__(self, folder: Path, deal: Callable[[int], bool]) -> None:
        self._broker = EmbeddedBroker(folder)
        self._deal = deal
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None
        self._over = threading.Event()

    def _run(self) -> None:
        seen: int | None = None
        while not self._over.is_set():
            pid = self._broker.pid()
            if pid is None or pid == seen:
                self._over.wait(0.001)
                continue
            seen = pid
            os.kill(pid, signal.SIGSTOP)
            if self._broker.answers():
                os.kill(pid, signal.SIGCONT)
            elif self._deal(pid):
                return

    def __enter__(self) -> Starts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)


def test_a_broker_that_is_killed_while_it_starts(store_folder: Path, broker_url: str) -> None:
    killed: list[int] = []

    def kill(pid: int) -> bool:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_running(pid), 60, f"end of {pid}")
        killed.append(pid)
        return len(killed) == ATTEMPTS

    with sender(broker_url) as app, Starts(store_folder, kill):
        app.send_task("farm.note", ["x"], queue="q", retry=True, retry_policy=POLICY)
    log = EmbeddedBroker(store_folder).log
    assert len(killed) == ATTEMPTS, tail(log)
    with connected(broker_url) as connection:
        assert len(take_bodies(connection.channel(), "q")) == 1


@pytest.mark.parametrize("known", [False, True], ids=["a first connection", "a connection that was lost"])
def test_a_broker_that_is_slow_to_start(known: bool, store_folder: Path, broker_url: str) -> None:
    broker = EmbeddedBroker(store_folder)
    pids: list[int] = []
    seen: list[Exception] = []

    def leave(pid: int) -> bool:
        pids.append(pid)
        return True

    def note(exc: Exception, _interval: float) -> None:
        seen.append(exc)
        if len(seen) >= 3 and pids:  # on a slow machine, the first ones were before it had the lock
            os.kill(pids[0], signal.SIGCONT)

    queue = Queue("q")  # type: ignore[no-untyped-call]
    policy = {**POLICY, "errback": note}
    options = {"start_timeout": 0.5, "reconnect_timeout": 0.5}
    try:
        with open_connection(broker_url, **options) as connection, connection.Producer() as producer:
            connection.connect_timeout = 1.0  # Kombu's own time for a first connection
            if known:
                with connected(broker_url):
                    connection.connect()
                    producer.publish({}, routing_key="q", declare=[queue])
                broker.kill()
            with Starts(store_folder, leave):
                producer.publish({}, routing_key="q", declare=[queue], retry=True, retry_policy=policy)
        assert len(seen) >= 3, "the policy went on"
        assert broker.pid() == pids[0]
    finally:
        for pid in pids:
            if is_running(pid):
                os.kill(pid, signal.SIGCONT)
    with connected(broker_url) as connection:
        assert len(take_bodies(connection.channel(), "q")) == 1 + known


@pytest.mark.slow
def test_the_client_alone_names_it_and_may_go_on(store_folder: Path, broker_url: str) -> None:
    killed: list[int] = []

    def kill(pid: int) -> bool:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        return False

    for seconds in (2, 10, 60):  # a slow machine needs more for two starts
        killed.clear()
        with Starts(store_folder, kill):
            error = refused(broker_url, start_timeout=seconds)
        assert isinstance(error, errors.StartInterrupted)
        assert isinstance(error, errors.StartError)
        assert isinstance(error, errors.ConnectionLost)
        if len(killed) > 1:
            break
    assert len(killed) > 1
    with connected(broker_url):
        pass


def test_what_another_attempt_can_not_mend_comes_at_once(store_folder: Path, broker_url: str) -> None:
    (store_folder / "broker.start.lock").mkdir()
    error, tried = errors.StoreUnwritable, list[Exception]()
    policy: dict[str, Any] = {**POLICY, "errback": lambda exc, _: tried.append(exc)}
    with open_connection(broker_url) as connection, connection.Producer() as producer, pytest.raises(error):
        producer.publish({}, routing_key="q", retry=True, retry_policy=policy)
    assert not tried
