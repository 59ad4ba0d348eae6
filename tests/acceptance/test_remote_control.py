"""Remote control and events of a real worker: both go through transient queues, which are memory of the broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from ..support.broker import EmbeddedBroker, Watch
from ..support.ledger import Ledger
from ..support.processes import Children, children, wait_until
from ..support.workers import Worker, sender

REPLY_SECONDS = 20
TRANSIENT = ("pidbox", "celeryev", "reply")


class Worked:
    """A prefork worker with one process and events on, and the app that controls it."""

    def __init__(self, app: Celery, worker: Worker, broker: EmbeddedBroker) -> None:
        self.app = app
        self.worker = worker
        self.broker = broker

    def inspect(self, method: str) -> Any:
        """The worker's own answer."""
        answers = getattr(self.app.control.inspect([self.worker.name], timeout=REPLY_SECONDS), method)()
        assert answers, f"no answer to {method}"
        return answers[self.worker.name]

    def control(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """The worker's answer to a command."""
        method = getattr(self.app.control, command)
        (answer,) = method(*args, destination=[self.worker.name], reply=True, timeout=REPLY_SECONDS, limit=1, **kwargs)
        return answer[self.worker.name]

    def send(self, task: str, *args: object, **options: object) -> str:
        return str(self.app.send_task(f"farm.{task}", args, **options).id)


class Heard:
    """The events that an ``app.events.Receiver`` takes in, in a thread of its own."""

    def __init__(self, app: Celery) -> None:
        self.events: list[dict[str, Any]] = []
        self.failure: BaseException | None = None
        self._connection = app.connection_for_read()
        self._receiver = app.events.Receiver(self._connection, handlers={"*": self.events.append})
        self._consuming = threading.Event()
        self._receiver.on_consume_ready = lambda *_, **__: self._consuming.set()
        self._thread = threading.Thread(target=self._run, name="receiver")

    def __enter__(self) -> Heard:
        self._thread.start()
        assert self._consuming.wait(REPLY_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(REPLY_SECONDS)
        self._connection.close()
        assert not self._thread.is_alive()
        assert self.failure is None

    def _run(self) -> None:
        try:
            for _ in self._receiver.consume():
                pass
        except BaseException as exc:
            self.failure = exc
            self._consuming.set()

    def types(self, task_id: str) -> list[str]:
        """What happened to a task, in order."""
        return [event["type"] for event in self.events if event.get("uuid") == task_id]

    def heartbeats(self) -> int:
        return sum(event["type"] == "worker-heartbeat" for event in self.events)


@pytest.fixture(scope="module")
def worked(module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    url = f"opendata://{module_store_folder}"
    with children() as started, sender(url) as app:
        options = ["-E", "--heartbeat-interval=1"]
        worker = Worker(url, tmp_path_factory.mktemp("worker"), "worker", *options, pool="prefork")
        started.add(worker)
        worker.wait_ready()
        yield Worked(app, worker, EmbeddedBroker(module_store_folder))
        assert worker.terminate() == 0
        assert "Traceback" not in worker.log.read_text()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ran.txt")


@pytest.fixture
def started() -> Iterator[Children]:
    with children() as processes:
        yield processes


def test_ping(worked: Worked) -> None:
    assert worked.inspect("ping") == {"ok": "pong"}


def test_stats_and_registered(worked: Worked) -> None:
    stats = worked.inspect("stats")
    assert stats["pid"] == worked.worker.pid
    assert stats["broker"]["transport"] == "opendata"
    assert "farm.note" in worked.inspect("registered")


def test_active_and_reserved(worked: Worked, ledger: Ledger, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    running = worked.send("hold", str(ledger), "held", str(gate))
    ledger.wait_for("held began")
    waiting = [worked.send("note", str(ledger), f"waiting {number}") for number in range(2)]
    wait_until(lambda: len(worked.inspect("reserved")) == 2, 20, "two reserved tasks")
    assert [task["id"] for task in worked.inspect("active")] == [running]
    assert {task["id"] for task in worked.inspect("reserved")} == set(waiting)
    gate.touch()
    ledger.wait_count(4)


def test_a_revoked_task_does_not_run(worked: Worked, ledger: Ledger, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    worked.send("hold", str(ledger), "held", str(gate))
    ledger.wait_for("held began")
    revoked = worked.send("note", str(ledger), "revoked")
    worked.send("note", str(ledger), "after it")
    assert worked.control("revoke", revoked)["ok"]
    assert worked.inspect("revoked") == [revoked]
    gate.touch()
    ledger.wait_for("after it")
    worked.broker.wait_queue("celery", 0, 0)
    ledger.assert_once(["held began", "held ended", "after it"])


def test_rate_limit(worked: Worked, ledger: Ledger) -> None:
    assert "ok" in worked.control("rate_limit", "farm.note", "2/s")
    began = time.monotonic()
    for number in range(4):
        worked.send("note", str(ledger), str(number))
    ledger.wait_count(4)
    assert time.monotonic() - began > 1.2, "three of them half a second apart"
    assert "ok" in worked.control("rate_limit", "farm.note", "0")


def test_consumers_come_and_go(worked: Worked, ledger: Ledger) -> None:
    assert "ok" in worked.control("add_consumer", "extra")
    worked.send("note", str(ledger), "extra", queue="extra")
    ledger.wait_for("extra")
    assert "ok" in worked.control("cancel_consumer", "extra")
    worked.send("note", str(ledger), "too late", queue="extra")
    worked.send("note", str(ledger), "after it")
    ledger.wait_for("after it")
    assert worked.broker.queue("extra") == (1, 0)
    assert "too late" not in ledger.lines()
    assert "ok" in worked.control("add_consumer", "extra")
    ledger.wait_for("too late")


def test_a_receiver_sees_what_happens_to_a_task(worked: Worked, ledger: Ledger) -> None:
    with Heard(worked.app) as heard:
        task_id = worked.send("note", str(ledger), "seen")
        wait_until(lambda: "task-succeeded" in heard.types(task_id), 30, lambda: str(heard.types(task_id)))
    assert heard.types(task_id) == ["task-received", "task-started", "task-succeeded"]


def test_an_idle_worker_commits_nothing(worked: Worked) -> None:
    watch = Watch(worked.broker.folder)
    try:
        with Heard(worked.app) as heard:
            wait_until(heard.heartbeats, 30, "a heartbeat")
            before = watch.report()
            already = heard.heartbeats()
            wait_until(lambda: heard.heartbeats() >= already + 3, 30, "three more heartbeats")
            after = watch.report()
    finally:
        watch.close()
    assert after["published"] >= before["published"] + 3, "the heartbeats went through the broker"
    assert after["commits"] == before["commits"]


@pytest.mark.parametrize("end", ["shutdown", "kill"])
def test_no_transient_queue_outlives_its_worker(
    end: str, store_folder: Path, broker_url: str, tmp_path: Path, started: Children
) -> None:
    worker = Worker(broker_url, tmp_path, "worker", "-E")
    started.add(worker)
    worker.wait_ready()
    broker = EmbeddedBroker(store_folder)
    with sender(broker_url) as app, Heard(app) as heard:
        worked = Worked(app, worker, broker)
        assert worked.inspect("ping") == {"ok": "pong"}
        wait_until(lambda: heard.events, 30, "an event")
        assert broker.report()["transient_queues"] >= 2, "the worker's pidbox and the receiver's queue"
        if end == "shutdown":
            app.control.shutdown(destination=[worker.name])
            assert worker.wait(30) == 0
        else:
            worker.kill()
    wait_until(lambda: broker.report()["transient_queues"] == 0, 20, lambda: str(broker.report()))
    with sender(broker_url) as app, app.connection_for_read() as connection:
        bindings = connection.default_channel.list_bindings()
    assert [found for found in bindings if any(word in found[0] for word in TRANSIENT)] == []
