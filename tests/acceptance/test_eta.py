"""Tasks of the future wait in the store: a worker does not know of them, and gets them when they are due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ..support.broker import EmbeddedBroker
from ..support.farm import Farm
from ..support.ledger import Ledger
from ..support.processes import Children, tail
from ..support.workers import Worker, sender

pytestmark = pytest.mark.contract(7)

WAITING = 2000
DUE = 40
#: what a worker may grow by for other reasons; 2,000 tasks in its memory would be more
GROWTH_BYTES = 1 << 20


def test_future_tasks_cost_a_worker_nothing(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    worker = Worker(broker_url, tmp_path, "worker", pool="solo", include=["pools"])
    started.add(worker)
    worker.wait_ready()
    with sender(broker_url) as app:
        farm = Farm(app, worker, EmbeddedBroker(store_folder))
        for number in range(50):  # the worker has done some work before it is measured
            farm.send("note", str(ledger), f"before {number}")
        ledger.wait_count(50)
        before = resident_bytes(worker.pid)
        for number in range(WAITING):
            farm.send("note", str(ledger), f"in an hour {number}", countdown=3600)
        for number in range(20):
            farm.send("note", str(ledger), f"now {number}")
        ledger.wait_count(70)
        assert resident_bytes(worker.pid) - before < GROWTH_BYTES
        assert farm.inspect("scheduled") == []
        assert farm.inspect("reserved") == []
        assert farm.broker.queue("celery") == (WAITING, 0)
        assert farm.inspect("stats")["total"] == {"farm.note": 70}
    assert worker.terminate() == 0, tail(worker.log)


def test_tasks_come_when_they_are_due(broker_url: str, tmp_path: Path, ledger: Ledger, started: Children) -> None:
    """Sent in the reverse order of their times, a twentieth of a second apart.

    In which order they run is not said: of those that became due while the worker was busy the first sent is first.
    """
    worker = Worker(broker_url, tmp_path, "worker", pool="solo", include=["pools"])
    started.add(worker)
    worker.wait_ready()
    first = datetime.now(UTC) + timedelta(seconds=3)
    due = {f"task-{number:02}": first + timedelta(seconds=0.05 * number) for number in range(DUE)}
    with sender(broker_url) as app:
        for name, at in reversed(due.items()):
            app.send_task("farm.stamp", (str(ledger), name), eta=at)
        ledger.wait_count(DUE)
    ran = [line.split() for line in ledger.lines()]
    assert sorted(name for name, _ in ran) == list(due), "each once"
    assert all(float(at) >= due[name].timestamp() for name, at in ran), "never early"
    assert worker.terminate() == 0, tail(worker.log)


def resident_bytes(pid: int) -> int:
    return 1024 * next(
        int(line.split()[1])
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    )
