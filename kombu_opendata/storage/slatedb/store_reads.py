"""Reads of a SlateDB database: point reads and scans, by its writer, or by a reader beside it or without one."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence, Sized
from typing import Any, TypeVar

from ... import errors
from . import ffi, ffi_choice
from .caches import BlockCache
from .ffi import Range, ScanSettings
from .object_store import Location, build, in_time, locate, translated
from .rows import Pair, Rows

T = TypeVar("T")
_Part = TypeVar("_Part", bound=Sized)

_ROWS_PER_CALL = 1000
#: the poll interval of a frozen reader, which reads the manifest only once more, right after it is opened
_NEVER_MS = 365 * 86_400_000
#: shortest time that a frozen reader waits for SlateDB's first read of the manifest
_FREEZE_SECONDS = 0.01
#: longest time of this wait
_MAX_FREEZE_SECONDS = 0.5
#: longest time that a reader waits at its end
_CLOSE_SECONDS = 5.0
_MEMTABLE_BYTES = 64 << 20
_RETRIES = 5


class OngoingReads:
    """The current reads, counted by the period in which they began: see ``SlateStore.collect_garbage``."""

    __slots__ = ("_counts", "_period")

    def __init__(self) -> None:
        self._period = 0
        self._counts = {0: 0}

    def begin(self) -> int:
        """Count a read; return the period, for :meth:`end`."""
        self._counts[self._period] += 1
        return self._period

    def end(self, period: int) -> None:
        self._counts[period] -= 1

    def new_period(self) -> None:
        """Begin a period, which separates the reads that begin from now on from the current ones."""
        self._counts = {period: count for period, count in self._counts.items() if count}
        self._period += 1
        self._counts[self._period] = 0

    @property
    def any(self) -> bool:
        return any(self._counts.values())

    @property
    def any_older(self) -> bool:
        """True if a read is running that began before the last :meth:`new_period`."""
        return any(count for period, count in self._counts.items() if period != self._period)


class Reads:
    """The reads that a writer and a reader of a database share.

    Attributes:
        keeps_blocks: keep the blocks of large scans in the block cache.
    """

    keeps_blocks = False

    def __init__(self, location: Location, db: Any, binding: ffi.SlateBinding) -> None:
        self.location = location
        self.url = location.url
        self.binding = binding
        self._db = db
        self._ongoing = OngoingReads()
        self._reopened: asyncio.Event | None = None
        self._closed = False

    def check(self) -> None:
        """Check that a frozen reader still shows the state in which it was opened. A writer has nothing to check.

        Every read calls this.

        Raises:
            errors.StoreChanged: the state changed because SlateDB's first read of the manifest took too long; open
                another reader.
        """

    async def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, written by this process or durable; None if there is none."""
        return await self._read(self.binding.get, key)

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, in their order. For some dozens of keys in a call."""
        return await self._read(self.binding.get_many, keys)

    async def scan_many(self, ranges: Sequence[Range], limit: int) -> list[list[Pair]]:
        """Return the first `limit` pairs of each range, in the order of the ranges. For some dozens of small ranges."""
        settings = ScanSettings(read_ahead_bytes=1 << 14, cache_blocks=True)
        return await self._read(self.binding.scan_many, ranges, limit, settings)

    async def _read(self, call: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        if self._reopened is not None:
            await self._reopened.wait()
        period = self._ongoing.begin()
        try:
            with translated(self.url):
                result = await self._answered(call(self._db, *arguments))
        finally:
            self._ongoing.end(period)
        self.check()
        return result

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
        """Return the pairs with ``start <= key < end``, at most `limit`, in the order of their keys.

        Args:
            start: the first key; empty for the beginning.
            end: the first key after the range; None for no bound.
            limit: number of pairs; None for all pairs, so only for ranges that are known to be small.
            descending, read_ahead_bytes, cache_blocks: see :class:`~.ffi.ScanSettings`.
            in_thread: run SlateDB's code in a thread, so that many rows don't block the event loop.
        """
        settings = ScanSettings(descending, read_ahead_bytes, cache_blocks=cache_blocks)
        result: list[Pair] = []
        rows = _ROWS_PER_CALL if limit is None else min(limit, _ROWS_PER_CALL)
        next_batch = functools.partial(self.binding.next_batch, in_thread=in_thread)
        async for pairs in self._batches(start, end, rows, settings, next_batch, in_thread=in_thread):
            result += pairs
            if limit is not None and len(result) >= limit:
                return result[:limit]
        return result

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
        """Yield the pairs with ``start <= key < end``, in lists of `batch` pairs; the last may be shorter.

        See :meth:`scan` for the arguments.
        """
        next_batch = functools.partial(self.binding.next_batch, in_thread=in_thread)
        settings = ScanSettings(descending, read_ahead_bytes, self.keeps_blocks)
        return self._batches(start, end, batch, settings, next_batch, in_thread=in_thread)

    def scan_rows(self, start: bytes, end: bytes | None, *, batch: int = _ROWS_PER_CALL) -> AsyncGenerator[Rows, None]:
        """Yield rows as :meth:`scan_batches`, with each batch in one block of memory; in ascending order only."""
        return self._batches(start, end, batch, ScanSettings(), self.binding.next_rows)

    async def _batches(
        self,
        start: bytes,
        end: bytes | None,
        rows: int,
        settings: ScanSettings,
        next_part: Callable[[Any, int], Awaitable[_Part]],
        *,
        in_thread: bool = False,
    ) -> AsyncGenerator[_Part, None]:
        if rows <= 0 or (end is not None and start >= end):
            return
        if self._reopened is not None:
            await self._reopened.wait()
        period = self._ongoing.begin()
        try:
            with translated(self.url):
                iterator = await self._answered(self.binding.scan(self._db, start, end, settings, in_thread=in_thread))
            is_first = True
            while True:
                with translated(self.url):
                    part = await self._answered(next_part(iterator, rows))
                if is_first:  # the other batches show the same state
                    self.check()
                    is_first = False
                if part:
                    yield part
                if len(part) < rows:
                    return
        finally:
            self._ongoing.end(period)

    def _answered(self, call: Awaitable[T]) -> Awaitable[T]:
        """Return a call of the binding; a reader's raises StoreSilent after a time without an answer."""
        return call

    async def close(self) -> None:
        """Close the database; a writer flushes first.

        A second call has no effect, nor has the call of a fenced writer.
        """
        if self._closed:
            return
        self._closed = True
        u = ffi.public()
        with translated(self.url):
            try:
                await self._answered(self._db.shutdown())
            except u.Error.Closed as error:  # a fenced writer closes itself, and then reports one of these reasons
                if error.reason not in (u.CloseReason.FENCED, u.CloseReason.CLEAN):
                    raise


class ReadOnlyStore(Reads):
    """A reader beside the writer, or without one. It shows durable writes, with a short delay.

    It writes nothing to the store, not even a checkpoint, so the files that it reads may be deleted: then open another
    reader.
    """

    #: longest time for a read of some thousand rows
    answer_seconds = 30.0
    _frozen_at: int | None = None
    """SlateDB's sequence number of a frozen reader's state."""

    @classmethod
    async def open(
        cls,
        url: str,
        path: str,
        *,
        deadline_seconds: float = 30,
        frozen: bool = False,
        skip_wal: bool = False,
        cache: BlockCache | None = None,
    ) -> ReadOnlyStore:
        """Open the database `path` in the store at `url` for reading.

        Args:
            frozen: show the present state in every read, or raise :class:`errors.StoreChanged`.
            skip_wal: leave out the rows that are in WAL files only.
            cache: receives all blocks that are read.

        Raises:
            errors.StoreError: there is no such database, or the store did not respond within `deadline_seconds`.
            errors.CorruptRecord: the database is damaged.
        """
        location = locate(url, path, create=False)
        u = ffi.public()
        builder = u.DbReaderBuilder(location.path, location.store)
        builder.with_reader_mode(u.ReaderMode.FOLLOW_LATEST())
        if cache is not None:
            cache.join(builder)
        if frozen or skip_wal:
            builder.with_options(_options(frozen, skip_wal))
        now = asyncio.get_running_loop().time
        binding = await ffi_choice.select()
        start = now()
        store = cls(location, await build(builder, url, deadline_seconds), binding)
        store.keeps_blocks = cache is not None
        if frozen:
            try:
                await store._freeze(now() - start)
            except BaseException:
                await store.close()
                raise
        return store

    async def _freeze(self, took: float) -> None:
        """Wait until SlateDB has read the manifest, which it does right after opening, regardless of the interval.

        SlateDB does not report the end of this read; it takes about as long as the opening ``took``. If it takes
        longer, :meth:`check` detects it.
        """
        first = self._frozen_at = self._shown()
        now = asyncio.get_running_loop().time
        until = now() + min(max(took, _FREEZE_SECONDS), _MAX_FREEZE_SECONDS)
        while self._frozen_at == first and now() < until:
            await asyncio.sleep(_FREEZE_SECONDS / 10)
            self._frozen_at = self._shown()
        if self._frozen_at != first:
            await asyncio.sleep(_FREEZE_SECONDS)  # SlateDB sets the number first, and then the state

    def _answered(self, call: Awaitable[T]) -> Awaitable[T]:
        return in_time(call, self.url, self.answer_seconds)

    async def close(self) -> None:
        """Close the database, without waiting long for a store that does not answer."""
        self.answer_seconds = min(self.answer_seconds, _CLOSE_SECONDS)
        with contextlib.suppress(errors.StoreSilent):
            await super().close()

    def _shown(self) -> int:
        with translated(self.url):
            return int(self._db.status().durable_seq)

    def check(self) -> None:
        if self._frozen_at is not None and self._shown() != self._frozen_at:
            raise errors.StoreChanged(f"{self.url} was written while it was opened; open it again", url=self.url)


def _options(frozen: bool, skip_wal: bool) -> Any:
    return ffi.public().ReaderOptions(
        manifest_poll_interval_ms=_NEVER_MS if frozen else 1000,
        checkpoint_lifetime_ms=2 * _NEVER_MS,  # there is no checkpoint, but this must be longer than the interval
        max_memtable_bytes=_MEMTABLE_BYTES,
        skip_wal_replay=skip_wal,
        object_store_max_retries=_RETRIES,  # otherwise SlateDB retries a missing file until the deadline
    )
