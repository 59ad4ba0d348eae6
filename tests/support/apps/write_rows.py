"""Opens a database as its writer, checks the rows of earlier runs, and adds some: python -m … URL RUN END.

Each run writes tables and waits until SlateDB has compacted one of them. With the end "kill" it dies with rows in the
WAL only, with "close" it closes the database. It prints the number of rows that it found.
"""

from __future__ import annotations

import asyncio
import os
import sys

from kombu_opendata.storage.records import keys
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings
from kombu_opendata.storage.slatedb.store_writer import SlateStore
from tests.support.waiting import until

ROWS = 40
SETTINGS = SlateSettings(compactor_poll_ms=50, commit_compaction_ms=50, manifest_poll_ms=50)


async def main(url: str, run: int, end: str) -> None:
    store = await SlateStore.open(url, "db", settings=SETTINGS)
    rows = await store.scan(b"row", b"rox")
    assert len(rows) == ROWS * run, (len(rows), run)
    assert all(value == key * 50 for key, value in rows)
    tables: set[str] = set()
    for number in range(ROWS):
        await write(store, b"row-%03d-%03d" % (run, number))
        if number in (10, 20, 30):
            tables.add(await flush(store))

    async def is_compacted() -> bool:
        if not tables <= await unsorted(store):
            return True
        tables.add(await flush(store))  # SlateDB compacts no single table
        return False

    await until(is_compacted, poll_seconds=0.2)
    await store.collect_garbage(wal_min_age_seconds=0, compacted_min_age_seconds=0)
    assert len(await store.scan(b"row", b"rox")) == ROWS * (run + 1)
    print(len(rows), flush=True)
    if end == "kill":
        os._exit(0)
    await store.close()


async def flush(store: SlateStore) -> str:
    """Write a table; returns its id, or an empty text if it was compacted already."""
    before = await unsorted(store)
    await store.flush_memtable(keys.STORE_HEADER_KEY)
    return max(await unsorted(store) - before, default="")


async def unsorted(store: SlateStore) -> set[str]:
    """The tables that were not compacted yet."""
    found = await store.admin.manifest()
    assert found is not None
    return set(found.unsorted)


async def write(store: SlateStore, key: bytes) -> None:
    """As a checkpoint does, which also writes its time."""
    batch = store.batch()
    batch.put(key, key * 50)
    batch.put(keys.NEWEST_TIME_KEY, key)
    await store.write(batch)
    await store.flush_wal()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
