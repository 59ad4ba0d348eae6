"""kill -9 of a worker: what it had not acknowledged comes back within seconds, and another worker runs it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Children
from ..support.workers import Worker, sender

pytestmark = [pytest.mark.slow, pytest.mark.contract(3, 5)]

#: the grace that a lost session has is 2 s; a lease would last for 60
BACK_SECONDS = 40
TASKS = 20


@pytest.mark.parametrize("pool", ["solo", "prefork"])
@pytest.mark.parametrize("task", ["hold", "hold_late"])
def test_another_worker_runs_what_a_killed_one_left(
    task: str, pool: str, store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    """The first task runs when its worker is killed; a few more are prefetched, the others wait."""
    names = [f"task {number}" for number in range(TASKS)]
    with sender(broker_url) as app:
        app.send_task(f"farm.{task}", (str(ledger), "running", str(tmp_path / "gate")))
        for name in names:
            app.send_task("farm.note", (str(ledger), name))
    broker = EmbeddedBroker(store_folder)
    first = Worker(broker_url, tmp_path, "first", pool=pool, worker_prefetch_multiplier=8)
    started.add(first)
    ledger.wait_for("running began")
    late = task == "hold_late"
    if pool == "prefork":  # its main process goes on reading while the child works
        # A late task that runs counts as one of eight; an early one is acknowledged and gives its place to another.
        broker.wait_queue("celery", TASKS - 8 + late, 8)
    else:
        assert broker.queue("celery")[1] > 0

    killed_at = time.monotonic()
    first.kill()  # the main process alone: a child that works must not keep the broker from noticing
    left = TASKS + 1 if late else TASKS
    if pool == "solo" and not late:
        # A solo worker may not have got to sending its acknowledgement: then the task comes back as well.
        left = max(left, sum(broker.queue("celery")))
    broker.wait_queue("celery", left, 0, BACK_SECONDS)
    assert time.monotonic() - killed_at < BACK_SECONDS
    first.clean_up()

    (tmp_path / "gate").touch()
    second = Worker(broker_url, tmp_path, "second", pool=pool)
    started.add(second)
    again = left > TASKS
    ledger.wait_for(*names, *(["running ended"] if again else []))
    broker.wait_queue("celery", 0, 0)  # Celery's stop may lose sight of what it has not seen the end of
    assert second.terminate() == 0
    runs = ledger.runs()
    assert [runs[name] for name in names] == [1] * TASKS
    assert runs["running began"] == 1 + again
    assert runs["running ended"] == again
    assert broker.queue("celery") == (0, 0)


def test_tasks_of_a_worker_that_is_killed_again_and_again(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    """Acknowledged late, each task runs at least once, and one process's kill costs at most what it had in hand."""
    names = [f"task {number}" for number in range(300)]
    with sender(broker_url) as app:
        for name in names:
            app.send_task("farm.work", (str(ledger), name, 0.01))
    rounds, prefetch = 3, 8
    for number in range(rounds):
        already = ledger.count()
        worker = Worker(
            broker_url,
            tmp_path,
            f"worker {number}",
            pool="prefork",
            concurrency=2,
            worker_prefetch_multiplier=prefetch // 2,
            task_acks_late=True,
        )
        started.add(worker)
        ledger.wait_count(already + 20)
        worker.kill()
        worker.clean_up()
    last = Worker(broker_url, tmp_path, "last", pool="prefork", concurrency=2, task_acks_late=True)
    started.add(last)
    ledger.wait_for(*names)
    # Celery's stop may lose sight of what it has not seen the end of
    EmbeddedBroker(store_folder).wait_queue("celery", 0, 0)
    assert last.terminate() == 0
    assert ledger.runs().keys() == set(names)
    assert ledger.count() <= len(names) + rounds * prefetch
