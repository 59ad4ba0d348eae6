"""A store is whole, seen from outside, while its broker works and right after each kill -9 of it."""

from __future__ import annotations

import asyncio
import random
import sys
from functools import partial
from pathlib import Path

from kombu_opendata.offline import StoreStats, open_store, stats
from tests.support.waiting import random_moment

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.processes import Child, Children, wait_until
from ..support.seeds import seeded_random
from ..support.verified import assert_verified
from ..support.workers import APPS

TOTAL = 1_500
ROUNDS = 4
PROGRESS_SECONDS = 60


def count(folder: Path) -> StoreStats:
    async def main() -> StoreStats:
        async with await open_store(folder) as store:
            return await stats(store)

    return asyncio.run(main())


def start(folder: Path, url: str, ledger: Ledger, started: Children, dice: random.Random, total: int) -> list[Child]:
    """A publisher of so many numbers, and two consumers."""
    confirmed = str(folder / "confirmed")
    command = [sys.executable, str(APPS / "publish.py"), url, confirmed, "0", str(total)]
    children = [Child(command, folder / "publisher.log", cwd=folder)]
    for number in range(2):
        seed = str(dice.randrange(1 << 32))
        command = [sys.executable, str(APPS / "consume.py"), url, str(ledger), seed, str(folder / "gate")]
        children.append(Child(command, folder / f"consumer{number}.log", cwd=folder))
    for child in children:
        started.add(child)
    return children


def test_beside_a_broker_at_work_and_after_each_kill(
    store_folder: Path, broker_url: str, tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    dice = seeded_random()
    broker = EmbeddedBroker(store_folder)
    children = start(tmp_path, broker_url, ledger, started, dice, TOTAL)
    seen = []
    for threshold in sorted(dice.randrange(1, TOTAL) for _ in range(ROUNDS)):
        wait_until(partial(reached, ledger, threshold), PROGRESS_SECONDS, lambda: f"{ledger.count()} of {TOTAL}")
        pid = broker.wait_up()
        assert_verified(store_folder)
        figures = count(store_folder)
        seen.append(figures)
        print(f"pid {figures.broker_pid}: {figures.queues}")
        random_moment(dice, 0.2)
        broker.kill()
        # The clients start the next one at once: it may be opening the store.
        assert_verified(store_folder)
        broker.wait_up(pid)
    assert children[0].wait(PROGRESS_SECONDS) == 0, children[0].log.read_text()
    numbers = set(map(str, range(TOTAL)))
    wait_until(lambda: acked(ledger) == numbers, PROGRESS_SECONDS, lambda: f"{len(acked(ledger))} of {TOTAL}")
    broker.wait_queue("numbers", 0, 0)
    figures = count(store_folder)
    assert (figures.queues["numbers"].done, figures.queues["numbers"].available) == (TOTAL, 0)
    assert figures.broker_pid == broker.pid()
    done = [one.queues["numbers"].done for one in seen if "numbers" in one.queues]
    assert done == sorted(done)
    (tmp_path / "gate").touch()
    for child in children[1:]:
        assert child.wait(PROGRESS_SECONDS) == 0, child.log.read_text()


def reached(ledger: Ledger, threshold: int) -> bool:
    return ledger.count() >= threshold


def acked(ledger: Ledger) -> set[str]:
    return {number for what, number in map(str.split, ledger.lines()) if what == "ack"}


def test_what_was_confirmed_is_there_after_a_kill(
    store_folder: Path, broker_url: str, tmp_path: Path, started: Children
) -> None:
    """No client is left to start another broker, so the store stays as it was when its broker died."""
    dice = seeded_random()
    confirmed = tmp_path / "confirmed"
    command = [sys.executable, str(APPS / "publish.py"), broker_url, str(confirmed), "0", "100000"]
    publisher = Child(command, tmp_path / "publisher.log", cwd=tmp_path)
    started.add(publisher)
    threshold = dice.randrange(1, 1000)
    wait_until(lambda: lines(confirmed) >= threshold, PROGRESS_SECONDS, lambda: f"{lines(confirmed)} confirmed")
    publisher.kill()
    EmbeddedBroker(store_folder).kill()
    report = assert_verified(store_folder)
    figures = count(store_folder)
    assert figures.broker_pid is None
    assert lines(confirmed) <= figures.queues["numbers"].available == report.messages <= lines(confirmed) + 1


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0
