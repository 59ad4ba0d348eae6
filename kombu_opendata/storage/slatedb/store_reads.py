"""Reads of a SlateDB database, by its writer or by a reader: point reads and scans."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence, Sized
from pathlib import Path
from typing import Any, TypeVar

from . import ffi
from .ffi import Range, ScanSettings
from .object_store import Location
from .rows import Pair, Rows
from .slate_errors import translated

_Part = TypeVar("_Part", bound=Sized)

_ROWS_PER_CALL = 1000


class OngoingReads:
    """The reads under way, counted by the period in which they began: see ``SlateStore.collect_garbage``."""

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
