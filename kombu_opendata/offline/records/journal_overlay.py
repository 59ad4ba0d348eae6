"""Commits of the journal that are not in the store yet, as records.

The methods of recovery replay the commits, and the engine's functions create the checkpoint that a broker would write
when it opens the store, in a batch that stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import CorruptRecord
from ...storage.clock import Clock
from ...storage.commit import checkpoint, recovery
from ...storage.effects.codec import Commit
from ...storage.messages.new_message import NewMessage
from ...storage.records import keys
from ...storage.records.payload import message_rows
from ...storage.slatedb.ffi import WriteBatch
from ...storage.slatedb.store_reads import Reads
from ...storage.state.store_state import StoreState

#: exceptions of recovery if records and commits contradict each other
CONTRADICTIONS = (LookupError, TypeError, ValueError, AttributeError, AssertionError, OverflowError)

Changes = dict[bytes, bytes | None]


class MemoryBatch(WriteBatch):
    """Batch that is never written.

    Attributes:
        changes: the value of each key, None if it is deleted. The last change of a key counts.
    """

    __slots__ = ("changes",)

    def __init__(self) -> None:
        super().__init__(None)
        self.changes: Changes = {}

    def __len__(self) -> int:
        return len(self.changes)

    def put(self, key: bytes, value: bytes) -> None:
        self.changes[key] = value

    def delete(self, key: bytes) -> None:
        self.changes[key] = None


async def replayed(store: Reads, commits: list[Commit], last: int, clock: Clock) -> Changes:
    """Return the records that these commits change.

    This needs the memory of the commits, and that of a broker's startup.

    Args:
        last: the sequence number of the last commit.

    Raises:
        CorruptRecord: a record that is needed does not decode, or the commits contradict the store.
    """
    try:
        state = StoreState()
        await recovery.rebuild(state, store, commits, clock)
        batch = MemoryBatch()
        fresh: dict[int, bytes] = {}
        for effects in commits:
            for effect in effects:
                _put(effect.new_messages(), batch, fresh)
        dirty = checkpoint.snapshot(state, batch, last, clock.now_ms())
        await checkpoint.resolve(dirty, batch, store, fresh, state)
    except CONTRADICTIONS as exc:
        raise CorruptRecord(f"the journal contradicts the store: {exc!r}", key=b"", offset=0) from exc
    return batch.changes


def _put(records: Iterable[NewMessage], batch: MemoryBatch, fresh: dict[int, bytes]) -> None:
    """Add the records of new messages to the batch."""
    for record in records:
        if record.uri:
            batch.put(keys.metadata_key(record.id), record.metadata)
            batch.put(keys.payload_key(record.id), record.uri)
            continue
        for row in message_rows(record.id, record.metadata, record.envelope):
            batch.put(*row)
        fresh[record.id] = record.envelope
