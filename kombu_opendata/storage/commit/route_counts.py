"""The number of queues that each message is in, counted in blocks. A checkpoint reads and writes each block once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from ...errors import RequestError
from ..clock import TimeSlice
from ..engine_sizes import SIZES, EngineSizes
from ..records import keys, routes_block
from ..records.routes_block import BLOCK_BITS, KEPT, KEPT_IN_CHUNKS, LOW, MAX_COUNT
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads

#: the longest range of blocks that is read with one scan
_SPAN = 400


class RouteCounts:
    """The counts in the loaded blocks. :meth:`put_into` adds the changes to a batch."""

    def __init__(self, store: Reads, sizes: EngineSizes = SIZES) -> None:
        self.max_blocks, self._read_blocks = sizes.route_blocks, sizes.route_reads
        self._store = store
        self._blocks: dict[int, array[int] | None] = {}  # None: the store has none
        self._dirty: set[int] = set()

    async def load(self, ids: Iterable[int]) -> None:
        """Load the blocks of these messages, whose ids are in order.

        Raises:
            CorruptRecord: a block does not decode.
        """
        missing = [block for block in dict.fromkeys([id >> BLOCK_BITS for id in ids]) if block not in self._blocks]
        self._blocks.update(dict.fromkeys(missing))
        for first, last in _runs(missing):
            await self._load_run(first, last)

    async def _load_run(self, first: int, last: int) -> None:
        low, high = (keys.routes_block_key(block << BLOCK_BITS) for block in (first, last))
        if first == last:
            value = await self._store.get(low)
            if value is not None:
                self._blocks[first] = routes_block.read(low, value)
            return
        async for rows in self._store.scan_batches(low, high + b"\0", batch=self._read_blocks):
            for key, value in rows:
                block = int.from_bytes(key[2:10], "big")
                if len(key) == len(low) and self._blocks.get(block, b"") is None:
                    self._blocks[block] = routes_block.read(key, value)

    def get(self, id: int) -> int:
        """Return the number of queues that the message is in, or the mark of a kept message; 0 if it has no entry.

        Its block must be loaded, here and in the methods below.
        """
        block = self._blocks[id >> BLOCK_BITS]
        return 0 if block is None else block[id & LOW]

    def set(self, id: int, count: int) -> None:
        """Set the number of queues that the message is in; 0 removes its entry.

        Raises:
            RequestError: the message is in more queues than can be counted.
        """
        if count > MAX_COUNT:
            raise RequestError(f"message {id} is in {count} queues; at most {MAX_COUNT} are counted", message_id=id)
        self._put(id, count)

    def is_kept(self, id: int) -> bool:
        """Return True if the log keeps the message although no queue needs it."""
        return self.get(id) >= KEPT_IN_CHUNKS

    def keep(self, id: int, *, in_chunks: bool) -> None:
        """Record that no queue needs the message, and that the log keeps it."""
        self._put(id, KEPT_IN_CHUNKS if in_chunks else KEPT)

    def _put(self, id: int, count: int) -> None:
        number = id >> BLOCK_BITS
        block = self._blocks[number]
        if block is None:
            block = self._blocks[number] = routes_block.empty()
        if block[id & LOW] == count:
            return
        block[id & LOW] = count
        self._dirty.add(number)

    async def put_into(self, batch: WriteBatch) -> None:
        """Add the changed blocks to the batch, and clear all blocks."""
        async for number in TimeSlice().over(sorted(self._dirty)):
            key, block = keys.routes_block_key(number << BLOCK_BITS), self._blocks[number]
            batch.put_or_delete(key, routes_block.encode(block) if block is not None and any(block) else None)
        self._blocks, self._dirty = {}, set()


def portions(ids: list[int], max_blocks: int) -> Iterator[list[int]]:
    """Split the sorted ids into lists whose blocks fit in memory together."""
    start = 0
    first = -1
    blocks = 0
    for place, id in enumerate(ids):
        if id >> BLOCK_BITS != first:
            first = id >> BLOCK_BITS
            blocks += 1
            if blocks > max_blocks:
                yield ids[start:place]
                start, blocks = place, 1
    if start < len(ids):
        yield ids[start:]


def _runs(blocks: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the blocks that are near each other."""
    position = 0
    while position < len(blocks):
        last = position
        while last + 1 < len(blocks) and blocks[last + 1] - blocks[position] < _SPAN:
            last += 1
        yield blocks[position], blocks[last]
        position = last + 1
