"""kill -9 of the broker at random instants, under load: everything that was confirmed runs, and once.

The workers and consumers stay alive, so their leases resume with the broker's successor: nothing may run twice. The
instants come from a seed that is printed; ``FAULT_SEED=… pytest …`` takes the same one again.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.waiting import random_moment

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Child, Children, wait_until
from ..support.seeds import seeded_random
from ..support.take_overs import acked, again_after_ack
from ..support.workers import APPS, Worker

pytestmark = pytest.mark.contract(1, 4, 9)

PROGRESS_SECONDS = 60


def kill_rounds(
    rounds: int, total: int, broker: EmbeddedBroker, progress: Callable[[], int], started: Children, dice: random.Random
) -> None:
    """Kill the broker at ``rounds`` random instants between none and all of the work.

    Each round waits for a random part of the work, then for a random moment: so it may hit a broker that still starts.
    """
    thresholds = sorted(dice.randrange(1, total) for _ in range(rounds))
    killed: int | None = None
    for number, threshold in enumerate(thresholds):
        wait_until(partial(reached, progress, threshold), PROGRESS_SECONDS, lambda: f"{thresholds}, has {progress()}")
        pid = broker.wait_up(killed)
        random_moment(dice, 0.3)
        started.check()
        killed = broker.kill()
        assert killed == pid, "a broker ended by itself"
        print(f"kill {number + 1}: pid {killed} at {progress()} of {total}")


def reached(progress: Callable[[], int], threshold: int) -> bool:
    return progress() >= threshold


def confirmed(*files: Path) -> list[str]:
    return [line for file in files for line in file.read_text().split()]


@pytest.mark.slow
def test_every_task_runs_once(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    rounds, total = 20, 10_000
    dice = seeded_random()
    began = time.monotonic()
    broker = EmbeddedBroker(store_folder)
    workers = [
        Worker(broker_url, tmp_path, "prefork", pool="prefork", concurrency=2, task_acks_late=True),
        Worker(broker_url, tmp_path, "solo"),
    ]
    for worker in workers:
        started.add(worker)
    for worker in workers:
        worker.wait_ready()
    files = [tmp_path / f"confirmed{number}" for number in range(2)]
    producers = []
    for number, file in enumerate(files):
        half = total // 2
        command = [sys.executable, str(APPS / "produce.py"), broker_url, str(ledger), str(file), str(number * half)]
        producers.append(Child([*command, str(half)], tmp_path / f"producer{number}.log", cwd=tmp_path))
    watched = Children()
    for worker in workers:
        watched.add(worker)
    for producer in producers:
        started.add(producer)

    kill_rounds(rounds, total, broker, ledger.count, watched, dice)
    for producer in producers:
        assert producer.wait(PROGRESS_SECONDS) == 0, producer.log.read_text()
    assert len(confirmed(*files)) == total
    ledger.wait_count(total)
    broker.wait_queue("celery", 0, 0)
    watched.check()
    for worker in workers:
        assert worker.terminate() == 0
        assert "Traceback" not in worker.log.read_text()
    print(f"{total} tasks with {rounds} kills took {time.monotonic() - began:.1f} s")
    ledger.assert_once(map(str, range(total)))


@pytest.mark.parametrize(
    ("rounds", "total"),
    [pytest.param(3, 1_500, id="3 kills"), pytest.param(20, 10_000, id="20 kills", marks=pytest.mark.slow)],
)
def test_every_confirmed_publish_is_delivered_and_never_again_after_its_ack(
    rounds: int, total: int, store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    dice = seeded_random()
    broker = EmbeddedBroker(store_folder)
    gate = tmp_path / "gate"
    files = [tmp_path / f"confirmed{number}" for number in range(2)]
    publishers, consumers = [], []
    for number, file in enumerate(files):
        half = total // 2
        command = [sys.executable, str(APPS / "publish.py"), broker_url, str(file), str(number * half), str(half)]
        publishers.append(Child(command, tmp_path / f"publisher{number}.log", cwd=tmp_path))
        seed = str(dice.randrange(1 << 32))
        command = [sys.executable, str(APPS / "consume.py"), broker_url, str(ledger), seed, str(gate)]
        consumers.append(Child(command, tmp_path / f"consumer{number}.log", cwd=tmp_path))
    watched = Children()
    for child in (*publishers, *consumers):
        started.add(child)
    for child in consumers:
        watched.add(child)

    kill_rounds(rounds, total, broker, ledger.count, watched, dice)
    for publisher in publishers:
        assert publisher.wait(PROGRESS_SECONDS) == 0, publisher.log.read_text()
    published = confirmed(*files)
    assert len(published) == total
    wait_until(
        lambda: acked(ledger.lines()) >= set(published),
        PROGRESS_SECONDS,
        lambda: f"{len(acked(ledger.lines()))} of {total}",
    )
    broker.wait_queue("numbers", 0, 0)
    gate.touch()
    for consumer in consumers:
        assert consumer.wait(PROGRESS_SECONDS) == 0, consumer.log.read_text()
    assert again_after_ack(ledger.lines()) == []
    assert acked(ledger.lines()) == set(published)


def test_the_checker_finds_a_delivery_after_an_ack() -> None:
    assert again_after_ack(["ack 1", "requeue 2", "ack 2"]) == []
    assert again_after_ack(["ack 1", "requeue 1"]) == ["requeue 1"]
    assert again_after_ack(["ack 1", "ack 2", "ack 1"]) == ["ack 1"]
