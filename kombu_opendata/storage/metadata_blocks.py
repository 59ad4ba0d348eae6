"""The metadata log, read block by block in the order of ids: the next one is on its way while one is looked at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from .ffi import Pair
from .records import keys
from .stored_messages import id_of

if TYPE_CHECKING:
    from .engine import Engine
    from .slate import SlateStore

_READ_AHEAD_BYTES = 512 << 10
#: a block ends after so many rows or bytes
_BLOCK_ROWS = 4096
_BLOCK_BYTES = 1 << 20
#: rows of the first call; more follow in larger ones while they are small
_FIRST_ROWS = 32
_CALL_BYTES = 256 << 10
#: collected messages that are remembered before the blocks are read again
_MAX_COLLECTED = 100_000


class Block(NamedTuple):
    """All metadata records from some id on, and before ``upto``.

    ``collected`` are messages that were removed from the store since they were read, among others.
    """

    rows: list[Pair]
    upto: int
    collected: set[int]

    @property
    def is_stale(self) -> bool:
        """Whether so much was collected that it is to be read again."""
        return len(self.collected) > _MAX_COLLECTED


class BlockReader:
    """Reads the blocks of one cursor. To be closed.

    Attributes:
        block: the one that was read last; None before the first, after a failure and once it is closed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.block: Block | None = None
        self._ahead: asyncio.Task[Block] | None = None
        self._ahead_start = -1
        self._is_closed = False

    async def read(self, start: int, end: int) -> None:
        """Make ``block`` the one that begins at ``start``; the one after it is read from now on. Of ids below ``end``.

        Raises:
            CorruptRecord, StoreError: the store can't be read.
        """
        self._drop()
        if self._ahead is not None and self._ahead_start != start:
            self._abandon()
        if self._ahead is None:
            self._ahead = asyncio.create_task(self._read(start, end), name="metadata block")
        reading = self._ahead
        try:
            block = await asyncio.shield(reading)
        except asyncio.CancelledError:
            if self._ahead is reading:
                self._abandon()
            raise
        except BaseException:
            if self._ahead is reading:
                self._ahead = None
            raise
        if self._is_closed:
            return  # meanwhile: nobody will use it
        self.block, self._ahead = block, None
        if block.upto < end:
            self._ahead_start = block.upto
            self._ahead = asyncio.create_task(self._read(block.upto, end), name="metadata ahead")

    def close(self) -> None:
        """Let go of everything."""
        self._is_closed = True
        self._drop()
        self._abandon()

    async def _read(self, start: int, end: int) -> Block:
        collected: set[int] = set()
        async with self._engine.checkpointing:  # what one under way deletes may still be seen
            self._engine.watches.append(collected)
        try:
            return Block(*await read_block(self._engine.store, start, end), collected)
        except BaseException:
            self._engine.unwatch(collected)
            raise

    def _drop(self) -> None:
        if self.block is not None:
            self._engine.unwatch(self.block.collected)
            self.block = None

    def _abandon(self) -> None:
        """Let go of the block that is being read. It is read to its end: somebody may be waiting for it."""

        def end(task: asyncio.Task[Block]) -> None:
            if not task.cancelled() and task.exception() is None:
                self._engine.unwatch(task.result().collected)

        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.add_done_callback(end)


async def read_block(store: SlateStore, low: int, high: int) -> tuple[list[Pair], int]:
    """Entries of the metadata log with ``low`` ≤ id < ``high``, and the id up to which these are all there are."""
    found: list[Pair] = []
    size, rows = 0, _FIRST_ROWS
    position = low
    while size < _BLOCK_BYTES and len(found) < _BLOCK_ROWS:
        wanted = max(rows, 1)
        part = await store.scan(
            keys.metadata_key(position),
            keys.metadata_key(high),
            limit=wanted,
            read_ahead_bytes=_READ_AHEAD_BYTES,
            cache_blocks=False,
            in_thread=True,
        )
        found += part
        if len(part) < wanted:
            return found, high
        position = id_of(part[-1][0]) + 1
        bytes_read = sum(len(value) for _key, value in part)
        size += bytes_read
        rows = min(_BLOCK_ROWS, wanted * _CALL_BYTES // max(bytes_read, 1))
    return found, position
