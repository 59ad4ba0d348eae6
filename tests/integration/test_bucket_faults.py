"""A store in a bucket, through a proxy that delays, fails, cuts and answers late."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kombu_opendata.errors import StoreFenced
from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.slatedb.store_writer import SlateStore
from kombu_opendata.storage.state.store_state import QueueSettings

from ..support.s3 import BUCKET, S3
from ..support.s3_proxy import Fault, Request

obstore = pytest.importorskip("obstore", reason="obstore is not installed: pip install kombu-opendata[objectstore]")

RACERS = 16


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


async def written(path: str) -> SlateStore:
    """A store with one row that is durable."""
    store = await SlateStore.open(f"s3://{BUCKET}/faults", path)
    await write(store, b"0")
    return store


async def write(store: SlateStore, value: bytes) -> None:
    """Make a row durable."""
    batch = store.batch()
    batch.put(b"k", value)
    await store.write(batch)
    await store.flush_wal()


FAULTS = [Fault.SLOW_DOWN, Fault.INTERNAL, Fault.CUT, Fault.CUT_ANSWER, Fault.LATE]


def is_wal_put(request: Request) -> bool:
    return request.method == "PUT" and request.kind == "wal"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_put_that_failed_once_is_repeated_and_not_taken_for_another_writer(
    s3: S3, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    """After a cut or a late answer, the repeated put finds the object of the first."""
    monkeypatch.setenv("AWS_TIMEOUT", "1s")  # after which the client gives a request up

    async def run() -> None:
        store = await written(fault.name)
        happened = s3.proxy.once(fault, is_wal_put)
        began = len(s3.proxy.log)
        await write(store, b"1")
        assert happened.is_set()
        statuses = [request.status for request in s3.proxy.log[began:] if is_wal_put(request)]
        assert statuses[-1] == (412 if fault in (Fault.CUT_ANSWER, Fault.LATE) else 200)
        s3.proxy.go_on()
        await store.flush_memtable()
        await store.close()
        again = await SlateStore.open(f"s3://{BUCKET}/faults", fault.name)
        assert await again.get(b"k") == b"1"
        await again.close()

    asyncio.run(run())


def test_a_put_that_finds_another_writers_object_means_that_this_one_is_fenced(s3: S3) -> None:
    """A store that does not answer for a while, and has another writer then."""

    async def run() -> None:
        first = await written("fenced")
        happened = s3.proxy.once(Fault.SILENCE, is_wal_put)
        writing = asyncio.create_task(write(first, b"lost"))
        assert await asyncio.to_thread(happened.wait, 30)
        second = await SlateStore.open(f"s3://{BUCKET}/faults", "fenced")
        assert not writing.done()
        s3.proxy.go_on()
        with pytest.raises(StoreFenced):
            await asyncio.wait_for(writing, 30)
        await write(second, b"2")
        assert await second.get(b"k") == b"2"
        await first.close()
        await second.close()

    asyncio.run(run())


def test_garbage_that_takes_long_to_collect_does_not_spoil_a_clean_end(s3: S3) -> None:
    """All is stored by then, so what is left of it is the next broker's."""

    async def end_meanwhile() -> None:
        engine = await Engine.open(f"s3://{BUCKET}/end", "default", SystemClock(), EngineSettings(close_seconds=2))
        engine.definitions.declare_queue("q", QueueSettings())
        await engine.commits.commit()
        s3.proxy.rule = lambda request: Fault.SILENCE if request.kind == "list" else None  # garbage is found by lists
        await engine.close()
        assert engine.commits.failure is None
        s3.proxy.go_on()
        again = await Engine.open(f"s3://{BUCKET}/end", "default", SystemClock(), EngineSettings())
        assert list(again.state.queues) == ["q"]
        await again.close()

    asyncio.run(end_meanwhile())
