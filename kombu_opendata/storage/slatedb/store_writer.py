"""The writer of a SlateDB database: batches, flushes, garbage collection.

SlateDB's own garbage collector is off: it does not respect the files that this package has synced against a power loss,
so the broker starts each collection.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import errors
from ..clock import Clock, SystemClock
from . import clock_correction, ffi, ffi_choice
from .caches import BlockCache, DiskCache
from .ffi import WriteBatch
from .object_store import build, locate, translated
from .slate_admin import SlateAdmin
from .slate_settings import SlateSettings
from .store_reads import Reads

log = logging.getLogger(__name__)

_THREADS = Path("/proc/self/task")
_THREAD_NAME = "slatedb-"
#: beside a thread with the default value of 0, one with 3 gets a third of a contested core. The event loop waits for
#: these threads, which call Python when a call has ended: with 10, on two cores with 40 busy processes, the slowest of
#: 1,000 publishes waited for 330 to 670 ms, with 3 for 60, with 0 for 26 to 51.
_NICE = 3
#: if the clock is behind the store by at most this time, the opening waits instead of a correction
_WAIT_MS = 2000
#: attempts to reopen a database that refuses to open, a second apart
_REOPEN_TRIES = 10
#: time for which :meth:`SlateStore.reopen` waits for reads to end
_READS_SECONDS = 1.0


#: see :meth:`SlateStore.reopen`
MayOpen = Callable[[], Awaitable[None]]


class SlateStore(Reads):
    """The only writer of a database. The opening of a second one, in any process, fences the first."""

    @classmethod
    async def open(
        cls,
        url: str,
        path: str,
        *,
        settings: SlateSettings | None = None,
        disk_cache: DiskCache | None = None,
        cache: BlockCache | None = None,
        deadline_seconds: float = 30,
    ) -> SlateStore:
        """Open the database `path` in the store at `url` (see :mod:`.object_store`); create it if it is missing.

        ``disk_cache`` has the folder of the settings, and is closed with the store. ``cache`` has the blocks that a
        reader of the database has read.

        Raises:
            errors.StoreUnwritable: a local folder can't be created or written.
            errors.StoreError: the store did not respond within `deadline_seconds`, or refused.
            errors.CorruptRecord: the database is damaged.
        """
        settings = settings or SlateSettings()
        location = locate(url, path)
        store = cls(location, None, await ffi_choice.select())
        store.settings, store._cache = settings, cache or BlockCache(settings, location)
        store._recorder = ffi.public().DefaultMetricsRecorder() if settings.metrics else None
        store._disk_cache = disk_cache
        try:
            store._db = await store._build(settings, deadline_seconds)
        except BaseException:
            store._release()
            raise
        return store

    settings = SlateSettings()
    _cache: BlockCache
    _recorder: Any = None
    _disk_cache: DiskCache | None = None
    _flushed_at: int | None = None

    async def close(self) -> None:
        """Flush and close. A second call has no effect, nor has the call of a fenced writer."""
        try:
            await super().close()
        finally:
            self._release()

    def _release(self) -> None:
        if self._disk_cache is not None:
            self._disk_cache.close()

    async def _build(self, settings: SlateSettings, deadline_seconds: float = 30) -> Any:
        """Open the database as its writer, also if the clock is behind the times in it."""
        if self.url.startswith("memory:"):  # no other process writes to it
            return await self._open(settings, deadline_seconds)
        while True:
            clock = SystemClock()
            newest_ms, last_seq = await clock_correction.written(self.location, deadline_seconds)
            if (behind_ms := newest_ms - clock.now_ms()) > 0:
                await self._correct(settings, behind_ms, deadline_seconds)
                continue
            db = await self._open(settings, deadline_seconds)
            behind_ms = await clock_correction.newest_row_ms(self.location, db, last_seq) - clock.now_ms()
            if behind_ms <= 0:
                return db
            with translated(self.url):
                await db.shutdown()  # SlateDB writes the WAL's rows into a table, so the manifest has their time

    async def _correct(self, settings: SlateSettings, behind_ms: int, deadline_seconds: float) -> None:
        """Wait until the clock has caught up with the times in the store or, if that takes long, correct them."""
        if behind_ms <= _WAIT_MS:
            await asyncio.sleep(behind_ms / 1000)
            return
        log.warning(
            "the clock is %.1f s behind the newest time in the store: the clock was set back, or another host's is "
            "ahead; the times in the store are corrected",
            behind_ms / 1000,
        )
        db = await self._open(replace(settings, compacts=False), deadline_seconds)  # it fences an earlier writer
        with translated(self.url):
            await db.shutdown_with_options(ffi.public().CloseOptions(flush_type=None))
        await clock_correction.correct(self.location, SystemClock().now_ms())

    async def _open(self, settings: SlateSettings, deadline_seconds: float) -> Any:
        builder = ffi.public().DbBuilder(self.location.path, self.location.store)
        builder.with_settings(settings.as_binding())
        self._cache.join(builder)
        if self._recorder is not None:
            builder.with_metrics_recorder(self._recorder)
        db = await build(builder, self.url, deadline_seconds)
        if self.location.folder is not None:  # elsewhere, each commit waits for these threads
            _yield_to_foreground()
        return db

    async def reopen(self, settings: SlateSettings, may_open: MayOpen | None = None) -> bool:
        """Close the database and open it with other settings. The caches remain.

        Reads that begin during the call wait. No write may begin during the call.

        Args:
            may_open: waits, just before the opening, until this process is certainly the one that should write. It
                raises StoreFenced if another one should.

        Returns:
            False if a read did not end within a second; the database then remains open unchanged.

        Raises:
            errors.StoreFenced: another process is the writer, or was between the closing and the opening.
            errors.StoreError: the database can't be opened again, and is closed.
        """
        await self.flush_memtable()  # the only way to detect that another process is the writer
        last_seq = self.durable_seq
        self._reopened = asyncio.Event()
        try:
            async with asyncio.timeout(_READS_SECONDS):
                while self._ongoing.any:  # noqa: ASYNC110 - an event would cost every read
                    await asyncio.sleep(0.01)
            with translated(self.url):
                await self._db.shutdown()
            self._db = await self._build_again(settings, may_open)
            if self.durable_seq != last_seq:  # this process's state is outdated
                await self.close()
                raise errors.StoreFenced(f"another process wrote to {self.url}; this one must stop", url=self.url)
        except TimeoutError:
            return False
        finally:
            self._reopened.set()
            self._reopened = None
        self.settings = settings
        return True

    async def _build_again(self, settings: SlateSettings, may_open: MayOpen | None) -> Any:
        """Open the database again, without a time limit if the store does not respond."""
        refused = 0
        while True:
            if may_open is not None:
                await may_open()
            try:
                return await self._build(settings)
            except errors.StoreError as exc:
                refused += not isinstance(exc, errors.StoreSilent)
                if refused >= _REOPEN_TRIES:
                    raise
            await asyncio.sleep(1)

    @functools.cached_property
    def admin(self) -> SlateAdmin:
        """The administration of this database: checkpoints, tables, garbage."""
        return SlateAdmin(self.location)

    @functools.cached_property
    def clock(self) -> Clock:
        """The system's clock, which determines the expiry of checkpoints."""
        return SystemClock()

    def metrics(self) -> list[Any]:
        """Return SlateDB's own metrics from the binding; empty unless the settings enable them.

        May be called from any thread, and after :meth:`close`.
        """
        return list(self._recorder.snapshot()) if self._recorder is not None else []

    def batch(self) -> WriteBatch:
        return self.binding.batch()

    async def write(self, batch: WriteBatch) -> None:
        """Apply `batch`: visible to this process's reads when the call returns, durable after the next flush."""
        if len(batch):
            with translated(self.url):
                await self._db.write(batch.raw)

    async def flush_wal(self) -> None:
        """Make all earlier writes durable."""
        u = ffi.public()
        with translated(self.url):
            await self._db.flush_with_options(u.FlushOptions(flush_type=u.FlushType.WAL))

    async def flush_memtable(self, again: bytes = b"\0") -> None:
        """Write the memtable as a sorted table; only then can older WAL files be collected.

        SlateDB adds the table to the current manifest, so later reads use that manifest. As it writes no table without
        rows, this first writes the record with the key ``again`` once more, or deletes that key if there is no record.
        """
        u = ffi.public()
        start_ms = self.clock.now_ms()
        batch = self.batch()
        batch.put_or_delete(again, await self.get(again))
        await self.write(batch)
        with translated(self.url):
            await self._db.flush_with_options(u.FlushOptions(flush_type=u.FlushType.MEM_TABLE))
        self._flushed_at = start_ms
        self._ongoing.new_period()

    @property
    def durable_seq(self) -> int:
        """SlateDB's sequence number up to which all writes are durable."""
        return int(self._db.status().durable_seq)

    async def collect_garbage(
        self,
        *,
        wal_min_age_seconds: float = 5,
        manifest_min_age_seconds: float = 60,
        compacted_min_age_seconds: float | None = None,
    ) -> bool:
        """Delete the files that neither the current manifest nor a checkpoint needs and that are older than these ages.

        SlateDB reads the manifest only periodically, so this process may read from an older one. Tables are therefore
        deleted only if :meth:`flush_memtable` ended recently and all current reads began after it: a table that these
        reads use was replaced later, if at all, and the compaction's checkpoint still keeps it. Otherwise the tables
        wait for the next call.

        Returns:
            True if tables were deleted, too.
        """
        may_delete = False
        if self._flushed_at is not None and not self._ongoing.any_older:
            flushed_ms_ago = self.clock.now_ms() - self._flushed_at
            may_delete = flushed_ms_ago < 1000 * self.settings.replaced_seconds / 2
        if compacted_min_age_seconds is None:
            compacted_min_age_seconds = self.settings.table_min_age_seconds
        await self.admin.collect_garbage(
            wal_seconds=wal_min_age_seconds,
            manifest_seconds=manifest_min_age_seconds,
            table_seconds=compacted_min_age_seconds if may_delete else None,
        )
        return may_delete


def _yield_to_foreground() -> None:
    """Lower the priority of SlateDB's threads in this process: compaction gets the CPU time that the broker leaves.

    SlateDB's public interface has no setting for this. Its runtime names its threads, and on Linux each thread has a
    nice value, which new threads inherit from the thread that starts them. Elsewhere, this has no effect.
    """
    if not _THREADS.is_dir():
        return
    for thread in _THREADS.iterdir():
        with suppress(OSError):  # the thread has ended, or a sandbox forbids it
            if (thread / "comm").read_text().startswith(_THREAD_NAME):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICE)
