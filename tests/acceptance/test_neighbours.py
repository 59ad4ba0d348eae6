"""Gossip, mingle and worker_disable_prefetch: what Celery offers to the transports that it knows by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Children, tail, wait_until
from ..support.workers import MinglingWorker, Worker, sender

pytestmark = pytest.mark.slow

ALONE = "mingle: all alone"
TRIES = 5


def wait_log(worker: Worker, text: str) -> None:
    wait_until(lambda: text in worker.log.read_text(), 60, lambda: f"{text!r} in:\n{tail(worker.log)}")


def start_with_a_neighbour(broker_url: str, folder: Path, started: Children) -> Worker:
    """A worker that another one has answered. Celery gives it a second for that: one that had no answer tries again."""
    for number in range(TRIES):
        worker = MinglingWorker(broker_url, folder, f"second-{number}")
        started.add(worker)
        worker.wait_ready()
        if ALONE not in worker.log.read_text():
            return worker
        assert worker.terminate() == 0
    raise AssertionError(f"{TRIES} workers had no answer:\n{tail(worker.log)}")


def test_workers_gossip_and_mingle(broker_url: str, tmp_path: Path, ledger: Ledger, started: Children) -> None:
    first = MinglingWorker(broker_url, tmp_path, "first", "--loglevel=DEBUG")
    started.add(first)
    first.wait_ready()
    wait_log(first, ALONE)
    with sender(broker_url) as app:
        app.control.revoke("never", destination=[first.name])
        inspect = app.control.inspect([first.name], timeout=60)
        wait_until(lambda: "never" in (inspect.revoked() or {}).get(first.name, ()), 60, "the revocation")
        second = start_with_a_neighbour(broker_url, tmp_path, started)
        wait_log(second, "mingle: sync with 1 nodes")
        wait_log(first, f"{second.name} joined the party")
        assert first.terminate() == 0
        app.send_task("farm.note", (str(ledger), "revoked"), task_id="never")
        app.send_task("farm.note", (str(ledger), "runs"))
        ledger.wait_for("runs")
        assert ledger.lines() == ["runs"], "the second worker learned of the revocation from the first"
    assert second.terminate() == 0


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_without_prefetch_a_worker_reserves_what_it_runs(
    pool: str, store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    gate = tmp_path / "gate"
    with sender(broker_url) as app:
        for number in range(2):
            app.send_task("farm.hold", (str(ledger), f"long {number}", str(gate)))
        for number in range(20):
            app.send_task("farm.note", (str(ledger), str(number)))
    running = 2 if pool == "prefork" else 1
    busy = Worker(broker_url, tmp_path, "busy", pool=pool, concurrency=running, worker_disable_prefetch=True)
    started.add(busy)
    ledger.wait_for(*(f"long {number} began" for number in range(running)))
    broker = EmbeddedBroker(store_folder)
    # In prefork both are acknowledged; a solo worker writes the ack after the task. Nothing else was taken.
    broker.wait_queue("celery", *((20, 0) if pool == "prefork" else (21, 1)))
    helper = Worker(broker_url, tmp_path, "helper", pool="prefork", concurrency=1, worker_disable_prefetch=True)
    started.add(helper)
    helper.wait_ready()
    if pool == "prefork":
        ledger.wait_for(*map(str, range(20)))
    gate.touch()
    ledger.wait_count(20 + 4)
    broker.wait_queue("celery", 0, 0)
    for worker in (busy, helper):
        assert worker.terminate() == 0
        log = worker.log.read_text()
        assert "Ignoring disable_prefetch" not in log
        assert "Traceback" not in log
    expected = [f"long {number} {what}" for number in range(2) for what in ("began", "ended")]
    ledger.assert_once([*expected, *map(str, range(20))])
