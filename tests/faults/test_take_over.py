"""kill -9 of the active broker, under load and with a standby: all kinds of clients go on at the successor."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kombu_opendata
from kombu_opendata import AsyncQueueClient, QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.staging_client import StagingClient

from ..support.batches import Sink, as_objects, stage
from ..support.ledger import Ledger
from ..support.pair import Pair
from ..support.processes import Children
from ..support.workers import Worker, sender

pytestmark = pytest.mark.contract(1, 9)

SECONDS = 60


@pytest.fixture
def pair(store_folder: Path, started: Children) -> Pair:
    pair = Pair(f"file://{store_folder}/store", store_folder, started)
    pair.wait_active(pair.start())
    pair.start()
    return pair


def url_of(pair: Pair) -> str:
    """The standby first: clients find the active one."""
    return f"opendata://{','.join(f'127.0.0.1:{broker.port}' for broker in reversed(pair.brokers))}"


@pytest.fixture
def waiting(pair: Pair) -> Iterator[list[Future[Any]]]:
    """Clients that wait for a message, blocking and with asyncio."""

    async def wait() -> Any:
        async with AsyncQueueClient(url_of(pair)) as client:
            return await client.read_with_poll("letters", max_poll_seconds=SECONDS)

    with QueueClient(url_of(pair)) as client, ThreadPoolExecutor() as pool:
        client.create("letters")
        yield [
            pool.submit(client.read_with_poll, "letters", max_poll_seconds=SECONDS),
            pool.submit(asyncio.run, wait()),
        ]


def test_every_client_goes_on_at_the_successor(
    pair: Pair, waiting: list[Future[Any]], tmp_path: Path, ledger: Ledger, started: Children
) -> None:
    url, gate = url_of(pair), tmp_path / "gate"
    worker = Worker(url, tmp_path, "prefork", pool="prefork", concurrency=2, result_backend="opendata")
    started.add(worker)
    worker.wait_ready()
    with sender(url) as app:
        app.conf.result_backend = "opendata"
        app.send_task("farm.hold_late", (str(ledger), "long", str(gate)))
        ledger.wait_for("long began")
        killing = threading.Timer(0, os.kill, (pair.brokers[0].pid, 9))
        sums = [app.send_task("farm.add", (number, 1), ignore_result=False) for number in range(10)]
        with kombu_opendata.batch(app):
            for number in range(600):
                app.send_task("farm.note", (str(ledger), f"batch{number}"))
                if number == 300:
                    killing.start()
        for number in range(20):
            app.send_task("farm.note", (str(ledger), f"single{number}"))
        assert [one.get(timeout=SECONDS) for one in sums] == list(range(1, 11))
    killing.join()
    with QueueClient(url) as client:
        client.send_batch("letters", [1, 2])
    assert sorted(message.body for future in waiting for message in future.result(SECONDS)) == [1, 2]
    gate.touch()
    lines = ["long began", "long ended", *(f"batch{n}" for n in range(600)), *(f"single{n}" for n in range(20))]
    ledger.wait_count(len(lines))
    assert worker.terminate() == 0
    assert "Traceback" not in worker.log.read_text()
    ledger.assert_once(lines)


def test_a_staged_job_goes_on_at_the_successor(pair: Pair) -> None:
    parts = [[b"%d" % (1000 * part + number) for number in range(1000)] for part in range(4)]
    sink = Sink(url_of(pair), "q")
    with StagingClient(url_of(pair), Options(reconnect_timeout=60)) as driver:
        batches = stage(as_objects(driver.staging_target()), "job", parts)
        assert driver.commit_job("job", batches).added
        pair.brokers[0].kill()  # while the rows are put into their queue
        assert not driver.commit_job("job", batches).added
    sink.take(4000, SECONDS)
    sink.close()
    assert sink.got == Counter(body for part in parts for body in part)
