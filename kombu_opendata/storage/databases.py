"""The databases of a store, one for each instance: their opening, with the journals and files beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from ..staging.batch_format import random_token
from ..staging.folder import LocalFolder
from ..staging.folder_url import StagedFolder
from .clock import Clock
from .commit import recovery
from .commit.journal import Journal
from .commit.payload_segments import BucketSegments, LocalSegments, Segments
from .commit.store_files import StoreFiles, prepare
from .engine_settings import EngineSettings
from .records import keys
from .slatedb.caches import BlockCache, DiskCache
from .slatedb.object_store import database_exists, databases, locate
from .slatedb.store_reads import ReadOnlyStore, Reads
from .slatedb.store_writer import SlateStore
from .state.store_state import StoreState

#: kinds that recovery reads; in a small table, their blocks also hold the records of the other kinds
_SPREAD = [
    keys.RecordKind.ACTIVE, keys.RecordKind.DONE, keys.RecordKind.FAILED, keys.RecordKind.CONFIG,
    keys.RecordKind.PRODUCER, keys.RecordKind.LEASES, keys.RecordKind.HISTORY_LOG, keys.RecordKind.QUEUE_COUNTS,
]  # fmt: skip
_ROWS = 1000


class OpenDatabase(NamedTuple):
    """An open database.

    Attributes:
        journal: None if each commit is written to the store.
        settings: the settings of its engine.
        power_lost: a power loss may have torn the end of the journal.
        segments: the payload segments; None for a store in memory.
    """

    store: SlateStore
    journal: Journal | None
    files: StoreFiles
    settings: EngineSettings
    power_lost: bool
    segments: Segments | None = None


class Databases:
    """The databases of the store at a URL, such as ``file:///folder``, ``s3://bucket/prefix`` or ``memory://name``."""

    def __init__(self, url: str, new_token: Callable[[], str] = random_token) -> None:
        self.url, self._new_token = url, new_token

    async def exists(self, instance: str) -> bool:
        """Return True if the store has a database of this name; raise StoreError if the store does not respond."""
        return await database_exists(self.url, instance)

    def names(self) -> list[str]:
        """Return the names of the databases in a folder; empty for other stores, which can't be listed."""
        return databases(self.url)

    async def open(
        self, instance: str, clock: Clock, settings: EngineSettings, cache: BlockCache | None = None
    ) -> OpenDatabase:
        """Open or create a database and its journal.

        Raises:
            StoreUnwritable, StoreInUse, UnsupportedFormat, CorruptRecord, StoreError: it can't be opened; the text
                gives the reason.
        """
        url, power_lost = self.url, False
        folder = Path(unquote(url.removeprefix("file://"))) / instance if url.startswith("file://") else None
        if folder is not None:
            power_lost = await prepare(
                url,
                instance,
                folder,
                sync=settings.sync,
                room_bytes=settings.journal_max_bytes,
                seconds=settings.close_seconds,
            )
        journal = disk_cache = None
        if urlsplit(url).scheme not in ("file", "memory"):
            settings, disk_cache = _for_bucket(settings, url, instance)
        store = await SlateStore.open(url, instance, settings=settings.slate, disk_cache=disk_cache, cache=cache)
        try:
            if folder is None:
                await warm_up(store)
            await recovery.check_header(store, instance, clock.now_ms())
            if folder is not None:
                journal = Journal(
                    folder.with_name(f"{instance}.journal"),
                    segment_bytes=settings.journal_segment_bytes,
                    max_bytes=settings.journal_max_bytes,
                    sync=settings.sync,
                )
        except BaseException:
            await store.close()
            raise
        segments = _segments(url, instance, self._new_token(), settings)
        return OpenDatabase(store, journal, StoreFiles(folder, sync=settings.sync), settings, power_lost, segments)

    async def read_ahead(self, instance: str, settings: EngineSettings, clock: Clock) -> BlockCache:
        """Return a cache with the records that recovery will read, while another process is still the writer.

        Changes that are only in the WAL are left out: the next writer loads these when it opens the database.

        Raises:
            StoreError: the database can't be read.
        """
        cache = BlockCache(settings.slate.for_bucket(), locate(self.url, instance, create=False))
        store = await ReadOnlyStore.open(self.url, instance, skip_wal=True, cache=cache)
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


def _segments(url: str, instance: str, token: str, settings: EngineSettings) -> Segments | None:
    """Return the payload segments of a new run of a broker; None for a store that has no place for them."""
    scheme, sizes = urlsplit(url).scheme, settings.sizes
    folder = StagedFolder(url, instance)
    if scheme == "file":
        local = folder.open()
        assert isinstance(local, LocalFolder)
        return LocalSegments(
            local, token, sizes.large_body_bytes, sizes.segment_bytes, sizes.own_segment_bytes, sync=settings.sync
        )
    if scheme == "memory" or find_spec("obstore") is None:
        return None
    return BucketSegments(folder, token, sizes.bucket_large_body_bytes)


def _for_bucket(settings: EngineSettings, url: str, instance: str) -> tuple[EngineSettings, DiskCache | None]:
    """Return the settings for a store in a bucket, and the cache of its tables on the local disk, if there is one."""
    slate, disk_cache = settings.slate.for_bucket(), None
    if settings.cache_dir is not None:
        disk_cache = DiskCache(settings.cache_dir, url, instance)
        slate = replace(slate, cache_folder=str(disk_cache.folder))
    return replace(settings, slate=slate), disk_cache


async def warm_up(store: Reads) -> None:
    """Fill the caches with the records that recovery reads: first the tables' indexes, then a block of each kind.

    One request to a bucket takes long, but many parallel requests take no longer than one.
    """
    await store.scan(b"", None, limit=1, read_ahead_bytes=1 << 14)
    await store.scan_many([keys.kind_range(kind) for kind in _SPREAD], 1)
