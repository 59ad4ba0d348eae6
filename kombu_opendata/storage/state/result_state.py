"""Results of tasks and the parts of chords in memory.

A result is a value with a name and an expiry. A chord collects the parts of a group of tasks, each once, until it is
complete. Memory has the values that the store lacks, a bounded cache of the others, and the names of each open chord's
parts. A large value is in a payload segment or, where there are none, in chunks, as payloads are; its own record is
empty, and a further record has its place. The further records are in memory, some 300 bytes each, so that a value is
deleted with its record or when it is replaced, without a read. Memory has the place of a value in a segment, not the
value.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import CorruptRecord
from ..records import field_types, keys
from ..records import results as records
from ..records.payload import CHUNK_BYTES, Chunks
from ..records.payload_places import EnvelopePlace, Place
from ..records.results import Result
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads
from .segment_state import SegmentState
from .write_back_cache import WriteBackCache

#: the size of a place in memory
_PLACE_BYTES = 300


class LargeValues:
    """The records whose values are in chunks or in payload segments, by key.

    An effect counts the value that it adds to a segment. The value is subtracted by the checkpoint that deletes or
    replaces its record or, if there was no checkpoint since the effect, by the one that would have written it.
    """

    def __init__(self, segments: SegmentState) -> None:
        self._segments = segments
        self._records: dict[bytes, bytes] = {}
        self._replaced: list[EnvelopePlace] = []  # places that no checkpoint has written

    def get(self, key: bytes) -> Chunks | EnvelopePlace | None:
        """Return the place of a value as of the last checkpoint; None if the value is in its own record."""
        record = self._records.get(key)
        return None if record is None else records.decode_large_value(keys.large_value_key(key), record)

    async def load(self, store: Reads) -> None:
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.LARGE_VALUE)):
            for key, value in rows:
                records.decode_large_value(key, value)
                self._records[keys.parse(key).owner or b""] = value

    # ------------------------------------------------------------------ changes by effects
    def added(self, value: Place | None) -> None:
        """Count a new value."""
        if isinstance(value, EnvelopePlace):
            self._segments.add(value.path, value.stored_bytes)

    def replaced(self, value: Place | None) -> None:
        """Note that the next checkpoint no longer writes a value."""
        if isinstance(value, EnvelopePlace):
            self._replaced.append(value)

    # ------------------------------------------------------------------ checkpoints
    def snapshot(self) -> None:
        """Subtract the values that were replaced before any checkpoint."""
        for place in self._replaced:
            self._segments.collect(place.path, place.stored_bytes)
        self._replaced.clear()

    def put(self, batch: WriteBatch, key: bytes, value: Place) -> bytes:
        """Add the place of a large value, or its chunks, to a checkpoint's batch; return the value for its record."""
        if isinstance(value, bytes):
            if len(value) <= CHUNK_BYTES:
                self.drop(batch, key)
                return value
            count = -(-len(value) // CHUNK_BYTES)
            place: Chunks | EnvelopePlace = Chunks(count, len(value))
            self.drop(batch, key, count)
            for number in range(count):
                start = number * CHUNK_BYTES
                batch.put(keys.value_chunk_key(key, number), value[start : start + CHUNK_BYTES])
        else:
            place = value
            self.drop(batch, key)
        self._records[key] = record = records.encode_large_value(place)
        batch.put(keys.large_value_key(key), record)
        return b""

    def drop(self, batch: WriteBatch, key: bytes, kept: int = 0) -> None:
        """Delete a value from its segment, or its chunks, except the first ``kept``, which are overwritten."""
        old = self.get(key) if self._records else None
        if old is None:
            return
        del self._records[key]
        if isinstance(old, EnvelopePlace):
            self._segments.collect(old.path, old.stored_bytes)
        else:
            for number in range(kept, old.records):
                batch.delete(keys.value_chunk_key(key, number))
        if not kept:
            batch.delete(keys.large_value_key(key))

    async def read(self, store: Reads, key: bytes, large: Chunks) -> bytes:
        """Read a value in chunks; not during a checkpoint.

        Raises:
            CorruptRecord: a chunk is missing or damaged.
        """
        parts = [await store.get(keys.value_chunk_key(key, number)) or b"" for number in range(large.records)]
        value = b"".join(parts)
        if len(value) != large.size:
            text = f"the chunks of a result hold {len(value)} bytes instead of {large.size}"
            raise CorruptRecord(text, key=keys.large_value_key(key), offset=0)
        return value


def _memory(value: Place) -> int:
    """Return the size of a value in memory, or of its place."""
    return len(value) if isinstance(value, bytes) else _PLACE_BYTES


#: the name of a result without a task: it records that messages may leave results when they expire
HAS_REVOCABLE = b"\0has-revocable"


@dataclass(slots=True, eq=False)
class ChordState:
    """A chord whose callback was not sent yet.

    Attributes:
        size: the number of tasks in the header; -1 if unknown.
        added: tasks that were added to the header later.
        header: the header's structure, as the client encodes it.
        body: the task id of the callback; empty if unknown.
        members: the ids of the added tasks, if their clients sent them; also of those that are done, as a request may
            be repeated later.
        parts: (index, member) → key, of the tasks that are done.
        written: keys of parts that are in the store or in the current checkpoint.
        sender: the session that sends the callback; only in memory, so that another one may send it after a restart.
    """

    expires_at_ms: int = 0
    size: int = -1
    added: int = 0
    header: bytes = b""
    body: bytes = b""
    members: dict[bytes, None] = field(default_factory=dict)
    parts: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    written: set[bytes] = field(default_factory=set)
    is_stored: bool = False
    sender: bytes | None = None

    @property
    def is_complete(self) -> bool:
        """True if every task of the header is done."""
        return self.size >= 0 and len(self.parts) == self.size + self.added


class ResultState:
    """The results and chords of one instance, and the changes of each effect.

    Attributes:
        has_revocable: True if a message has named a result to store when it expires; never reset.
    """

    def __init__(self, segments: SegmentState) -> None:
        self.results: WriteBackCache[Result] = WriteBackCache(lambda result: _memory(result.place or result.value))
        self.parts: WriteBackCache[Place] = WriteBackCache(_memory)
        self.chords: dict[bytes, ChordState] = {}
        self.large = LargeValues(segments)
        self.has_revocable = False
        self._expired: dict[bytes, set[int]] = {}  # by name: the expiry rows to delete; 0 is the result itself
        self._deleted_keys: list[bytes] = []  # keys of closed chords and their parts
        self._dirty_chords: set[bytes] = set()  # chords

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        caches = self.results.is_dirty or self.parts.is_dirty
        return bool(caches or self._expired or self._deleted_keys or self._dirty_chords)

    # ------------------------------------------------------------------ changes by effects
    def store(self, name: bytes, result: Result, at_ms: int) -> None:
        self.large.added(result.place)
        self._put(name, result, at_ms)
        self.has_revocable = self.has_revocable or name == HAS_REVOCABLE

    def forget(self, name: bytes) -> None:
        """Delete a result."""
        self._put(name, None)

    def _put(self, name: bytes, result: Result | None, at_ms: int = 0) -> None:
        replaced = self.results.put(name, result, at_ms)
        if replaced is not None:
            self.large.replaced(replaced.place)

    def add_part(self, group: bytes, index: int, member: bytes, value: Place, at_ms: int, expires_at_ms: int) -> None:
        """Store a part of a chord, unless the chord has it; ``expires_at_ms`` is the chord's."""
        chord = self.change_chord(group)
        if (index, member) not in chord.parts:
            key = chord.parts[index, member] = keys.chord_part_key(group, index, member)
            self.large.added(value)
            self.parts.put(key, value, at_ms)
        chord.expires_at_ms = expires_at_ms

    def change_chord(self, group: bytes) -> ChordState:
        """Return a chord, a new one if there is none, which the caller changes."""
        self._dirty_chords.add(group)
        return self.chords.setdefault(group, ChordState())

    def close_chord(self, group: bytes) -> None:
        chord = self.chords.pop(group, None)
        if chord is None:
            return
        for key in chord.parts.values():
            self.large.replaced(self.parts.discard(key))
        self._deleted_keys += chord.written
        if chord.is_stored:
            self._deleted_keys.append(keys.chord_key(group))
        self._dirty_chords.discard(group)

    def expire(self, name: bytes, expires_at_ms: int, *, is_over: bool) -> None:
        """Delete an expiry row whose time has come, and the result as well if it ``is_over``."""
        rows = self._expired.setdefault(name, set())
        rows.add(expires_at_ms)
        if is_over:
            rows.add(0)
            self.results.forget(name)

    # ------------------------------------------------------------------ checkpoints
    def snapshot(self, batch: WriteBatch) -> None:
        """Add the changes to a checkpoint's batch, after the snapshot of the segments."""
        self.large.snapshot()
        for name, rows in self._expired.items():
            if 0 in rows and not self.results.is_pending(name):
                self._delete(batch, keys.result_key(name))
            for expires_at in rows - {0}:
                batch.delete(keys.result_expiry_key(expires_at, name))
        for key in self._deleted_keys:
            self._delete(batch, key)
        for name, result in self.results.begin_flush().items():
            key = keys.result_key(name)
            if result is None:
                self._delete(batch, key)
                continue
            inline = self.large.put(batch, key, result.place or result.value)
            batch.put(key, records.encode_result(result._replace(value=inline)))
            if result.expires_at_ms:
                batch.put(keys.result_expiry_key(result.expires_at_ms, name), field_types.VERSION_ONLY)
        for key, value in self.parts.begin_flush().items():
            if value is not None:
                batch.put(key, records.encode_part(self.large.put(batch, key, value)))
                self._written(key)
        for group in self._dirty_chords:
            chord = self.chords[group]
            head = records.Chord(
                chord.expires_at_ms, chord.size, chord.added, chord.header, chord.body, tuple(chord.members)
            )
            batch.put(keys.chord_key(group), records.encode_chord(head))
            chord.is_stored = True
        self._expired = {}
        self._deleted_keys = []
        self._dirty_chords = set()

    def _delete(self, batch: WriteBatch, key: bytes) -> None:
        batch.delete(key)
        self.large.drop(batch, key)

    def _written(self, key: bytes) -> None:
        chord = self.chords.get(keys.parse(key).chord or b"")
        if chord is not None:
            chord.written.add(key)

    def end_flush(self) -> None:
        """End the flushes of the caches; the checkpoint is in the store."""
        self.results.end_flush()
        self.parts.end_flush()

    async def load(self, store: Reads) -> None:
        """Load the open chords, without the values of their parts."""
        await self.large.load(store)
        self.has_revocable = await store.get(keys.result_key(HAS_REVOCABLE)) is not None
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.CHORD)):
            for key, value in rows:
                head = records.decode_chord(key, value)
                chord = self.chords[keys.parse(key).chord or b""] = ChordState(*head[:5], dict.fromkeys(head.members))
                chord.is_stored = True
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.CHORD_PART)):
            for key, _value in rows:
                parsed = keys.parse(key)
                chord = self.chords.setdefault(parsed.chord or b"", ChordState())
                chord.parts[parsed.header_index or 0, parsed.result or b""] = key
                chord.written.add(key)
