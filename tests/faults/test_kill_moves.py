"""kill -9 of the broker in the middle of a move or a copy: each message is once where it should be.

The instants come from a seed that is printed; ``FAULT_SEED=… pytest …`` takes the same ones again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from kombu_opendata import QueueClient

from ..support.broker import EmbeddedBroker
from ..support.processes import wait_until
from ..support.seeds import seeded_random

pytestmark = pytest.mark.slow

#: a client that outlasts several kills within one outage
patient = partial(QueueClient, start_timeout=60, reconnect_timeout=60)


def fill(client: QueueClient, total: int) -> list[int]:
    for name in ("from", "to"):
        client.create(name)
    return [id for start in range(0, total, 5000) for id in client.send_batch("from", range(start, start + 5000))]


def waiting(client: QueueClient, queue: str) -> list[int]:
    return [one.id for one in client.iter_by_state(queue, "available")]


@pytest.mark.parametrize("what", ["move", "copy"])
def test_each_message_is_once_where_it_should_be(store_folder: Path, broker_url: str, what: str) -> None:
    dice, broker = seeded_random(), EmbeddedBroker(store_folder)
    total, kills = 60_000, 5
    limit = total - 700
    with patient(broker_url) as client, patient(broker_url) as watcher, ThreadPoolExecutor() as pool:
        ids = fill(client, total)
        work = pool.submit(getattr(client, f"{what}_messages"), "from", "to", limit=limit)
        for threshold in sorted(dice.randrange(1, total // 2) for _ in range(kills)):
            wait_until(lambda: watcher.metrics("to").ready >= threshold, 60, "progress")  # noqa: B023
            assert not work.done(), "it was not cut"
            broker.kill()
        assert work.result(120).count == limit
        there, left = waiting(watcher, "to"), waiting(watcher, "from")
        assert sorted(there) == ids[:limit]
        assert sorted(left) == (ids if what == "copy" else ids[limit:])
        figures = watcher.metrics("from").counts["moved"], watcher.metrics("to").counts["published"]
        assert figures == (0 if what == "copy" else limit, limit)
