"""The cache of a bucket's tables on a local disk: reads come from it, and it can't break anything."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest

from kombu_opendata.errors import StoreUnwritable
from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.slatedb.caches import DiskCache
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings
from kombu_opendata.storage.slatedb.store_writer import SlateStore
from tests.support.waiting import until

from ..support.disks import small_disk
from ..support.s3 import BUCKET, S3

ROWS, ROW_BYTES = 64, 64 << 10


async def opened(folder: Path, name: str, cache_bytes: int = 64 << 20) -> Engine:
    """An engine that has no other cache."""
    slate = SlateSettings(block_cache_bytes=0, cache_bytes=cache_bytes)
    return await Engine.open(
        f"s3://{BUCKET}/cached", name, SystemClock(), EngineSettings(cache_dir=folder, slate=slate)
    )


def key(number: int) -> bytes:
    return b"\xff test %d" % number


async def fill(store: SlateStore) -> None:
    """Write rows into a table."""
    batch, values = store.batch(), random.Random(1)
    for number in range(ROWS):
        batch.put(key(number), values.randbytes(ROW_BYTES))
    await store.write(batch)
    await store.flush_wal()
    await store.flush_memtable()


async def table_requests(s3: S3, store: SlateStore, rows: int = ROWS) -> int:
    """How many requests for tables it takes to read rows, by default all of them."""
    since = len(s3.proxy.log)
    for number in range(rows):
        assert len(await store.get(key(number)) or b"") == ROW_BYTES
    return s3.proxy.counts(since)["GET compacted"]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_reads_come_from_the_disk_also_after_a_restart(s3: S3, tmp_path: Path) -> None:
    async def main() -> None:
        engine = await opened(tmp_path, "reads")
        await fill(engine.store)
        assert await table_requests(s3, engine.store) == 0
        assert size_of(tmp_path) > ROWS * ROW_BYTES
        await engine.close()
        engine = await opened(tmp_path, "reads")
        assert await table_requests(s3, engine.store) == 0
        shutil.rmtree(engine.settings.slate.cache_folder)
        assert await table_requests(s3, engine.store) > 0
        assert await table_requests(s3, engine.store) == 0  # it was filled again
        await engine.close()

    asyncio.run(main())


def test_it_stays_below_its_size(s3: S3, tmp_path: Path) -> None:
    limit = 2 << 20

    async def main() -> None:
        engine = await opened(tmp_path, "bounded", limit)
        for _ in range(3):
            await fill(engine.store)
            await table_requests(s3, engine.store)
        await until(lambda: size_of(tmp_path) <= limit + (1 << 20))
        await engine.close()

    asyncio.run(main())


def test_a_full_disk_only_costs_requests(s3: S3) -> None:
    async def main(folder: Path) -> None:
        engine = await opened(folder, "full")
        await fill(engine.store)
        assert await table_requests(s3, engine.store, 8) > 0
        await engine.close()

    with small_disk("size=1m", "mode=700") as folder:
        asyncio.run(main(folder / "cache"))


def test_two_brokers_have_folders_of_their_own(tmp_path: Path) -> None:
    first, second = DiskCache(tmp_path, "s3://b", "db"), DiskCache(tmp_path, "s3://b", "db")
    other = DiskCache(tmp_path, "s3://c", "db")
    assert len({first.folder, second.folder, other.folder}) == 3
    folder = first.folder
    first.close()
    again = DiskCache(tmp_path, "s3://b", "db")
    assert again.folder == folder
    for cache in (again, second, other):
        cache.close()


def test_it_is_emptied_after_a_start_of_the_host(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, "s3://b", "db")
    (cache.folder / "part").write_bytes(b"x")
    cache.close()
    cache = DiskCache(tmp_path, "s3://b", "db")
    assert (cache.folder / "part").exists()
    cache.close()
    cache.folder.with_name(f"{cache.folder.name}.lock").write_text("another boot")
    DiskCache(tmp_path, "s3://b", "db").close()
    assert not (cache.folder / "part").exists()


def test_a_folder_that_others_may_write_or_that_is_a_file_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(StoreUnwritable, match=r"no other user may write to it: chmod 700"):
        DiskCache(folder, "s3://b", "db")
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnwritable, match=r"no cache on disk: .* exists"):
        DiskCache(tmp_path / "file", "s3://b", "db")
    if os.geteuid() == 0:
        folder.chmod(0o700)
        os.chown(folder, 65534, 65534)
        with pytest.raises(StoreUnwritable, match=r"must belong to this user"):
            DiskCache(folder, "s3://b", "db")
