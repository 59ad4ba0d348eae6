"""kill -9 while several producers publish the same unique tasks: of each key one message is stored, and all know it."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery

import kombu_opendata
from kombu_opendata import QueueClient

from ..support.apps.uniques import register
from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.pair import Pair
from ..support.processes import Children, wait_until
from ..support.workers import sender

pytestmark = pytest.mark.contract(16)

SECONDS = 60
LINES = [f"line {number}" for number in range(200)]


class Producers:
    """Threads that publish each line, one after the other or in batches, and the ids of the results, by line."""

    def __init__(self, app: Celery, tasks: SimpleNamespace, ledger: Ledger) -> None:
        self.app, self.tasks, self.ledger = app, tasks, ledger
        self.ids: dict[str, set[str]] = defaultdict(set)
        self.count = 0
        self._lock = threading.Lock()

    def publish(self, lines: list[str]) -> None:
        for line in lines:
            self.note(line, self.tasks.early.delay(str(self.ledger), line).id)

    def publish_batches(self, lines: list[str]) -> None:
        for start in range(0, len(lines), 50):
            part = lines[start : start + 50]
            with kombu_opendata.batch(self.app):
                results = [self.tasks.early.delay(str(self.ledger), line) for line in part]
            for line, result in zip(part, results, strict=True):
                self.note(line, result.id)

    def note(self, line: str, id: str) -> None:
        with self._lock:
            self.ids[line].add(id)
            self.count += 1

    def reach(self, count: int) -> None:
        wait_until(lambda: self.count >= count, SECONDS, lambda: f"{count} publishes, has {self.count}")

    def check(self, url: str) -> None:
        """Each line has one message, whose task all producers got."""
        with QueueClient(url) as client:
            stored = [message.headers["id"] for message in client.peek("celery", 1000)]
        assert len(stored) == len(set(stored)) == len(LINES)
        assert {line: len(ids) for line, ids in self.ids.items()} == dict.fromkeys(LINES, 1)
        assert set(stored) == {id for ids in self.ids.values() for id in ids}


@pytest.mark.slow
def test_each_key_has_one_message_after_kills_of_the_broker(
    store_folder: Path, broker_url: str, ledger: Ledger
) -> None:
    broker = EmbeddedBroker(store_folder)
    with sender(broker_url) as app, ThreadPoolExecutor() as pool:
        producers = Producers(app, register(app), ledger)
        running = [pool.submit(producers.publish, lines) for lines in (LINES, LINES[::-1])]
        running.append(pool.submit(producers.publish_batches, LINES))
        for part in (1, 2, 3):
            producers.reach(part * len(LINES) // 2)
            broker.kill()
        for future in running:
            future.result(SECONDS)
    producers.check(broker_url)


@pytest.mark.slow
def test_each_key_has_one_message_after_a_take_over(store_folder: Path, started: Children, ledger: Ledger) -> None:
    pair = Pair(f"file://{store_folder}/store", store_folder, started)
    pair.wait_active(pair.start())
    pair.start()
    pair.wait_connected(pair.brokers[0])
    url = f"opendata://{','.join(f'127.0.0.1:{broker.port}' for broker in pair.brokers)}"
    with sender(url) as app, ThreadPoolExecutor() as pool:
        producers = Producers(app, register(app), ledger)
        running = [pool.submit(producers.publish, lines) for lines in (LINES, LINES[::-1])]
        producers.reach(len(LINES))
        pair.brokers[0].kill()
        for future in running:
            future.result(SECONDS)
    producers.check(url)
