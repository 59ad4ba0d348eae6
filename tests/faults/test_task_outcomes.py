"""kill -9 of the broker and of a worker around the end of a task: what became of it is known as its ack is."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from kombu_opendata import QueueClient
from kombu_opendata.protocol.messages import AttemptInfo

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Children, children, tail, wait_until
from ..support.served import ServedBroker
from ..support.workers import Worker, sender

pytestmark = [pytest.mark.slow, pytest.mark.contract(17)]

PATIENCE_SECONDS = 60
SHORT = {"resume_timeout": 0.5, "reconnect_timeout": 0.5}
LINES = ("fails_after", "fails_after_late")


class Kills:
    """A worker that runs a task which acknowledges early and one that does it late, until the test opens their gate."""

    def __init__(self, url: str, folder: Path, started: Children, app: Celery, **settings: object) -> None:
        self.url = url
        self.folder = folder
        self.started = started
        self.app = app
        self.ledger = Ledger(folder / "ran.txt")
        self.gate = folder / "gate"
        self.worker = self.start("first", **settings)
        for line in LINES:
            app.send_task(f"farm.{line}", (str(self.ledger), line, str(self.gate)))
        self.ledger.wait_for(*(f"{line} began" for line in LINES))
        with QueueClient(url) as client:  # a task may begin before its worker acknowledges it
            wait_until(lambda: client.metrics("celery").in_flight == 1, PATIENCE_SECONDS, "one acknowledged message")

    def start(self, name: str, **settings: object) -> Worker:
        options: dict[str, Any] = {"include": ["outcomes"], **settings}
        worker = Worker(self.url, self.folder, name, pool="prefork", concurrency=2, **options)
        self.started.add(worker)
        return worker

    def raise_now(self) -> None:
        """Let the tasks raise, and wait until the worker knows."""
        self.gate.touch()
        wait_until(
            lambda: self.worker.log.read_text().count("raised unexpected") == len(LINES),
            PATIENCE_SECONDS,
            lambda: tail(self.worker.log),
        )

    def attempts(self) -> dict[str, list[AttemptInfo]]:
        """The attempts by task."""
        found: dict[str, list[AttemptInfo]] = {line: [] for line in LINES}
        with QueueClient(self.url) as client:
            for attempt in client.iter_attempts(tracebacks=True):
                assert attempt.event is not None
                found[attempt.event.headers["task"].removeprefix("farm.")].append(attempt)
        return found

    def assert_both_raised(self) -> None:
        """Each task has one attempt, with its exception and traceback."""
        wait_until(lambda: all(self.attempts().values()), PATIENCE_SECONDS, lambda: f"{self.attempts()}")
        for line, (attempt, *more) in self.attempts().items():
            assert not more
            assert (attempt.state, attempt.exception, attempt.error) == ("raised", "ValueError", line)
            assert attempt.outcome == "acked"
            assert "in fails_after" in attempt.traceback


@pytest.fixture
def kills(broker_url: str, tmp_path: Path) -> Iterator[Kills]:
    with children() as started, sender(broker_url) as app:
        yield Kills(broker_url, tmp_path, started, app)


def test_a_broker_that_is_killed_while_tasks_run(kills: Kills, store_folder: Path) -> None:
    broker = EmbeddedBroker(store_folder)
    broker.wait_up(other_than=broker.kill())
    kills.raise_now()
    kills.assert_both_raised()


def test_a_broker_that_is_killed_before_it_reads_the_report(kills: Kills, store_folder: Path) -> None:
    """It has the report in its socket when it dies."""
    broker = EmbeddedBroker(store_folder)
    os.kill(broker.wait_up(), signal.SIGSTOP)
    kills.raise_now()
    broker.wait_up(other_than=broker.kill())
    kills.assert_both_raised()


def test_a_broker_that_is_killed_after_the_report(kills: Kills, store_folder: Path) -> None:
    kills.raise_now()
    kills.assert_both_raised()
    broker = EmbeddedBroker(store_folder)
    broker.wait_up(other_than=broker.kill())
    kills.assert_both_raised()


def test_a_worker_that_is_killed_while_tasks_run(kills: Kills, store_folder: Path) -> None:
    """What was acknowledged is lost. The other runs again, and its second attempt says how it ended."""
    kills.worker.kill()
    wait_until(lambda: all(kills.attempts().values()), PATIENCE_SECONDS, lambda: f"{kills.attempts()}")
    (lost,), (expired,) = kills.attempts().values()
    assert (lost.state, lost.outcome) == ("lost", "acked")
    assert expired.outcome == "expired"
    kills.worker.clean_up()
    kills.worker = kills.start("second")
    kills.gate.touch()
    wait_until(
        lambda: [len(of_task) for of_task in kills.attempts().values()] == [1, 2],
        PATIENCE_SECONDS,
        lambda: f"{kills.attempts()}",
    )
    again = max(kills.attempts()["fails_after_late"], key=lambda attempt: attempt.claimed_at_ms)
    assert (again.state, again.number) == ("raised", 2)


def test_a_worker_that_is_killed_after_the_report(kills: Kills) -> None:
    kills.raise_now()
    kills.assert_both_raised()
    kills.worker.kill()
    kills.assert_both_raised()


def test_a_worker_that_is_told_to_stop_at_once(kills: Kills, store_folder: Path) -> None:
    """Cold shutdown: what was acknowledged is lost, and the other goes back."""
    kills.worker.process.send_signal(signal.SIGQUIT)
    kills.worker.wait(PATIENCE_SECONDS)
    wait_until(lambda: all(kills.attempts().values()), PATIENCE_SECONDS, lambda: f"{kills.attempts()}")
    (lost,), (released,) = kills.attempts().values()
    assert (lost.state, lost.outcome) == ("lost", "acked")
    assert released.outcome == "released"
    assert EmbeddedBroker(store_folder).queue("celery") == (1, 0)


def test_a_worker_that_is_told_to_stop(kills: Kills) -> None:
    """Warm shutdown: it waits for its tasks, and reports them."""
    kills.worker.process.send_signal(signal.SIGTERM)
    wait_until(
        lambda: "Warm shutdown" in kills.worker.log.read_text(), PATIENCE_SECONDS, lambda: tail(kills.worker.log)
    )
    kills.raise_now()
    assert kills.worker.wait(PATIENCE_SECONDS) == 0
    kills.assert_both_raised()


def test_a_task_that_ends_after_its_worker_has_connected_again(store_folder: Path, tmp_path: Path) -> None:
    """The session was given up meanwhile; the report of the acknowledged task comes over the next one."""
    options = ("--store", f"file://{store_folder}", "--listen")
    with children() as started:
        broker = ServedBroker(tmp_path, *options, "tcp:127.0.0.1:0")
        started.add(broker)
        url = f"opendata://127.0.0.1:{broker.port}"
        with sender(url) as app:
            kills = Kills(url, tmp_path, started, app, broker_transport_options=SHORT)
            broker.kill()
            wait_until(
                lambda: "Connection to broker lost" in kills.worker.log.read_text(),
                PATIENCE_SECONDS,
                lambda: tail(kills.worker.log),
            )
            started.add(ServedBroker(tmp_path, *options, f"tcp:127.0.0.1:{broker.port}"))
            wait_until(
                lambda: kills.worker.log.read_text().count("Connected to") == 2,
                PATIENCE_SECONDS,
                lambda: tail(kills.worker.log),
            )
            kills.raise_now()
            wait_until(lambda: kills.attempts()["fails_after"], PATIENCE_SECONDS, lambda: f"{kills.attempts()}")
            (early,) = kills.attempts()["fails_after"]
            assert (early.state, early.error) == ("raised", "fails_after")
