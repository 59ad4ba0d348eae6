"""Tasks that run longer than a lease, and processes that die with tasks in hand."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kombu_opendata import QueueClient

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Children, tail, wait_until
from ..support.served import ServedBroker
from ..support.status import read_report
from ..support.ticks import wait_expired
from ..support.workers import Worker, sender

pytestmark = pytest.mark.slow

LEASE_SECONDS = 2
LONGER_THAN_GRACE = 6  # leases; the grace is that of apps/short_leases.py
BACK_SECONDS = 30


class Leased:
    """A broker with short leases on a port, which can be killed and started again there."""

    def __init__(self, folder: Path, logs: Path, started: Children) -> None:
        self._options = ("--store", f"file://{folder}", "--listen")
        self._logs = logs
        self._started = started
        self.broker = self._start("tcp:127.0.0.1:0")
        self._port = self.broker.port
        self.url = f"opendata://127.0.0.1:{self._port}"

    def _start(self, listen: str) -> ServedBroker:
        broker = ServedBroker(self._logs, *self._options, listen, lease_seconds=LEASE_SECONDS)
        self._started.add(broker)
        return broker

    def start_again(self) -> None:
        self.broker = self._start(f"tcp:127.0.0.1:{self._port}")

    def wait_leases(self, leases: float) -> None:
        """Wait until so many leases have passed by the broker's clock."""
        with QueueClient(self.url) as client:
            wait_expired(client, leases * LEASE_SECONDS)

    def queue(self, name: str) -> tuple[int, int]:
        """Available and in flight."""
        figures = read_report(self.url)["instances"]["default"]["queues"][name]
        return figures["available"], figures["in_flight"]


def test_tasks_of_ten_leases_run_once(store_folder: Path, tmp_path: Path, ledger: Ledger, started: Children) -> None:
    """A worker of each pool holds a task that acknowledges late and one that does it early; an idle one wants them.

    In the middle the broker is killed: just before the end of the solo ones, long before that of the prefork ones.
    """
    leased = Leased(store_folder, tmp_path, started)
    held = [(pool, task) for pool in ("prefork", "solo") for task in ("hold_late", "hold")]
    queues = [f"{pool}.{task}" for pool, task in held]
    for (pool, _), queue in zip(held, queues, strict=True):
        started.add(Worker(leased.url, tmp_path, queue, "-Q", queue, pool=pool))
    gates = {pool: tmp_path / f"{pool}.gate" for pool, _ in held}
    with sender(leased.url) as app:
        for (pool, task), queue in zip(held, queues, strict=True):
            app.send_task(f"farm.{task}", (str(ledger), queue, str(gates[pool])), queue=queue)
        ledger.wait_for(*(f"{queue} began" for queue in queues))
        idle = Worker(leased.url, tmp_path, "idle", "-Q", ",".join(queues), pool="prefork")
        started.add(idle)
        idle.wait_ready()
        leased.wait_leases(5)
        leased.broker.kill()
        gates["solo"].touch()
        leased.start_again()
        ledger.wait_for("solo.hold_late ended", "solo.hold ended")
        leased.wait_leases(LONGER_THAN_GRACE)
        gates["prefork"].touch()
        ledger.wait_count(8)
        wait_until(lambda: {leased.queue(queue) for queue in queues} == {(0, 0)}, 60, lambda: f"{queues} to be empty")
    ledger.assert_once([f"{queue} {what}" for queue in queues for what in ("began", "ended")])


def test_a_lost_child_has_its_task_back_at_once(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    worker = Worker(broker_url, tmp_path, "worker", pool="prefork", concurrency=2, include=["pools"])
    started.add(worker)
    with sender(broker_url) as app:
        app.send_task("farm.fatal", (str(ledger), "fatal", str(tmp_path / "first")))
        ledger.wait_for("fatal")
        killed_at = time.monotonic()
        ledger.wait_count(2, BACK_SECONDS)
        assert time.monotonic() - killed_at < BACK_SECONDS
        EmbeddedBroker(store_folder).wait_queue("celery", 0, 0)
        ledger.path.write_text("")
        app.send_task("farm.note", (str(ledger), "after it"))
        ledger.wait_for("after it")
    assert "WorkerLostError" in worker.log.read_text()
    assert worker.terminate() == 0, tail(worker.log)


def test_a_killed_worker_has_its_late_tasks_back_within_seconds(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    """Two children work when their parent dies; what they held and what was prefetched runs elsewhere."""
    gate = tmp_path / "gate"
    first = Worker(broker_url, tmp_path, "first", pool="prefork", concurrency=2)
    started.add(first)
    held = [f"held {number}" for number in range(2)]
    names = [f"task {number}" for number in range(6)]
    with sender(broker_url) as app:
        for name in held:
            app.send_task("farm.hold_late", (str(ledger), name, str(gate)))
        ledger.wait_for(*(f"{name} began" for name in held))
        for name in names:
            app.send_task("farm.note_late", (str(ledger), name))
    broker = EmbeddedBroker(store_folder)
    broker.wait_queue("celery", 0, 8)
    first.clean_up()  # the children with their parent
    broker.wait_queue("celery", 8, 0, BACK_SECONDS)
    gate.touch()
    second = Worker(broker_url, tmp_path, "second", pool="prefork", concurrency=2)
    started.add(second)
    broker.wait_queue("celery", 0, 0, 60)
    runs = ledger.runs()
    assert {name: runs[name] for name in names} == dict.fromkeys(names, 1)
    assert {runs[f"{name} began"] for name in held} == {2}
    assert {runs[f"{name} ended"] for name in held} == {1}
    assert second.terminate() == 0, tail(second.log)


@pytest.mark.parametrize("task", ["hold_late", "hold"])
def test_a_solo_worker_in_a_task_keeps_it_over_a_restart_of_the_broker(
    store_folder: Path, tmp_path: Path, ledger: Ledger, started: Children, task: str
) -> None:
    """The broker is killed early, and the task goes on for several leases, which an idle worker waits for."""
    leased = Leased(store_folder, tmp_path, started)
    busy, gate = Worker(leased.url, tmp_path, "busy"), tmp_path / "gate"
    started.add(busy)
    with sender(leased.url) as app:
        app.send_task(f"farm.{task}", (str(ledger), "held", str(gate)))
        ledger.wait_for("held began")
        idle = Worker(leased.url, tmp_path, "idle")
        started.add(idle)
        idle.wait_ready()
        for _ in range(2):
            leased.broker.kill()
            leased.start_again()
            leased.wait_leases(LONGER_THAN_GRACE)
        gate.touch()
        ledger.wait_for("held ended")
        wait_until(lambda: leased.queue("celery") == (0, 0), 60, lambda: f"empty: {tail(busy.log)}")
        ledger.assert_once(["held began", "held ended"])
        idle.terminate()
        app.send_task("farm.note", (str(ledger), "after it"))
        ledger.wait_for("after it", seconds=40)
    assert busy.terminate() == 0, tail(busy.log)
