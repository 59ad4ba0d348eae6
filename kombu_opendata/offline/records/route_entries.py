"""Entries of the routes blocks in the order of message ids, for a scan over messages."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import CorruptRecord
from ...storage.records import keys, routes_block
from ...storage.records.keys import RecordKind
from ...storage.records.routes_block import BLOCK_BITS
from .offline_store import OfflineStore, Pair

OnCorrupt = Callable[[bytes, CorruptRecord], None]
OnRow = Callable[[RecordKind, bytes, bytes], None]

#: higher than every message id
_NONE = 1 << 64
_PREFIX = RecordKind.ROUTES_BLOCK.prefix
#: blocks per read
_BATCH = 100


class RouteBlocks:
    """Routes blocks of a store. A window may end within a block, which is then decoded twice but reported once.

    Attributes:
        damaged: the numbers of the blocks that did not decode so far.
    """

    def __init__(self, store: OfflineStore, on_corrupt: OnCorrupt, on_row: OnRow) -> None:
        self.store = store
        self._on_corrupt, self._on_row = on_corrupt, on_row
        self._last = b""  # key of the last block that was reported
        self.damaged: set[int] = set()

    async def first_from(self, low: int) -> list[int]:
        """Return the first id from ``low`` on that has an entry, or may have had one in a damaged block.

        Empty if none has.
        """
        async for rows in self.store.scan_batches(*range_of(low, keys.MAX_MESSAGE_ID), batch=2):
            for key, value in rows:
                try:
                    ids = [id for id in _decode(key, value) if id >= low]
                except CorruptRecord:
                    ids = [max(_number(key) << BLOCK_BITS, low)] if key > self._last else []
                if ids:
                    return ids[:1]
        return []

    def entries(self, key: bytes, value: bytes) -> dict[int, int]:
        """Return the count of each message id; empty for a damaged block."""
        is_new = key > self._last
        if is_new:
            self._last = key
            self._on_row(RecordKind.ROUTES_BLOCK, key, value)
        try:
            return _decode(key, value)
        except CorruptRecord as exc:
            if is_new:
                self.damaged.add(_number(key))
                self._on_corrupt(key, exc)
            return {}


class RouteCursor:
    """Cursor over the entries of a window; ``id`` is the next message id, or above all ids at the end."""

    __slots__ = ("_at", "_batches", "_blocks", "_found", "_high", "_low", "id")

    def __init__(self, blocks: RouteBlocks, low: int, high: int) -> None:
        self._blocks, self._low, self._high = blocks, low, high
        self._batches = blocks.store.scan_batches(*range_of(low, high), batch=_BATCH)
        self._found: list[tuple[int, int]] = []
        self._at = 0
        self.id = _NONE

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._found)

    async def fill(self) -> None:
        """Read the next batch, if there is one."""
        self._found, self._at = [], 0
        rows: list[Pair] = await anext(self._batches, [])
        while rows and not self._found:
            for key, value in rows:
                entries = self._blocks.entries(key, value).items()
                self._found += [(id, count) for id, count in entries if self._low <= id < self._high]
            if not self._found:
                rows = await anext(self._batches, [])
        self._look()

    def take(self) -> int:
        """Return the count of the current entry, and advance."""
        _id, count = self._found[self._at]
        self._at += 1
        self._look()
        return count

    def _look(self) -> None:
        self.id = _NONE if self.is_empty else self._found[self._at][0]


def range_of(low: int, high: int) -> tuple[bytes, bytes]:
    """Return the range of keys of the blocks that may have ids from ``low`` to ``high`` (exclusive)."""
    first, end = low >> BLOCK_BITS, (high - 1 >> BLOCK_BITS) + 1
    return _PREFIX + (first.to_bytes(8, "big") if first else b""), _PREFIX + end.to_bytes(8, "big")


def _decode(key: bytes, value: bytes) -> dict[int, int]:
    keys.parse(key)
    return routes_block.decode(key, value)


def _number(key: bytes) -> int:
    """Return the number of a block in its key, padded if the key is too short."""
    return int.from_bytes(key[len(_PREFIX) : len(_PREFIX) + 8].ljust(8, b"\0"), "big")
