"""The payload segments that messages and results need, and the number and size of these messages and values.

A record of a segment counts the payload records in the store that refer to it, so both are written by the same
checkpoint. Effects count new messages; a message is subtracted when a checkpoint deletes its records. The value of a
result, or of a chord's part, counts as a message.
"""

from __future__ import annotations

from ..records import keys, payload
from ..records.payload import SegmentUse
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads

_UNUSED = SegmentUse(0, 0)


class SegmentState:
    """The payload segments of one instance, by path."""

    def __init__(self) -> None:
        self._uses: dict[str, SegmentUse] = {}  # as of the last checkpoint's snapshot, without collected messages
        self._added: dict[str, SegmentUse] = {}  # since then
        self._changed: set[str] = set()
        self._emptied: set[str] = set()  # without messages since the current checkpoint
        self._unneeded: set[str] = set()  # without messages in the store, and not released yet

    @property
    def bytes(self) -> int:
        """The bytes that all messages take."""
        return sum(use.bytes for uses in (self._uses, self._added) for use in uses.values())

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        return bool(self._added)

    @property
    def has_unused(self) -> bool:
        """True if all messages of some segment were deleted, and it is not released yet."""
        return any(map(self.is_unused, self._unneeded))

    def needs(self, path: str) -> bool:
        """Return True if a message of the segment exists, or the store may still have its record."""
        return any(path in paths for paths in (self._uses, self._added, self._emptied, self._unneeded))

    def add(self, path: str, size: int) -> None:
        """Count a new message, which takes ``size`` bytes."""
        self._added[path] = self._added.get(path, _UNUSED).plus(1, size)

    def collect(self, path: str, size: int) -> None:
        """Subtract a message that the current checkpoint deletes."""
        use = self._uses.get(path)
        if use is not None:  # without a record, a part of the store was lost: rather keep a file too long
            self._uses[path] = use.plus(-1, -size)
            self._changed.add(path)

    def snapshot(self) -> None:
        """Count the messages that were added before the current checkpoint."""
        added, self._added = self._added, {}
        for path, use in added.items():
            self._uses[path] = self._uses.get(path, _UNUSED).plus(*use)
        self._changed |= added.keys()

    def put_into(self, batch: WriteBatch) -> None:
        """Add the changed records to the checkpoint's batch, after its messages were collected."""
        for path in self._changed:
            use = self._uses[path]
            batch.put_or_delete(keys.segment_key(path), payload.encode_segment(use) if use.messages > 0 else None)
            if use.messages <= 0:
                del self._uses[path]
                self._unneeded.discard(path)  # of an earlier time without messages
                self._emptied.add(path)
        self._changed.clear()

    def end_flush(self) -> None:
        """Note that the store has the checkpoint."""
        self._unneeded |= self._emptied
        self._emptied.clear()

    def release(self, open_path: str) -> list[str]:
        """Return the segments without messages in the store and in memory, except the open one.

        No later call returns them again.
        """
        released = [path for path in self._unneeded if path != open_path and self.is_unused(path)]
        self._unneeded.difference_update(released)
        return released

    def is_unused(self, path: str) -> bool:
        """Return True if all messages of a segment were deleted, by a checkpoint that is in the store."""
        return path in self._unneeded and path not in self._added and path not in self._uses

    async def load(self, store: Reads) -> None:
        """Load the records of all segments."""
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.SEGMENT)):
            for key, value in rows:
                self._uses[keys.parse(key).name or ""] = payload.decode_segment(key, value)
