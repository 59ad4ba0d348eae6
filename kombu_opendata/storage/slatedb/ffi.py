"""The calls into the SlateDB binding that carry bytes, and the way to make them through its public interface.

The generated binding copies ``bytes`` across the border one byte at a time in Python, which costs more than everything
else a commit does. :mod:`.ffi_native` calls the same native symbols with one copy per value; :mod:`.ffi_choice` says
which of the two a process uses.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .rows import Pair, Rows

_FETCH_TASKS = 4

#: the first key, and the first key after the range; None for no bound
Range = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """How a scan reads.

    Attributes:
        descending: start with the last key.
        read_ahead_bytes: how much to fetch ahead.
        cache_blocks: keep the blocks in the block cache; off for scans of everything.
    """

    descending: bool = False
    read_ahead_bytes: int = 4 << 20
    cache_blocks: bool = False


class WriteBatch(ABC):
    """Puts and deletes that are applied together or not at all. Single use: writing it consumes it.

    Attributes:
        raw: the binding's own batch.
        nbytes: keys and values added so far, bytes.
    """

    __slots__ = ("_count", "nbytes", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.nbytes = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @abstractmethod
    def put(self, key: bytes, value: bytes) -> None:
        """Set `key` to `value`."""

    @abstractmethod
    def delete(self, key: bytes) -> None:
        """Remove `key`."""


class SlateBinding(ABC):
    """The byte-carrying calls. `db` is the binding's ``Db`` or ``DbReader``."""

    fast_path: bool
    #: Why the fast path is not in use; empty when it is.
    reason: str = ""

    @abstractmethod
    def batch(self) -> WriteBatch:
        """A new empty batch."""

    @abstractmethod
    async def get(self, db: Any, key: bytes) -> bytes | None:
        """The value of `key`."""

    @abstractmethod
    async def scan(
        self, db: Any, start: bytes, end: bytes | None, settings: ScanSettings, *, in_thread: bool = False
    ) -> Any:
        """An iterator over ``start <= key < end``, for :meth:`next_batch`, which has ``in_thread``, too."""

    @abstractmethod
    async def next_batch(self, iterator: Any, limit: int, *, in_thread: bool = False) -> list[Pair]:
        """The next pairs; fewer than `limit` at the end only.

        Args:
            in_thread: run SlateDB's code in a thread, so that it does not block the event loop.
        """

    @abstractmethod
    async def next_rows(self, iterator: Any, limit: int) -> Rows:
        """As :meth:`next_batch`, in one piece of memory."""

    async def get_many(self, db: Any, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys`, in their order; those that are not cached are read concurrently."""
        return list(await asyncio.gather(*(self.get(db, key) for key in keys)))

    async def scan_many(self, db: Any, ranges: Sequence[Range], limit: int, settings: ScanSettings) -> list[list[Pair]]:
        """The first `limit` pairs of each range, in the order of the ranges; as :meth:`get_many`."""

        async def scan(start: bytes, end: bytes | None) -> list[Pair]:
            return await self.next_batch(await self.scan(db, start, end, settings), limit)

        return list(await asyncio.gather(*(scan(*one) for one in ranges)))


@functools.cache
def public() -> Any:
    """The binding's public module."""
    from slatedb import uniffi

    return uniffi


def stock_scan_options(settings: ScanSettings) -> Any:
    """`settings` as the binding's ``ScanOptions``."""
    u = public()
    return u.ScanOptions(
        durability_filter=u.DurabilityLevel.MEMORY,
        dirty=False,
        read_ahead_bytes=settings.read_ahead_bytes,
        cache_blocks=settings.cache_blocks,
        max_fetch_tasks=_FETCH_TASKS,
        order=u.IterationOrder.DESCENDING if settings.descending else u.IterationOrder.ASCENDING,
    )


# ---- the stock path
class StockBatch(WriteBatch):
    """A batch through the public interface."""

    __slots__ = ()

    def put(self, key: bytes, value: bytes) -> None:
        self.raw.put(key, value)
        self._count += 1
        self.nbytes += len(key) + len(value)

    def delete(self, key: bytes) -> None:
        self.raw.delete(key)
        self._count += 1
        self.nbytes += len(key)


class StockBinding(SlateBinding):
    """Everything through the public interface."""

    fast_path = False

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def batch(self) -> WriteBatch:
        return StockBatch(public().WriteBatch())

    async def get(self, db: Any, key: bytes) -> bytes | None:
        value: bytes | None = await db.get(key)
        return value

    async def scan(
        self, db: Any, start: bytes, end: bytes | None, settings: ScanSettings, *, in_thread: bool = False
    ) -> Any:
        keys = public().KeyRange(start=start or None, start_inclusive=True, end=end, end_inclusive=False)
        return await db.scan_with_options(keys, stock_scan_options(settings))

    async def next_batch(self, iterator: Any, limit: int, *, in_thread: bool = False) -> list[Pair]:
        return [(row.key, row.value) for row in await iterator.next_batch(limit)]

    async def next_rows(self, iterator: Any, limit: int) -> Rows:
        return Rows.of(await self.next_batch(iterator, limit))
