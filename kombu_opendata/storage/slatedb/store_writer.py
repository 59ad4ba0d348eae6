"""The writer of a SlateDB database: batches, flushes, garbage collection.

The binding's errors are translated to this package's. SlateDB's own collector is off: its schedule knows nothing of
what this package has made safe against power loss, so the broker decides when to collect.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from ... import errors
from ..clock import Clock, SystemClock
from . import ffi
from .admin import SlateAdmin
from .databases import build
from .ffi import Batch
from .object_store import Location, locate
from .slate_errors import translated
from .slate_settings import SlateSettings
from .store_reads import Reads

_CACHE_ID = 1
_BLOCKS_IN_A_FOLDER, _BLOCKS_ELSEWHERE = 8 << 20, 32 << 20
#: how often a database that was closed a moment ago is tried to be opened again, one second after the other
_REOPEN_TRIES = 10
#: how long reads may go on that a reopening waits for
_READS_SECONDS = 1.0


class SlateStore(Reads):
    """The one writer of a database. Opening a second one, in whatever process, fences the first."""

    @classmethod
    async def open(
        cls,
        url: str,
        path: str,
        *,
        settings: SlateSettings | None = None,
        deadline_seconds: float = 30,
        store_options: dict[str, str] | None = None,
    ) -> SlateStore:
        """Open the database `path` in the store at `url` (see :mod:`.object_store`); create it when it is missing.

        Raises:
            errors.StoreUnwritable: a local folder can't be created or written.
            errors.StoreError: the store did not answer within `deadline_seconds`, or refused.
            errors.CorruptRecord: the database is damaged.
        """
        settings = settings or SlateSettings()
        location = locate(url, path, store_options)
        blocks = settings.block_cache_bytes
        if blocks is None:
            blocks = _BLOCKS_ELSEWHERE if location.folder is None else _BLOCKS_IN_A_FOLDER
        u = ffi.public()
        cache = u.DbCache.new_split_cache(_moka(blocks), _moka(settings.index_cache_bytes)) if blocks else None
        recorder = u.DefaultMetricsRecorder() if settings.metrics else None
        builder = _builder(location, settings, cache, recorder)
        opened = cls(location, await build(builder, url, deadline_seconds), await ffi.select())
        opened.settings, opened._cache, opened._recorder = settings, cache, recorder
        return opened

    settings = SlateSettings()
    _cache: Any = None
    _recorder: Any = None
    _flushed_at: int | None = None

    async def reopen(self, settings: SlateSettings, *, deadline_seconds: float = 30) -> bool:
        """Close the database and open it with other settings, those of caches excepted, which stay as they are.

        Reads that come meanwhile wait; a write must not.

        Returns:
            False when a read did not end within a second: then nothing was done.

        Raises:
            errors.StoreFenced: another process has become the writer, or was it between the closing and the opening.
            errors.StoreError: the database can't be opened again, and is closed.
        """
        await self.flush_memtable()  # nothing else tells that another one is the writer now
        written = self.durable_seq
        self._reopened = asyncio.Event()
        try:
            async with asyncio.timeout(_READS_SECONDS):
                while self._ongoing.any:  # noqa: ASYNC110 - to tell would cost every read
                    await asyncio.sleep(0.01)
            with translated(self.url):
                await self._db.shutdown()
            for tries in range(_REOPEN_TRIES - 1, -1, -1):
                try:
                    builder = _builder(self._location, settings, self._cache, self._recorder)
                    self._db = await build(builder, self.url, deadline_seconds)
                    break
                except errors.StoreError:
                    if not tries:
                        raise
                    await asyncio.sleep(1)
            if self.durable_seq != written:  # what this process knows of the store is no longer true
                await self.close()
                raise errors.StoreFenced(
                    f"another process wrote to {self.url} meanwhile; this one must stop", url=self.url
                )
        except TimeoutError:
            return False
        finally:
            self._reopened.set()
            self._reopened = None
        self.settings = settings
        return True

    @functools.cached_property
    def admin(self) -> SlateAdmin:
        """Calls about this database: checkpoints, tables, garbage."""
        return SlateAdmin(self._location)

    @functools.cached_property
    def clock(self) -> Clock:
        """Wall clock and time that passes, whichever is further: checkpoints expire by the one, and a process that was
        stopped is told by the other."""
        return SystemClock()

    def metrics(self) -> list[Any]:
        """SlateDB's own metrics as they are now, as the binding gives them; none unless the settings ask for them.

        May be called from any thread, and goes on after :meth:`close`.
        """
        return list(self._recorder.snapshot()) if self._recorder is not None else []

    def batch(self) -> Batch:
        """A new empty batch."""
        return self._binding.batch()

    async def write(self, batch: Batch) -> None:
        """Apply `batch`: visible to this process's reads when it returns, durable after the next flush."""
        if len(batch):
            with translated(self.url):
                await self._db.write(batch.raw)

    async def flush_wal(self) -> None:
        """Make everything written so far durable."""
        u = ffi.public()
        with translated(self.url):
            await self._db.flush_with_options(u.FlushOptions(flush_type=u.FlushType.WAL))

    async def flush_memtable(self, again: bytes = b"\0") -> None:
        """Write the memtable out as a sorted table; only then can older WAL files be collected.

        SlateDB adds the table to the current manifest, so what is read afterwards is what that refers to. The row of
        the key ``again`` is written as it is, or deleted if there is none, so that there is something to write.
        """
        u = ffi.public()
        began = self.clock.now_ms()
        batch = self.batch()
        value = await self.get(again)
        if value is None:
            batch.delete(again)
        else:
            batch.put(again, value)
        await self.write(batch)
        with translated(self.url):
            await self._db.flush_with_options(u.FlushOptions(flush_type=u.FlushType.MEM_TABLE))
        self._flushed_at = began
        self._ongoing.new_period()

    @property
    def durable_seq(self) -> int:
        """SlateDB's sequence number up to which everything is durable."""
        return int(self._db.status().durable_seq)

    async def collect_garbage(
        self,
        *,
        wal_min_age_seconds: float = 5,
        manifest_min_age_seconds: float = 60,
        compacted_min_age_seconds: float | None = None,
    ) -> bool:
        """Delete the files that neither the current manifest nor a checkpoint needs and that are older than these ages.

        This process reads from a manifest that may be older than the current one, as SlateDB looks at that only now and
        then. So tables are deleted only if :meth:`flush_memtable` has ended a moment ago and all reads under way began
        after it: what these see was replaced later, if at all, and the compaction's checkpoint still keeps it. Where
        that does not hold, the tables wait for the next call.

        Returns:
            Whether tables were deleted, too.
        """
        may_delete = self._flushed_at is not None and not self._ongoing.any_older and (
            self.clock.now_ms() - self._flushed_at < 1000 * self.settings.replaced_seconds / 2
        )  # fmt: skip
        if compacted_min_age_seconds is None:
            compacted_min_age_seconds = self.settings.table_min_age_seconds
        await self.admin.collect_garbage(
            tables=may_delete,
            wal_min_age_seconds=wal_min_age_seconds,
            manifest_min_age_seconds=manifest_min_age_seconds,
            compacted_min_age_seconds=compacted_min_age_seconds,
        )
        return may_delete


def _builder(location: Location, settings: SlateSettings, cache: Any, recorder: Any) -> Any:
    """What opens the writer."""
    builder = ffi.public().DbBuilder(location.path, location.store)
    builder.with_settings(settings.as_binding())
    if cache is not None:
        builder.with_db_cache(cache, _CACHE_ID)
    else:
        builder.with_db_cache_disabled()
    if recorder is not None:
        builder.with_metrics_recorder(recorder)
    return builder


def _moka(capacity: int) -> Any:
    """A cache that holds so many bytes."""
    u = ffi.public()
    return u.DbCache.new_moka_cache(u.MokaCacheOptions(max_capacity=capacity, time_to_live=None, time_to_idle=None))
