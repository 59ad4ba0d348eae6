"""The calls into the SlateDB binding that carry bytes, by its public interface.

The generated binding copies ``bytes`` across the language boundary one byte at a time in Python, which costs more than
all other work of a commit. :mod:`.ffi_native` overrides these calls: it calls the same native symbols with one copy per
value. :mod:`.ffi_choice` selects one of the two for a process.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .rows import Pair, Rows

_FETCH_TASKS = 4

#: the first key, and the first key after the range; None for no bound
Range = tuple[bytes, bytes | None]


@dataclass(frozen=True, slots=True)
class ScanSettings:
    """The settings of a scan.

    Attributes:
        descending: start with the last key.
        read_ahead_bytes: the number of bytes to fetch ahead.
        cache_blocks: keep the blocks in the block cache; off for scans of whole ranges.
    """

    descending: bool = False
    read_ahead_bytes: int = 4 << 20
    cache_blocks: bool = False


@functools.cache
def public() -> Any:
    """Return the binding's public module."""
    from slatedb import uniffi

    return uniffi


def stock_scan_options(settings: ScanSettings) -> Any:
    """Return `settings` as the binding's ``ScanOptions``."""
    u = public()
    return u.ScanOptions(
        durability_filter=u.DurabilityLevel.MEMORY,
        dirty=False,
        read_ahead_bytes=settings.read_ahead_bytes,
        cache_blocks=settings.cache_blocks,
        max_fetch_tasks=_FETCH_TASKS,
        order=u.IterationOrder.DESCENDING if settings.descending else u.IterationOrder.ASCENDING,
    )


class WriteBatch:
    """Puts and deletes that are applied together or not at all. Single use: writing it consumes it.

    Attributes:
        raw: the binding's batch.
        nbytes: the size of the added keys and values in bytes.
    """

    __slots__ = ("_count", "nbytes", "raw")

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.nbytes = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, key: bytes, value: bytes) -> None:
        self.raw.put(key, value)
        self._count += 1
        self.nbytes += len(key) + len(value)

    def put_all(self, rows: Iterable[Pair]) -> None:
        """Put several rows."""
        for key, value in rows:
            self.put(key, value)

    def delete(self, key: bytes) -> None:
        self.raw.delete(key)
        self._count += 1
        self.nbytes += len(key)

    def put_or_delete(self, key: bytes, value: bytes | None) -> None:
        """Put a value, or delete the key if the value is None."""
        if value is None:
            self.delete(key)
        else:
            self.put(key, value)


class SlateBinding:
    """The calls that carry bytes. `db` is the binding's ``Db`` or ``DbReader``.

    Attributes:
        reason: the reason why the fast path is not in use; empty if it is.
    """

    fast_path = False

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def batch(self) -> WriteBatch:
        return WriteBatch(public().WriteBatch())

    async def get(self, db: Any, key: bytes) -> bytes | None:
        value: bytes | None = await db.get(key)
        return value

    async def scan(
        self, db: Any, start: bytes, end: bytes | None, settings: ScanSettings, *, in_thread: bool = False
    ) -> Any:
        """Return an iterator over ``start <= key < end`` for :meth:`next_batch`, which has ``in_thread``, too."""
        keys = public().KeyRange(start=start or None, start_inclusive=True, end=end, end_inclusive=False)
        return await db.scan_with_options(keys, stock_scan_options(settings))

    async def next_batch(self, iterator: Any, limit: int, *, in_thread: bool = False) -> list[Pair]:
        """Return the next pairs; fewer than `limit` only at the end.

        ``in_thread``: run SlateDB's code in a thread, so that it does not block the event loop; only in the fast path.
        """
        return [(row.key, row.value) for row in await iterator.next_batch(limit)]

    async def next_rows(self, iterator: Any, limit: int) -> Rows:
        """Return the next rows as :meth:`next_batch`, in one block of memory."""
        return Rows.of(await self.next_batch(iterator, limit))

    async def get_many(self, db: Any, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `keys`, in their order; those that are not cached are read concurrently."""
        return list(await asyncio.gather(*(self.get(db, key) for key in keys)))

    async def scan_many(self, db: Any, ranges: Sequence[Range], limit: int, settings: ScanSettings) -> list[list[Pair]]:
        """Return the first `limit` pairs of each range, in the order of the ranges; read as by :meth:`get_many`."""

        async def scan(start: bytes, end: bytes | None) -> list[Pair]:
            return await self.next_batch(await self.scan(db, start, end, settings), limit)

        return list(await asyncio.gather(*(scan(*bounds) for bounds in ranges)))
