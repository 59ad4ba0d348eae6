"""The metadata log, read in blocks in order of message ids; the next block is read ahead."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import NamedTuple

from ..engine_parts import EngineParts, EngineService
from ..records import keys
from ..slatedb.rows import Pair
from ..slatedb.store_writer import SlateStore
from .stored_messages import id_of

_READ_AHEAD_BYTES = 512 << 10
#: a block also ends after this many bytes
_BLOCK_BYTES = 1 << 20
#: rows that are read first, to measure their size
_FIRST_ROWS = 32
#: approximate bytes of each further call
_CALL_BYTES = 256 << 10
#: most rows of one call, as the following ones may be larger
_CALL_ROWS = 1024
#: collected messages after which a block is read again
_MAX_COLLECTED = 100_000


class MetadataBlock(NamedTuple):
    """All metadata records from some id on and before ``upto``.

    ``collected`` has the messages that were removed from the store since, including some that are not in the block.
    """

    rows: list[Pair]
    upto: int
    collected: set[int]

    @property
    def is_stale(self) -> bool:
        """True if so much of the block was collected that it should be read again."""
        return len(self.collected) > _MAX_COLLECTED


class BlockReader(EngineService):
    """The reader of one cursor's blocks; must be closed.

    Attributes:
        block: the last block; None before the first, after a failure and after :meth:`close`.
    """

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self.block: MetadataBlock | None = None
        self._ahead: asyncio.Task[MetadataBlock] | None = None
        self._ahead_start = -1
        self._is_closed = False
        self._row_bytes = 0  # average of the last block

    async def read(self, start: int, end: int) -> None:
        """Set ``block`` to that of ids from ``start`` to below ``end``, and start reading the next one."""
        self._drop()
        if self._ahead is not None and self._ahead_start != start:
            self._abandon()
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._read(start, end), name="metadata block")
        task = self._ahead
        try:
            block = await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._ahead is task:
                self._abandon()
            raise
        except BaseException:
            if self._ahead is task:
                self._ahead = None
            raise
        if self._is_closed:
            return  # closed during the read
        self.block, self._ahead = block, None
        if block.upto < end:
            self._ahead_start = block.upto
            self._ahead = asyncio.create_task(self._read(block.upto, end), name="metadata ahead")

    def close(self) -> None:
        """Remove the block, and the one that is being read."""
        self._is_closed = True
        self._drop()
        self._abandon()

    async def _read(self, start: int, end: int) -> MetadataBlock:
        collected: set[int] = set()
        async with self._commits.checkpointing:  # a running checkpoint may delete records that a read still sees
            self._commits.watches.append(collected)
        try:
            rows, upto = await read_block(self._store, start, end, self._sizes.block_rows, self._row_bytes)
            self._row_bytes = mean_bytes(rows) if rows else 0
            return MetadataBlock(rows, upto, collected)
        except BaseException:
            self._commits.unwatch(collected)
            raise

    def _drop(self) -> None:
        if self.block is not None:
            self._commits.unwatch(self.block.collected)
            self.block = None

    def _abandon(self) -> None:
        """Remove the block that is being read. The read itself continues, as another call may be waiting for it."""

        def end(task: asyncio.Task[MetadataBlock]) -> None:
            if not task.cancelled() and task.exception() is None:
                self._commits.unwatch(task.result().collected)

        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.add_done_callback(end)


async def read_block(
    store: SlateStore, low: int, high: int, block_rows: int, row_bytes: int = 0
) -> tuple[list[Pair], int]:
    """Return entries of the metadata log with ``low`` ≤ id < ``high``, and the id up to which they are complete.

    ``row_bytes``: average size of an entry; 0 if it is unknown and must be measured first.
    """
    rows: list[Pair] = []
    if not row_bytes:
        first_rows = min(_FIRST_ROWS, block_rows)
        rows = await store.scan(
            keys.metadata_key(low), keys.metadata_key(high), limit=first_rows, cache_blocks=False, in_thread=True
        )
        if len(rows) < first_rows:
            return rows, high
        row_bytes = mean_bytes(rows)
        low = id_of(rows[-1][0]) + 1
        if len(rows) >= block_rows:
            return rows, low
    size = row_bytes * len(rows)
    start = keys.metadata_key(low)
    end = keys.metadata_key(high)
    count = min(block_rows, _CALL_ROWS)
    batch = max(min(count, _CALL_BYTES // row_bytes), 1)
    batches = store.scan_batches(start, end, batch=batch, read_ahead_bytes=_READ_AHEAD_BYTES, in_thread=True)
    async with aclosing(batches) as reading:
        async for part in reading:
            rows += part
            size += sum(len(value) for _key, value in part)
            if size >= _BLOCK_BYTES or len(rows) >= block_rows:
                return rows, id_of(rows[-1][0]) + 1
    return rows, high


def mean_bytes(rows: list[Pair]) -> int:
    """Return the average size of a value, at least 1."""
    return max(sum(len(value) for _key, value in rows) // max(len(rows), 1), 1)
