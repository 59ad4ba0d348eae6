"""Warm, soft and cold shutdown: nothing is lost, and what was not begun comes back at no cost of an attempt.

The tasks acknowledge late. Gate files keep some of them running until the test lets them go.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Children, children, tail, wait_until
from ..support.workers import Worker, sender

pytestmark = [pytest.mark.slow, pytest.mark.contract(5)]

WAITING = 6
STOP_SECONDS = 60
SOFT_SECONDS = 6


class Stopping:
    """A worker of two slots that runs two held tasks and has prefetched others, and how it is told to stop."""

    def __init__(self, url: str, store: Path, folder: Path, started: Children, app: Celery) -> None:
        self.url = url
        self.folder = folder
        self.started = started
        self.app = app
        self.broker = EmbeddedBroker(store)
        self.ledger = Ledger(folder / "ran.txt")
        self.gate = folder / "gate"
        self.held = [f"held {number}" for number in range(2)]
        self.waiting = [str(number) for number in range(WAITING)]

    def begin(self, pool: str, **settings: object) -> None:
        for name in self.held:
            self.app.send_task("farm.hold_late", (str(self.ledger), name, str(self.gate)))
        self.first = self.start("first", pool, **settings)
        self.ledger.wait_for(*(f"{name} began" for name in self.held))
        for line in self.waiting:
            self.app.send_task("farm.attempted", (str(self.ledger), line))

    def start(self, name: str, pool: str, **settings: object) -> Worker:
        worker = Worker(self.url, self.folder, name, pool=pool, concurrency=2, **{"task_acks_late": True, **settings})
        self.started.add(worker)
        return worker

    def signal(self, number: signal.Signals, said: str) -> None:
        """Send a signal and wait until the worker has said something about it."""
        self.first.process.send_signal(number)
        wait_until(lambda: said in self.first.log.read_text(), STOP_SECONDS, lambda: tail(self.first.log))

    def finish(self, left: int) -> None:
        """Everything is back when the first worker ended, and a second one runs it."""
        self.first.wait(STOP_SECONDS)
        assert self.broker.queue("celery") == (left, 0), "at once, not when a lease ends"
        self.gate.touch()
        second = self.start("second", "prefork")
        second.wait_ready()  # there may be nothing left to wait for
        self.broker.wait_queue("celery", 0, 0, STOP_SECONDS)
        assert second.terminate() == 0, tail(second.log)


@pytest.fixture
def stopping(store_folder: Path, broker_url: str, tmp_path: Path) -> Iterator[Stopping]:
    with children() as started, sender(broker_url) as app:
        yield Stopping(broker_url, store_folder, tmp_path, started, app)


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet"])
def test_a_warm_shutdown_ends_what_runs(pool: str, stopping: Stopping) -> None:
    stopping.begin(pool)
    stopping.signal(signal.SIGTERM, "Warm shutdown")
    stopping.gate.touch()
    assert stopping.first.wait(STOP_SECONDS) == 0, tail(stopping.first.log)
    assert stopping.broker.queue("celery")[1] == 0
    stopping.finish(stopping.broker.queue("celery")[0])
    stopping.ledger.assert_once(
        [f"{name} {what}" for name in stopping.held for what in ("began", "ended")]
        + [f"{line} 0" for line in stopping.waiting]
    )


def test_a_cold_shutdown_gives_back_what_runs(stopping: Stopping) -> None:
    stopping.begin("prefork")
    stopping.broker.wait_queue("celery", 0, 2 + WAITING)
    stopping.signal(signal.SIGQUIT, "Cold shutdown")
    stopping.finish(2 + WAITING)
    runs = stopping.ledger.runs()
    assert {runs[f"{name} began"] for name in stopping.held} == {2}, "they were cut off, and began again"
    assert {runs[f"{name} ended"] for name in stopping.held} == {1}
    assert [runs[f"{line} 0"] for line in stopping.waiting] == [1] * WAITING


@pytest.mark.parametrize("remapped", [False, True], ids=["SIGQUIT", "REMAP_SIGTERM"])
def test_a_soft_shutdown_waits_a_while(remapped: bool, stopping: Stopping, monkeypatch: pytest.MonkeyPatch) -> None:
    """For long enough here: what runs ends, and counts as done."""
    if remapped:
        monkeypatch.setenv("REMAP_SIGTERM", "SIGQUIT")
    stopping.begin("prefork", worker_soft_shutdown_timeout=SOFT_SECONDS)
    stopping.broker.wait_queue("celery", 0, 2 + WAITING)
    stopping.signal(signal.SIGTERM if remapped else signal.SIGQUIT, "Initiating Soft Shutdown")
    stopping.gate.touch()
    stopping.first.wait(STOP_SECONDS)
    stopping.finish(stopping.broker.queue("celery")[0])
    stopping.ledger.assert_once(
        [f"{name} {what}" for name in stopping.held for what in ("began", "ended")]
        + [f"{line} 0" for line in stopping.waiting]
    )


def test_a_soft_shutdown_becomes_a_cold_one(stopping: Stopping) -> None:
    stopping.begin("prefork", worker_soft_shutdown_timeout=1)
    stopping.broker.wait_queue("celery", 0, 2 + WAITING)
    stopping.signal(signal.SIGQUIT, "Initiating Soft Shutdown")
    stopping.finish(2 + WAITING)
    runs = stopping.ledger.runs()
    assert {runs[f"{name} ended"] for name in stopping.held} == {1}
    assert [runs[f"{line} 0"] for line in stopping.waiting] == [1] * WAITING
