"""What runs beside the tasks: beat, and a pool that sizes itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ..support.broker import EmbeddedBroker
from ..support.farm import Farm
from ..support.ledger import Ledger
from ..support.processes import Child, Children, tail, wait_until
from ..support.workers import APPS, Worker, sender

pytestmark = pytest.mark.slow

PATIENCE_SECONDS = 120


def test_beat_sends_entries_of_both_kinds(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    """Also when the broker is killed between two of them."""
    command = [sys.executable, "-m", "celery", "-A", "ticking", "beat", "--loglevel=INFO", "--max-interval=1"]
    command += [f"--schedule={tmp_path / 'schedule'}", "--pidfile="]
    beat = Child(
        command,
        tmp_path / "beat.log",
        cwd=APPS,
        env={"CELERY_BROKER_URL": broker_url, "FARM_READY": "", "TICKING_LEDGER": str(ledger)},
    )
    started.add(beat)
    worker = Worker(broker_url, tmp_path, "worker")
    started.add(worker)
    wait_until(
        lambda: beat.ended or {"interval", "crontab"} <= set(ledger.lines()), PATIENCE_SECONDS, lambda: tail(beat.log)
    )
    beat.check()
    EmbeddedBroker(store_folder).kill()
    before = ledger.runs()["interval"]
    wait_until(lambda: ledger.runs()["interval"] >= before + 3, PATIENCE_SECONDS, lambda: tail(beat.log))
    beat.check()
    assert beat.terminate() == 0, tail(beat.log)
    assert worker.terminate() == 0, tail(worker.log)
    sent = beat.log.read_text().count("Sending due task interval")
    assert ledger.runs()["interval"] <= sent


def test_a_pool_sizes_itself(
    store_folder: Path,
    broker_url: str,
    tmp_path: Path,
    ledger: Ledger,
    started: Children,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AUTOSCALE_KEEPALIVE", "1")
    gate = tmp_path / "gate"
    worker = Worker(broker_url, tmp_path, "worker", "--autoscale=4,1", pool="prefork", worker_prefetch_multiplier=1)
    started.add(worker)
    worker.wait_ready()
    with sender(broker_url) as app:
        farm = Farm(app, worker, EmbeddedBroker(store_folder))

        def processes() -> int:
            return len(farm.inspect("stats")["pool"]["processes"])

        for number in range(4):
            farm.send("hold", str(ledger), str(number), str(gate))
        ledger.wait_for(*(f"{number} began" for number in range(4)))
        assert processes() == 4
        gate.touch()
        ledger.wait_count(8)
        wait_until(lambda: processes() == 1, PATIENCE_SECONDS, lambda: f"one process, not {processes()}")
        farm.send("note", str(ledger), "after it")
        ledger.wait_for("after it")
    assert worker.terminate() == 0, tail(worker.log)
