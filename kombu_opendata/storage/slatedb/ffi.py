"""The calls into the SlateDB binding that carry bytes, and the choice between two ways to make them.

The generated binding copies ``bytes`` across the border one byte at a time in Python, which costs more than everything
else a commit does. :mod:`.ffi_native` calls the same native symbols with one copy per value. That relies on what the
generated code does inside, so :func:`select` uses it only with the minor version it was written for, and only after
a self-check in this process; otherwise :class:`StockBinding` does the work through the public interface.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.metadata
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .rows import Pair, Rows

log = logging.getLogger(__name__)

#: The SlateDB version that the fast path was written against, without its last part.
FAST_PATH_VERSION = "0.17"

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


class Batch(ABC):
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

    def put(self, key: bytes, value: bytes) -> None:
        """Set `key` to `value`."""
        self._put(key, value)
        self._count += 1
        self.nbytes += len(key) + len(value)

    def delete(self, key: bytes) -> None:
        """Remove `key`."""
        self._delete(key)
        self._count += 1
        self.nbytes += len(key)

    @abstractmethod
    def _put(self, key: bytes, value: bytes) -> None: ...

    @abstractmethod
    def _delete(self, key: bytes) -> None: ...


class Binding(ABC):
    """The byte-carrying calls. `db` is the binding's ``Db`` or ``DbReader``."""

    fast_path: bool
    #: Why the fast path is not in use; empty when it is.
    reason: str = ""

    @abstractmethod
    def batch(self) -> Batch:
        """A new empty batch."""

    @abstractmethod
    async def get(self, db: Any, key: bytes) -> bytes | None:
        """The value of `key`."""

    @abstractmethod
    async def scan(self, db: Any, start: bytes, end: bytes | None, settings: ScanSettings) -> Any:
        """An iterator over ``start <= key < end``, for :meth:`next_batch`."""

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
    return importlib.import_module("slatedb.uniffi")


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
class StockBatch(Batch):
    """A batch through the public interface."""

    __slots__ = ()

    def _put(self, key: bytes, value: bytes) -> None:
        self.raw.put(key, value)

    def _delete(self, key: bytes) -> None:
        self.raw.delete(key)


class StockBinding(Binding):
    """Everything through the public interface."""

    fast_path = False

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def batch(self) -> Batch:
        return StockBatch(public().WriteBatch())

    async def get(self, db: Any, key: bytes) -> bytes | None:
        value: bytes | None = await db.get(key)
        return value

    async def scan(self, db: Any, start: bytes, end: bytes | None, settings: ScanSettings) -> Any:
        keys = public().KeyRange(start=start or None, start_inclusive=True, end=end, end_inclusive=False)
        return await db.scan_with_options(keys, stock_scan_options(settings))

    async def next_batch(self, iterator: Any, limit: int, *, in_thread: bool = False) -> list[Pair]:
        return [(row.key, row.value) for row in await iterator.next_batch(limit)]

    async def next_rows(self, iterator: Any, limit: int) -> Rows:
        return Rows.of(await self.next_batch(iterator, limit))


# ---- the choice
_chosen: Binding | None = None


async def select() -> Binding:
    """The fast binding if its self-check passes, else the stock one. The first call in a process decides."""
    global _chosen
    if _chosen is None:
        _chosen = await _choose()
    return _chosen


async def _choose() -> Binding:
    try:
        version = importlib.metadata.version("slatedb")
        if not version.startswith(FAST_PATH_VERSION + "."):
            raise SelfCheckFailed(f"it is written for slatedb {FAST_PATH_VERSION}, this is {version}")
        fast = importlib.import_module("kombu_opendata.storage.slatedb.ffi_native").FastBinding()
        await self_check(fast)
    except Exception as error:  # whatever fails here, the public interface still works
        reason = f"{type(error).__name__}: {error}"
        log.warning("The fast path into SlateDB is off, so the broker is much slower (%s)", reason)
        return StockBinding(reason)
    chosen: Binding = fast
    return chosen


class SelfCheckFailed(Exception):
    """The fast path can't be used, or it disagrees with the public interface."""


@functools.cache
def _samples() -> dict[bytes, bytes]:
    """Keys and values with every byte value and each length class."""
    every_byte = bytes(range(256))
    values = (b"", b"\0", every_byte, every_byte * 110, every_byte * 300)
    return {b"\x01\0\xff" + bytes((i,)): value for i, value in enumerate(values)}


@functools.cache
def _alike() -> dict[bytes, bytes]:
    """Rows that are mostly alike: one has a longer key and a shorter value, one a longer value."""
    rows = {b"\x02alike%02d" % i: b"value-%02d" % i for i in range(40)}
    return rows | {b"\x02alike20": b"longer", b"\x02alike201": b"shorter", b"\x02alike30": b"\0" * 264}


async def self_check(fast: Binding) -> None:
    """Write through `fast`, read back through the public interface, and the other way round.

    Raises:
        SelfCheckFailed: what came back is not what was written.
    """
    u, stock = public(), StockBinding()
    db = await u.DbBuilder("self-check", u.ObjectStore.resolve("memory:///")).build()
    try:
        await _check_writes(fast, stock, db)
        await _check_reads(fast, db)
    finally:
        await db.shutdown()


async def _check_writes(fast: Binding, stock: Binding, db: Any) -> None:
    samples = _samples()
    batch = fast.batch()
    for key, value in (samples | _alike()).items():
        batch.put(key, value)
    batch.put(b"gone", b"1")
    batch.delete(b"gone")
    await db.write(batch.raw)
    for key, value in samples.items():
        if await stock.get(db, key) != value:
            raise SelfCheckFailed(f"a value of {len(value)} bytes was not written as given")
    if await stock.get(db, b"gone") is not None:
        raise SelfCheckFailed("a delete was not applied")


async def _check_reads(fast: Binding, db: Any) -> None:
    expected = sorted(_samples().items())
    for key, value in [*expected, (b"absent", None)]:
        if await fast.get(db, key) != value:
            raise SelfCheckFailed(f"the value of {key!r} was not read as stored")
    if await fast.get_many(db, [b"absent", *dict(expected)]) != [None, *dict(expected).values()]:
        raise SelfCheckFailed("values that are read together are not those that are stored")
    ranges: list[Range] = [(expected[2][0], None), (b"absent", b"absent\0"), (b"", expected[1][0])]
    if await fast.scan_many(db, ranges, 2, ScanSettings()) != [expected[2:4], [], expected[:1]]:
        raise SelfCheckFailed("scans that run together do not give the stored pairs")
    for descending in (False, True):
        iterator = await fast.scan(db, expected[1][0], expected[4][0], ScanSettings(descending=descending))
        pairs = await fast.next_batch(iterator, 2) + await fast.next_batch(iterator, 9, in_thread=descending)
        if pairs != sorted(expected[1:4], reverse=descending):
            raise SelfCheckFailed("a scan does not give the stored pairs")
    iterator = await fast.scan(db, b"", None, ScanSettings())
    rows = await fast.next_rows(iterator, 30), await fast.next_rows(iterator, 99)
    if rows[0].pairs() + rows[1].pairs() != sorted((_samples() | _alike()).items()):
        raise SelfCheckFailed("a scan in one piece does not give the stored pairs")
