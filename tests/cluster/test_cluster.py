"""A whole cluster: workers of every pool share a queue, and its parts die under load."""

from __future__ import annotations

import pytest
from pytest_celery import CeleryTestSetup

from ..support.ledger import Ledger
from ..support.processes import wait_until
from ..support.status import read_report

POOLS = ["prefork", "solo", "threads", "gevent", "eventlet"]
WORK_SECONDS = 0.02
PATIENCE_SECONDS = 100
#: what a worker with two children holds: four for each
PREFETCHED = 8

pytestmark = pytest.mark.slow


class Load:
    """Numbered tasks that tell who ran them."""

    def __init__(self, setup: CeleryTestSetup, ledger: Ledger) -> None:
        self.setup = setup
        self.ledger = ledger
        self.sent: list[str] = []

    def send(self, count: int) -> None:
        for _ in range(count):
            name = f"task-{len(self.sent)}"
            self.setup.app.send_task("farm.sign", (str(self.ledger), name, WORK_SECONDS))
            self.sent.append(name)

    def runs(self) -> dict[str, list[str]]:
        """Who ran each task."""
        found: dict[str, list[str]] = {name: [] for name in self.sent}
        for line in self.ledger.lines():
            name, worker = line.split()
            found[name].append(worker)
        return found

    def wait_done(self) -> None:
        """Until nothing waits and nothing is in hand."""
        url = self.setup.broker.config()["host_url"]

        def figures() -> tuple[int, int]:
            queue = read_report(url)["instances"]["default"]["queues"]["celery"]
            return queue["available"], queue["in_flight"]

        wait_until(lambda: figures() == (0, 0), PATIENCE_SECONDS, lambda: f"nothing in the queue: {figures()}")

    def assert_once(self) -> None:
        assert {name: len(workers) for name, workers in self.runs().items()} == dict.fromkeys(self.sent, 1)


@pytest.fixture
def load(celery_setup: CeleryTestSetup, ledger: Ledger) -> Load:
    assert celery_setup.ready()
    return Load(celery_setup, ledger)


@pytest.mark.parametrize("pools", [POOLS], indirect=True, ids=["every-pool"])
def test_workers_of_every_pool_share_a_queue(load: Load, celery_setup: CeleryTestSetup) -> None:
    load.send(300)
    load.wait_done()
    load.assert_once()
    names = {worker.container.worker_name() for worker in celery_setup.worker_cluster}
    assert len(names) == len(POOLS)
    assert {worker for workers in load.runs().values() for worker in workers} == names
    answers = celery_setup.app.control.ping(timeout=30, limit=len(POOLS))
    assert {name for answer in answers for name in answer} == names


@pytest.mark.parametrize("pools", [["prefork", "solo", "threads"]], indirect=True, ids=["three-pools"])
@pytest.mark.parametrize("victim", [0, 1, 2], ids=["prefork", "solo", "threads"])
def test_what_a_killed_worker_held_runs_elsewhere(load: Load, celery_setup: CeleryTestSetup, victim: int) -> None:
    worker = celery_setup.worker_cluster[victim]
    name = worker.container.worker_name()
    load.send(200)
    wait_until(
        lambda: any(name in workers for workers in load.runs().values()), PATIENCE_SECONDS, f"{name} to take part"
    )
    worker.kill("SIGKILL")
    assert worker.container.status == "exited"
    load.wait_done()
    runs = load.runs()
    again = {task: workers for task, workers in runs.items() if len(workers) != 1}
    assert [task for task, workers in again.items() if not workers] == [], "lost"
    # What it had run and not acknowledged yet.
    assert len(again) <= PREFETCHED
    assert all(len(workers) == 2 and name in workers for workers in again.values()), again


@pytest.mark.parametrize("pools", [POOLS], indirect=True, ids=["every-pool"])
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_a_restart_of_the_broker_under_load_is_invisible(
    load: Load, celery_setup: CeleryTestSetup, signal: str
) -> None:
    broker = celery_setup.broker
    load.send(300)
    load.ledger.wait_count(30)
    broker.kill(signal)
    assert broker.container.status == "exited"
    broker.restart()
    resumed_at = load.ledger.count()
    names = {worker.container.worker_name() for worker in celery_setup.worker_cluster}

    def all_take_part() -> bool:
        load.send(20)
        return names == {line.split()[1] for line in load.ledger.lines()[resumed_at:]}

    wait_until(all_take_part, PATIENCE_SECONDS, lambda: f"{names} in {load.ledger.lines()[resumed_at:]}")
    load.wait_done()
    load.assert_once()
