"""The failed attempts that were retried or archived, so that no user handles them twice."""

from __future__ import annotations

from collections.abc import Iterable

from ..records import handled_failures as records
from ..records import keys
from ..records.handled_failures import BLOCK_BITS, Handled
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads

_LOW = (1 << BLOCK_BITS) - 1


class _Block:
    """256 attempts: a bit for each handled one, and the handled ones packed as in their record."""

    __slots__ = ("mask", "packed")

    def __init__(self) -> None:
        self.mask = 0
        self.packed = b""


class HandledFailures:
    """The handled attempts in blocks of 256, each of which is a record.

    Blocks are removed with the attempts of the history's log.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._dirty: set[int] = set()

    async def load(self, store: Reads) -> None:
        """Load the stored blocks."""
        kind = keys.kind_range(keys.RecordKind.HANDLED_FAILURES)
        async for rows in store.scan_batches(*kind, batch=64):
            for key, value in rows:
                self._add(records.decode(key, value))

    def _add(self, rows: Iterable[Handled]) -> None:
        for row in rows:
            if row.number in self:
                continue
            block = self._blocks.setdefault(row.number >> BLOCK_BITS, _Block())
            block.mask |= 1 << (row.number & _LOW)
            block.packed += records.pack(row)

    # ------------------------------------------------------------------ reading
    def __contains__(self, number: int) -> bool:
        block = self._blocks.get(number >> BLOCK_BITS)
        return block is not None and bool(block.mask >> (number & _LOW) & 1)

    def find(self, number: int) -> Handled | None:
        """Return the record of a handled attempt, if it was handled."""
        return next((row for row in self._rows(number >> BLOCK_BITS) if row.number == number), None)

    def numbers(self) -> list[int]:
        """Return the numbers of all handled attempts, in order."""
        blocks = sorted(self._blocks)
        return [number for block in blocks for number in sorted(row.number for row in self._rows(block))]

    def _rows(self, number: int) -> list[Handled]:
        block = self._blocks.get(number)
        return [] if block is None else records.decode(keys.handled_failures_key(number), records.join(block.packed))

    # ------------------------------------------------------------------ changes
    def handled(self, rows: Iterable[Handled]) -> None:
        """Record that these attempts were handled; an attempt that was handled before is unchanged."""
        rows = list(rows)
        self._add(rows)
        self._dirty.update(row.number >> BLOCK_BITS for row in rows)

    def drop_before(self, number: int) -> None:
        """Remove the blocks of attempts that are no longer in the log, which begins with this one."""
        old_blocks = [block for block in self._blocks if (block + 1) << BLOCK_BITS <= number]
        for block in old_blocks:
            del self._blocks[block]
        self._dirty.update(old_blocks)

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        return bool(self._dirty)

    def snapshot(self, batch: WriteBatch) -> None:
        """Add the changes to a checkpoint's batch."""
        for number in self._dirty:
            block = self._blocks.get(number)
            key = keys.handled_failures_key(number)
            if block is None:
                batch.delete(key)
            else:
                batch.put(key, records.join(block.packed))
        self._dirty.clear()
