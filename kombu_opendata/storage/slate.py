"""SlateDB behind a small asynchronous interface: batches, flushes, point reads, scans, garbage collection.

The binding's errors are translated here, once. SlateDB's own collector is off: its schedule knows nothing of
what this package has made safe against power loss, so the broker decides when to collect.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from kombu_opendata import errors
from kombu_opendata.storage import ffi
from kombu_opendata.storage.clock import Clock, SystemClock
from kombu_opendata.storage.ffi import Batch, Range, ScanSettings
from kombu_opendata.storage.object_store import Location, locate
from kombu_opendata.storage.rows import Pair, Rows
from kombu_opendata.storage.slate_admin import SlateAdmin
from kombu_opendata.storage.slate_errors import translated

_Part = TypeVar("_Part", bound=Sized)

_ROWS_PER_CALL = 1000
_CACHE_ID = 1
_BLOCKS_IN_A_FOLDER, _BLOCKS_ELSEWHERE = 8 << 20, 32 << 20
#: of a reader that does not look at the manifest again, but for once right after it is opened
_NEVER_MS = 365 * 86_400_000
#: how long a frozen reader waits for SlateDB's first look, at least and at most
_FREEZE_SECONDS = 0.01
_MAX_FREEZE_SECONDS = 0.5
_MEMTABLE_BYTES = 64 << 20
_IDLE_POLL_MS = 120_000
#: how often a database that was closed a moment ago is tried to be opened again, one second after the other
_REOPEN_TRIES = 10
#: how long reads may go on that a reopening waits for
_READS_SECONDS = 1.0
_RETRIES = 5


@dataclass(frozen=True, slots=True)
class SlateSettings:
    """SlateDB's settings, as far as they are ours to choose.

    Attributes:
        flush_interval_ms: when SlateDB flushes the WAL by itself; a commit does not wait for it.
        l0_sst_size_bytes: the memtable is written out at this size.
        l0_max_ssts: writes wait when so many of these files are not compacted yet.
        sorted_sst_size_bytes: the compactor's files are at most so large. A read that does not find a file's index in
            the cache decodes all of it: with SlateDB's own 256 MiB a point read of a large store costs milliseconds.
        max_unflushed_bytes: writes wait when so much is not written out yet.
        compactor_poll_ms: how often the compactor looks for work.
        commit_compaction_ms: how often it looks for compactions that are done.
        min_compaction_sources: files or runs of about one size that the compactor makes one of. Every scan, and most
            point reads, look into all runs, so fewer are worth writing more often: with 2 a store of a million messages
            had 4, a page of scattered ones took 66 ms and a staged row 130 µs of CPU; with SlateDB's own 4 these were
            10, 102 ms and 106 µs.
        compactor_tasks: compactions, and fetches of one compaction, that run at once.
        compactor_fetch_bytes: what a compaction reads at a time, of each file.
        manifest_poll_ms: how often the writer looks at the manifest, and so notices that it is fenced.
        replaced_seconds: how long a compaction's checkpoint keeps the tables that it replaced. What relies on it is
            described at :meth:`SlateStore.collect_garbage`.
        table_min_age_seconds: younger tables are not deleted: SlateDB may be about to add them to the manifest.
        block_cache_bytes: bound of the cache of data blocks, which take about twice as much memory; None for 8 MiB in
            a local folder, whose files the system caches, and 32 MiB elsewhere; 0 means no cache, not even of indexes.
        index_cache_bytes: bound of the cache of the files' indexes and filters: about 0.3 MB for each file of 16 MiB.
        metrics: keep SlateDB's own metrics, see :meth:`SlateStore.metrics`.
    """

    flush_interval_ms: int = 100
    l0_sst_size_bytes: int = 8 << 20
    l0_max_ssts: int = 24
    sorted_sst_size_bytes: int = 16 << 20
    max_unflushed_bytes: int = 128 << 20
    compactor_poll_ms: int = 1000
    commit_compaction_ms: int = 1000
    compactor_tasks: int = 2
    min_compaction_sources: int = 2
    compactor_fetch_bytes: int = 512 << 10
    manifest_poll_ms: int = 1000
    replaced_seconds: int = 15
    table_min_age_seconds: float = 10
    block_cache_bytes: int | None = None
    index_cache_bytes: int = 24 << 20
    metrics: bool = False

    def for_idleness(self) -> SlateSettings:
        """For a store that nobody uses now: it is looked into some 300 times an hour."""
        return replace(
            self, manifest_poll_ms=_IDLE_POLL_MS, compactor_poll_ms=_IDLE_POLL_MS, commit_compaction_ms=_IDLE_POLL_MS
        )

    def as_binding(self) -> Any:
        """The binding's settings object."""
        settings = ffi.public().Settings.default()
        for name, value in {
            "flush_interval": f'"{self.flush_interval_ms}ms"',
            "l0_sst_size_bytes": self.l0_sst_size_bytes,
            "l0_max_ssts": self.l0_max_ssts,
            "l0_max_ssts_per_key": self.l0_max_ssts,
            "max_unflushed_bytes": self.max_unflushed_bytes,
            "manifest_poll_interval": f'"{self.manifest_poll_ms}ms"',
            "compactor_options.poll_interval": f'"{self.compactor_poll_ms}ms"',
            "compactor_options.commit_compacted_interval": f'"{self.commit_compaction_ms}ms"',
            "compactor_options.checkpoint_lifetime": f'"{self.replaced_seconds}s"',
            "compactor_options.max_concurrent_compactions": self.compactor_tasks,
            "compactor_options.worker.max_concurrent_compactions": self.compactor_tasks,
            "compactor_options.worker.compactions_poll_interval": f'"{self.compactor_poll_ms}ms"',
            "compactor_options.worker.max_sst_size": self.sorted_sst_size_bytes,
            "compactor_options.worker.max_subcompactions": 1,
            "compactor_options.worker.bytes_to_fetch": self.compactor_fetch_bytes,
            "compactor_options.worker.max_fetch_tasks": self.compactor_tasks,
            "compactor_options.scheduler_options.min_compaction_sources": f'"{self.min_compaction_sources}"',
            "garbage_collector_options": "null",  # null: no collector is started
        }.items():
            settings.set(name, str(value))
        return settings


class OngoingReads:
    """The reads under way, counted by the period in which they began; see :meth:`SlateStore.collect_garbage`."""

    __slots__ = ("_counts", "_period")

    def __init__(self) -> None:
        self._period = 0
        self._counts = {0: 0}

    def begin(self) -> int:
        """A read begins; returns what :meth:`end` takes."""
        self._counts[self._period] += 1
        return self._period

    def end(self, period: int) -> None:
        """A read that began in this period is over."""
        self._counts[period] -= 1

    def new_period(self) -> None:
        """Reads that begin from now on are told from those under way."""
        self._counts = {period: count for period, count in self._counts.items() if count}
        self._period += 1
        self._counts[self._period] = 0

    @property
    def any(self) -> bool:
        """Whether a read goes on."""
        return any(self._counts.values())

    @property
    def any_older(self) -> bool:
        """Whether a read goes on that began before the last :meth:`new_period`."""
        return any(count for period, count in self._counts.items() if period != self._period)


class Reads:
    """What a writer and a reader have in common."""

    def __init__(self, location: Location, db: Any, binding: ffi.Binding) -> None:
        self._location, self._db, self._binding = location, db, binding
        self._ongoing = OngoingReads()
        self._reopened: asyncio.Event | None = None
        self._closed = False

    @property
    def url(self) -> str:
        """The store's URL, as it was given."""
        return self._location.url

    @property
    def path(self) -> str:
        """The database's path below the URL, as it was given."""
        return self._location.name

    @property
    def options(self) -> dict[str, str]:
        """The provider's settings, as they were given."""
        return self._location.options

    @property
    def folder(self) -> Path | None:
        """The database's folder; None when the store is not a local one."""
        return self._location.folder

    @property
    def fast_path(self) -> bool:
        """Whether :mod:`.ffi_native` is in use; see also :attr:`ffi.Binding.reason`."""
        return self._binding.fast_path

    def check(self) -> None:
        """See that a frozen reader still shows what it showed when it was opened; of a writer there is nothing to see.

        Every read does it.

        Raises:
            errors.StoreChanged: it does not, as SlateDB's first look at the manifest took so long; open another one.
        """

    async def get(self, key: bytes) -> bytes | None:
        """The value of `key`, written by this process or durable; None when there is none."""
        if self._reopened is not None:
            await self._reopened.wait()
        period = self._ongoing.begin()
        try:
            with translated(self.url):
                found = await self._binding.get(self._db, key)
        finally:
            self._ongoing.end(period)
        self.check()
        return found

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys`, in their order. For some dozens at a time."""
        if self._reopened is not None:
            await self._reopened.wait()
        period = self._ongoing.begin()
        try:
            with translated(self.url):
                found = await self._binding.get_many(self._db, keys)
        finally:
            self._ongoing.end(period)
        self.check()
        return found

    async def scan_many(self, ranges: Sequence[Range], limit: int) -> list[list[Pair]]:
        """The first `limit` pairs of each range, in the order of the ranges. For some dozens of small ones."""
        settings = ScanSettings(read_ahead_bytes=1 << 14, cache_blocks=True)
        if self._reopened is not None:
            await self._reopened.wait()
        period = self._ongoing.begin()
        try:
            with translated(self.url):
                found = await self._binding.scan_many(self._db, ranges, limit, settings)
        finally:
            self._ongoing.end(period)
        self.check()
        return found

    async def scan(
        self,
        start: bytes,
        end: bytes | None,
        *,
        limit: int | None = None,
        descending: bool = False,
        read_ahead_bytes: int = 1 << 20,
        cache_blocks: bool = True,
        in_thread: bool = False,
    ) -> list[Pair]:
        """The pairs with ``start <= key < end``, at most `limit`, in the order of their keys.

        Args:
            start: first key; empty for the beginning.
            end: first key that is out; None for no bound.
            limit: number of pairs; None for all of them, so only for ranges known to be small.
            descending: last key first.
            read_ahead_bytes: how much is fetched before it is asked for.
            cache_blocks: keep what is read in the block cache.
            in_thread: leave the event loop alone while rows are read; for many.
        """
        settings = ScanSettings(descending, read_ahead_bytes, cache_blocks=cache_blocks)
        found: list[Pair] = []
        rows = _ROWS_PER_CALL if limit is None else min(limit, _ROWS_PER_CALL)
        next_batch = functools.partial(self._binding.next_batch, in_thread=in_thread)
        async for pairs in self._batches(start, end, rows, settings, next_batch):
            found += pairs
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    def scan_batches(
        self,
        start: bytes,
        end: bytes | None,
        *,
        batch: int = _ROWS_PER_CALL,
        descending: bool = False,
        read_ahead_bytes: int = 4 << 20,
        in_thread: bool = False,
    ) -> AsyncGenerator[list[Pair], None]:
        """The pairs with ``start <= key < end``, in lists of `batch` and a shorter last one; none is empty.

        See :meth:`scan` for the arguments.
        """
        next_batch = functools.partial(self._binding.next_batch, in_thread=in_thread)
        return self._batches(start, end, batch, ScanSettings(descending, read_ahead_bytes), next_batch)

    def scan_rows(
        self, start: bytes, end: bytes | None, *, batch: int = _ROWS_PER_CALL, read_ahead_bytes: int = 4 << 20
    ) -> AsyncGenerator[Rows, None]:
        """As :meth:`scan_batches`, each batch in one piece; upwards."""
        settings = ScanSettings(read_ahead_bytes=read_ahead_bytes)
        return self._batches(start, end, batch, settings, self._binding.next_rows)

    async def _batches(
        self,
        start: bytes,
        end: bytes | None,
        rows: int,
        settings: ScanSettings,
        next_part: Callable[[Any, int], Awaitable[_Part]],
    ) -> AsyncGenerator[_Part, None]:
        if rows <= 0 or (end is not None and start >= end):
            return
        if self._reopened is not None:
            await self._reopened.wait()
        period = self._ongoing.begin()
        try:
            with translated(self.url):
                iterator = await self._binding.scan(self._db, start, end, settings)
            is_first = True
            while True:
                with translated(self.url):
                    part = await next_part(iterator, rows)
                if is_first:  # the others are of the same moment
                    self.check()
                    is_first = False
                if part:
                    yield part
                if len(part) < rows:
                    return
        finally:
            self._ongoing.end(period)

    async def close(self) -> None:
        """Close; a writer flushes first. A second call does nothing, and neither does that of a fenced writer."""
        if self._closed:
            return
        self._closed = True
        u = ffi.public()
        with translated(self.url):
            try:
                await self._db.shutdown()
            except u.Error.Closed as error:  # a fenced one closes itself, and then says either
                if error.reason not in (u.CloseReason.FENCED, u.CloseReason.CLEAN):
                    raise


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
        opened = cls(location, await _build(builder, url, deadline_seconds), await ffi.select())
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
                    self._db = await _build(builder, self.url, deadline_seconds)
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


class ReadOnlyStore(Reads):
    """A reader beside the writer, or without one. It sees what is durable, a moment later.

    It writes nothing to the store, so nothing holds back the files that it reads: open another one for another look.
    """

    _frozen_at: int | None = None
    """SlateDB's sequence number of what a frozen reader shows."""

    @classmethod
    async def open(
        cls,
        url: str,
        path: str,
        *,
        deadline_seconds: float = 30,
        store_options: dict[str, str] | None = None,
        frozen: bool = False,
        skip_wal: bool = False,
    ) -> ReadOnlyStore:
        """Open the database `path` in the store at `url` for reading.

        Args:
            frozen: go on showing what is durable now, or raise :class:`errors.StoreChanged`; else what is durable then.
            skip_wal: leave out what is in WAL files only, for a store whose WAL is damaged.

        Raises:
            errors.StoreError: there is no such database, or the store did not answer within `deadline_seconds`.
            errors.CorruptRecord: the database is damaged.
        """
        location = locate(url, path, store_options, create=False)
        u = ffi.public()
        builder = u.DbReaderBuilder(location.path, location.store)
        builder.with_reader_mode(u.ReaderMode.FOLLOW_LATEST())
        if frozen or skip_wal:
            builder.with_options(
                u.ReaderOptions(
                    manifest_poll_interval_ms=_NEVER_MS if frozen else 1000,
                    checkpoint_lifetime_ms=2 * _NEVER_MS,  # there is no checkpoint, but it must be the larger one
                    max_memtable_bytes=_MEMTABLE_BYTES,
                    skip_wal_replay=skip_wal,
                    object_store_max_retries=_RETRIES,  # without it a missing file is asked for until the deadline
                )
            )
        now = asyncio.get_running_loop().time
        binding = await ffi.select()
        began = now()
        opened = cls(location, await _build(builder, url, deadline_seconds), binding)
        if frozen:
            try:
                await opened._freeze(now() - began)
            except BaseException:
                await opened.close()
                raise
        return opened

    async def _freeze(self, took: float) -> None:
        """Let SlateDB take the look at the manifest that it takes right after opening, whatever the interval.

        It is not told when that is over; it takes about what the opening ``took``. Later is noticed by :meth:`check`.
        """
        first = self._frozen_at = self._shown()
        now = asyncio.get_running_loop().time
        until = now() + min(max(took, _FREEZE_SECONDS), _MAX_FREEZE_SECONDS)
        while self._frozen_at == first and now() < until:
            await asyncio.sleep(_FREEZE_SECONDS / 10)
            self._frozen_at = self._shown()
        if self._frozen_at != first:
            await asyncio.sleep(_FREEZE_SECONDS)  # the number is first, what it stands for comes after it

    def _shown(self) -> int:
        with translated(self.url):
            return int(self._db.status().durable_seq)

    def check(self) -> None:
        if self._frozen_at is not None and self._shown() != self._frozen_at:
            raise errors.StoreChanged(f"{self.url} was written while it was opened; open it again", url=self.url)


async def database_exists(url: str, path: str, *, deadline_seconds: float = 30) -> bool:
    """Whether the store at `url` has a database `path`. Nothing is created.

    Raises:
        errors.StoreError: the store does not say.
    """
    if url.startswith("file://"):
        return path in databases(url)
    location = locate(url, path)
    with translated(url):
        reading = ffi.public().AdminBuilder(location.path, location.store).build().read_manifest(None)
        return await _in_time(reading, url, deadline_seconds) is not None


def databases(url: str) -> list[str]:
    """The databases in a local store's folder; of other stores none can be told.

    Raises:
        errors.StoreError: the folder can't be read.
    """
    if not url.startswith("file://"):
        return []
    root = unquote(url.removeprefix("file://"))
    try:
        return [name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name, "manifest"))]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise errors.StoreError(f"the folder {root} can't be read: {error.strerror}", path=root) from error


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


async def _build(builder: Any, url: str, deadline_seconds: float) -> Any:
    u = ffi.public()
    try:
        with translated(url):
            return await _in_time(builder.build(), url, deadline_seconds)
    except errors.StoreError as error:
        # A manifest has no checksum: SlateDB says "internal error" of one that does not decode, or panics.
        if isinstance(error.__cause__, (u.Error.Internal, u.InternalError)):
            text = f"the store {url} is damaged: SlateDB can't decode its files: {error.__cause__}"
            raise errors.CorruptRecord(text, url=url, key=b"", offset=0) from error.__cause__
        raise


async def _in_time(call: Awaitable[Any], url: str, deadline_seconds: float) -> Any:
    try:
        return await asyncio.wait_for(call, deadline_seconds)
    except TimeoutError as error:
        raise errors.StoreError(
            f"the store {url} did not answer within {deadline_seconds:g} s: see that the endpoint, the bucket and the "
            "credentials are right",
            url=url,
            deadline_seconds=deadline_seconds,
        ) from error
