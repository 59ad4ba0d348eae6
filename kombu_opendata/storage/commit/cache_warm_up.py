"""Cache warm-up before a recovery from a bucket, by many parallel requests instead of a sequence of few."""

from __future__ import annotations

import asyncio

from ..clock import Clock
from ..records import keys
from ..slatedb.caches import BlockCache
from ..slatedb.object_store import locate
from ..slatedb.slate_settings import SlateSettings
from ..slatedb.store_reads import ReadOnlyStore, Reads
from ..state.store_state import StoreState
from . import recovery

#: kinds that recovery reads; in a small table, their blocks also hold the records of the other kinds
_SPREAD = [
    keys.RecordKind.ACTIVE, keys.RecordKind.DONE, keys.RecordKind.FAILED, keys.RecordKind.CONFIG,
    keys.RecordKind.PRODUCER, keys.RecordKind.LEASES, keys.RecordKind.HISTORY_LOG, keys.RecordKind.QUEUE_COUNTS,
]  # fmt: skip
_ROWS = 1000


async def warm_up(store: Reads) -> None:
    """Fill the caches with the records that recovery reads: first the tables' indexes, then a block of each kind.

    One request to a bucket takes long, but many parallel requests take no longer than one.
    """
    await store.scan(b"", None, limit=1, read_ahead_bytes=1 << 14)
    await store.scan_many([keys.kind_range(kind) for kind in _SPREAD], 1)


async def warmed_cache(url: str, instance: str, settings: SlateSettings, clock: Clock) -> BlockCache:
    """Return a cache with the records that recovery will read, while another process is still the writer.

    Changes that are only in the WAL are left out: the next writer loads these when it opens the database.

    Raises:
        StoreError: the database can't be read.
    """
    cache = BlockCache(settings, locate(url, instance, create=False))
    store = await ReadOnlyStore.open(url, instance, skip_wal=True, cache=cache)
    try:
        await warm_up(store)
        await asyncio.gather(
            store.get_many([keys.STORE_HEADER_KEY, keys.HISTORY_HEAD_KEY]),
            store.scan(*keys.kind_range(keys.RecordKind.HISTORY_LOG), limit=1, descending=True),
            store.scan(*keys.kind_range(keys.RecordKind.HISTORY_HEADERS), limit=_ROWS),
            recovery.rebuild(StoreState(), store, [], clock),
        )
    finally:
        await store.close()
    return cache
