"""A queue's limits with real workers: no more tasks at a time than there are slots, also after a worker's kill."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from kombu_opendata.queue_client import QueueClient, QueueOptions

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Children, wait_until
from ..support.workers import Worker, sender

pytestmark = [pytest.mark.slow, pytest.mark.contract(16)]

TASKS = 12
SLOTS = 3


@pytest.mark.parametrize("task", ["hold", "hold_late"])
def test_a_killed_worker_frees_its_slots(
    task: str, store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    """Two workers with four processes each share three slots; the tasks of the one that is killed are lost or rerun."""
    gates = [tmp_path / f"gate {number}" for number in range(TASKS)]

    def began() -> list[int]:
        return [int(line.split()[0]) for line in ledger.lines() if line.endswith("began")]

    def running() -> int:
        return len(began()) - sum(line.endswith("ended") for line in ledger.lines())

    with sender(broker_url) as app, QueueClient(broker_url) as client:
        client.create("celery")
        client.alter("celery", QueueOptions(concurrency=SLOTS))
        for number, gate in enumerate(gates):
            app.send_task(f"farm.{task}", (str(ledger), str(number), str(gate)))
        first = Worker(broker_url, tmp_path, "first", pool="prefork", concurrency=4)
        started.add(first)
        ledger.wait_count(SLOTS)
        second = Worker(broker_url, tmp_path, "second", pool="prefork", concurrency=4)
        started.add(second)
        second.wait_ready()
        client.alter("celery", {"x-concurrency": SLOTS + 1})
        ledger.wait_count(SLOTS + 1)
        client.alter("celery", {"x-concurrency": SLOTS})
        gates[began()[0]].touch()  # four run and three may: nothing starts in its place
        wait_until(lambda: running() == SLOTS, 60, lambda: f"{running()} tasks")
        lines = ledger.lines()
        first.kill()
        first.clean_up()
        ledger.wait_count(len(lines) + 1)
        for gate in gates:
            gate.touch()
        EmbeddedBroker(store_folder).wait_queue("celery", 0, 0)
        wait_until(lambda: set(began()) == set(range(TASKS)), 60, lambda: str(ledger.lines()))
        second.terminate()
    assert most_running(lines) == SLOTS + 1
    ended = next(number for number, line in enumerate(lines) if line.endswith("ended"))
    assert len(lines) == ended + 1


def most_running(lines: list[str]) -> int:
    counts = accumulate(1 if line.endswith("began") else -1 for line in lines)
    return max(counts)
