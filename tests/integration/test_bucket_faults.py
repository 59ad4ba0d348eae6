"""A store in a bucket, through a proxy that delays, fails, cuts and answers late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.storage.slatedb.store_writer import SlateStore

from ..support.processes import children
from ..support.s3 import BUCKET, S3, s3_server
from ..support.s3_proxy import Fault

obstore = pytest.importorskip("obstore", reason="obstore is not installed: pip install kombu-opendata[objectstore]")
pytest.importorskip("moto", reason="moto is not installed: pip install kombu-opendata[test]")

RACERS = 16


@pytest.fixture(scope="module")
def s3(module_store_folder: Path) -> Iterator[S3]:
    with children() as processes, s3_server(processes, module_store_folder) as found:
        yield found


def test_the_server_honours_conditional_puts(s3: S3) -> None:
    """What SlateDB's fencing rests on: of many that create or replace an object at once, one succeeds."""
    store = obstore.store.S3Store(BUCKET)
    barrier = threading.Barrier(RACERS)

    def race(number: int, key: str, mode: Any) -> bool:
        barrier.wait()
        try:
            obstore.put(store, key, b"%d" % number, mode=mode)
        except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        for key in ("race/1", "race/2", "race/3"):
            assert sum(pool.map(lambda number, key=key: race(number, key, "create"), range(RACERS))) == 1
            version = {"e_tag": obstore.head(store, key)["e_tag"]}
            assert (
                sum(pool.map(lambda number, key=key, version=version: race(99 + number, key, version), range(RACERS)))
                == 1
            )


async def written(s3: S3, path: str) -> SlateStore:
    """A store with one row that is durable."""
    store = await SlateStore.open(f"s3://{BUCKET}/faults", path)
    batch = store.batch()
    batch.put(b"k", b"0")
    await store.write(batch)
    await store.flush_wal()
    return store


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.INTERNAL, Fault.CUT, Fault.CUT_ANSWER], ids=lambda f: f.name)
def test_a_put_that_failed_once_is_repeated_and_not_taken_for_another_writer(s3: S3, fault: Fault) -> None:
    """After a cut answer the repeated put finds the object of the first."""

    async def run() -> None:
        store = await written(s3, fault.name)
        happened = s3.proxy.once(fault, lambda request: request.method == "PUT" and request.kind == "wal")
        batch = store.batch()
        batch.put(b"k", b"1")
        await store.write(batch)
        await store.flush_wal()
        assert happened.is_set()
        await store.flush_memtable()
        await store.close()
        again = await SlateStore.open(f"s3://{BUCKET}/faults", fault.name)
        assert await again.get(b"k") == b"1"
        await again.close()

    asyncio.run(run())
