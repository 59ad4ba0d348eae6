"""A reader beside a broker that goes on: what it reads stays, until it is closed or dead."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from kombu_opendata.broker.standby.store_lock import StoreLock
from kombu_opendata.errors import StoreChanged, StoreError
from kombu_opendata.offline import OfflineStore, open_store
from kombu_opendata.offline.files.checkpoint_hold import Hold
from kombu_opendata.offline.files.store_location import find_store
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import World
from tests.support.unprivileged import needs_root, unprivileged
from tests.support.waiting import until

SETTINGS = EngineSettings(
    sync=False, tidy_interval_seconds=0.2, journal_segment_bytes=64 << 10,
    slate=SlateSettings(
        l0_sst_size_bytes=100_000, sorted_sst_size_bytes=200_000, compactor_poll_ms=100, commit_compaction_ms=100,
        replaced_seconds=1, table_min_age_seconds=0.5,
    ),
)  # fmt: skip
_SECONDS = 60


@asynccontextmanager
async def broker(root: Path) -> AsyncIterator[World]:
    """An engine that holds the lock of a broker's folder, with messages in a queue."""
    lock = StoreLock(root)
    lock.acquire()
    world = World(root, SETTINGS)
    await world.open()
    world.engine.definitions.declare_queue("q", QueueSettings())
    maintenance = asyncio.create_task(world.engine.upkeep.run())
    try:
        await fill(world)
        yield world
    finally:
        maintenance.cancel()
        await asyncio.wait([maintenance])
        await world.engine.close()
        lock.release()


async def fill(world: World) -> None:
    for number in range(40):
        for _ in range(20):
            world.publish("q", envelope=random.Random(number).randbytes(1000))
        await world.engine.commits.commit()
        await world.engine.commits.checkpoint()


async def replace(engine: Engine, names: set[str]) -> None:
    """Wait until compactions have replaced all these tables."""

    async def are_replaced() -> bool:
        manifest = await engine.store.admin.manifest()
        assert manifest is not None
        if names & manifest.tables.keys():
            await engine.upkeep.tidy()
            return False
        return True

    await until(are_replaced, _SECONDS)


async def have_expired(engine: Engine) -> bool:
    """Return True if none of the compactions' own checkpoints counts any more."""
    found = [one.expires_at_ms for one in await engine.store.admin.checkpoints() if not one.name]
    return all(expires_at_ms is not None and expires_at_ms < 1000 * time.time() for expires_at_ms in found)


def tables(root: Path) -> set[str]:
    return {file.stem for file in (root / "default" / "compacted").iterdir()}


def deleted(engine: Engine, root: Path, names: set[str]) -> Callable[[], Awaitable[bool]]:
    """A condition: the broker's upkeep has deleted these tables."""

    async def are_deleted() -> bool:
        if names & tables(root):
            await engine.upkeep.tidy()
        return not names & tables(root)

    return are_deleted


def files(root: Path) -> list[Path]:
    return [root, *sorted(root.rglob("*"))]


async def forget(engine: Engine) -> None:
    """Remove all messages, and write others, so that what was there is compacted."""
    await engine.definitions.purge(engine.state.queues["q"])
    await engine.commits.checkpoint()


async def kept(engine: Engine) -> set[str]:
    """The tables that a named checkpoint keeps."""
    (held,) = [one.manifest_id for one in await engine.store.admin.checkpoints() if one.name]
    manifest = await engine.store.admin.manifest(held)
    assert manifest is not None
    return set(manifest.tables)


def test_what_is_read_stays_until_the_reader_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as world:
            await world.engine.upkeep.tidy()
            reader = await open_store(tmp_path, who="test")
            assert reader.unheld is None
            held = await kept(world.engine)
            batches = reader.scan_batches(b"", None, batch=10)
            rows = len(await anext(batches))
            await forget(world.engine)
            await fill(world)
            await replace(world.engine, held)
            await until(partial(have_expired, world.engine), _SECONDS)
            await world.engine.upkeep.tidy()
            assert held <= tables(tmp_path)
            await world.engine.disk_space.read()
            report = world.engine.disk_space.report()
            assert [one["name"].startswith("test on ") for one in report["checkpoints"] if one["name"]] == [True]
            assert report["waiting_bytes"] > 100_000
            async for pairs in batches:
                rows += len(pairs)
            assert rows > 1600  # a payload and metadata each
            await reader.close()
            await until(deleted(world.engine, tmp_path, held), _SECONDS)

    asyncio.run(main())


def test_a_broker_that_begins_while_a_store_is_read_damages_nothing(tmp_path: Path) -> None:
    """Nobody held the files, as there was no broker when the store was opened."""

    async def read(reader: OfflineStore) -> None:
        with pytest.raises(StoreChanged, match="was written while it was read"):
            async for _rows in reader.scan_batches(b"", None):
                pass
        with pytest.raises(StoreChanged):
            await reader.get(keys.payload_key(1))
        assert (reader.problems, reader.unreadable) == ([], [])

    async def main() -> None:
        async with broker(tmp_path):
            pass
        reader, other = [await open_store(tmp_path, tolerate_damage=True) for _ in range(2)]
        assert (reader.hold, reader.problems) == (None, [])
        read_from = tables(tmp_path)
        async with broker(tmp_path) as world:
            await forget(world.engine)
            await fill(world)
            await until(deleted(world.engine, tmp_path, read_from), _SECONDS)
            await read(reader)
        await read(other)
        await reader.close()
        await other.close()

    asyncio.run(main())


def test_what_a_dead_reader_held_goes_in_time(tmp_path: Path) -> None:
    async def names(world: World) -> list[str]:
        await world.engine.disk_space.read()
        return [one["name"] for one in world.engine.disk_space.report()["checkpoints"] if one["name"]]

    async def main() -> None:
        async with broker(tmp_path) as world:
            hold = Hold(find_store(tmp_path), "test", lifetime_seconds=2.0)
            await hold.before()
            while not await hold.take():  # a compaction came in between, as on a busy machine
                hold = Hold(find_store(tmp_path), "test", lifetime_seconds=2.0)
                await hold.before()
            began = asyncio.get_running_loop().time()

            async def is_renewed() -> bool:
                assert len(await names(world)) == 1
                return asyncio.get_running_loop().time() > began + 3

            await until(is_renewed)
            hold._released.set()  # as if its process had ended

            async def is_gone() -> bool:
                return not await names(world)

            await until(is_gone, _SECONDS)

    asyncio.run(main())


def test_without_a_broker_nothing_is_held(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path):
            pass
        before = files(tmp_path)
        async with await open_store(tmp_path) as reader:
            assert reader.hold is None
            assert reader.unheld is None
        assert files(tmp_path) == before

    asyncio.run(main())


@needs_root
def test_who_may_not_write_reads_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker(tmp_path) as world:
            for path in [*files(tmp_path), *(one for one in tmp_path.parents if one != Path("/"))]:
                os.chmod(path, path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
            before = await world.engine.store.admin.checkpoints()
            with unprivileged():
                reader = await open_store(tmp_path)
                assert "another user" in str(reader.unheld)
                assert await reader.scan(b"", None, limit=1)
                await reader.close()
            assert len(await world.engine.store.admin.checkpoints()) >= len(before)

    asyncio.run(main())


def test_a_store_that_refuses_the_checkpoint_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with credentials for reading only."""

    async def main() -> None:
        async with broker(tmp_path):

            async def refuse(*_: object) -> None:
                raise StoreError("403 Forbidden")

            monkeypatch.setattr("kombu_opendata.storage.slatedb.slate_admin.SlateAdmin.create_checkpoint", refuse)
            async with await open_store(tmp_path) as reader:
                assert reader.unheld == "403 Forbidden"
                assert await reader.scan(b"", None, limit=1)

    asyncio.run(main())
