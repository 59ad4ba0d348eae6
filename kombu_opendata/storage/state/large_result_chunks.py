"""Values of results and of chords' parts that are too large for one record.

Such a value is stored in chunks, as payloads are, and its own record is empty. A further record has the number of
chunks. These records are in memory, so that old chunks are deleted if their value is deleted or changed.
"""

from __future__ import annotations

from ...errors import CorruptRecord
from ..records import keys
from ..records import results as records
from ..records.payload import CHUNK_BYTES
from ..records.results import LargeValue
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads


class LargeValues:
    """The records whose values are in chunks, by key."""

    def __init__(self) -> None:
        self._values: dict[bytes, LargeValue] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._values

    async def load(self, store: Reads) -> None:
        """Load the records of all large values."""
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.LARGE_VALUE)):
            for key, value in rows:
                self._values[keys.parse(key).owner or b""] = records.decode_large_value(key, value)

    def put(self, batch: WriteBatch, key: bytes, value: bytes) -> bytes:
        """Add the chunks of a large value to a checkpoint's batch; return the value for the record of this key."""
        if len(value) <= CHUNK_BYTES:
            self.drop(batch, key)
            return value
        new = LargeValue(-(-len(value) // CHUNK_BYTES), len(value))
        self.drop(batch, key, new.chunks)
        for number in range(new.chunks):
            start = number * CHUNK_BYTES
            batch.put(keys.value_chunk_key(key, number), value[start : start + CHUNK_BYTES])
        batch.put(keys.large_value_key(key), records.encode_large_value(new))
        self._values[key] = new
        return b""

    def drop(self, batch: WriteBatch, key: bytes, kept: int = 0) -> None:
        """Delete the chunks of a value, except the first ``kept``, which are overwritten."""
        old = self._values.pop(key, None) if self._values else None
        if old is None:
            return
        for number in range(kept, old.chunks):
            batch.delete(keys.value_chunk_key(key, number))
        if not kept:
            batch.delete(keys.large_value_key(key))

    async def read(self, store: Reads, key: bytes) -> bytes:
        """Read a value in chunks; not during a checkpoint.

        Raises:
            CorruptRecord: a chunk is missing or damaged.
        """
        large = self._values[key]
        parts = [await store.get(keys.value_chunk_key(key, number)) or b"" for number in range(large.chunks)]
        value = b"".join(parts)
        if len(value) != large.size:
            text = f"the chunks of a result hold {len(value)} bytes instead of {large.size}"
            raise CorruptRecord(text, key=keys.large_value_key(key), offset=0)
        return value
