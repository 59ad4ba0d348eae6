"""Results of tasks and the parts of chords: their state in memory, and what can be done to them.

A result is a value with a name and an expiry. A chord collects the parts of a group of tasks, each once, and knows when
all are there. Memory holds what the store does not have yet, a bounded cache of the rest, and of each open chord the
names of its parts; values that are not at hand are read from the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from . import effects as fx
from .ffi import Batch
from .large_values import LargeValues
from .records import keys
from .records import results as records
from .records.results import FINAL, Result
from .shelf import Shelf
from .slate_reads import Reads

if TYPE_CHECKING:
    from .engine import Engine

#: expired results that one sweep removes at most, and how many are looked at together
_SWEEP_LIMIT = 50_000
_SWEEP_PAGE = 100
#: by how much a client's idea of a task's age may be wrong
_AGE_SLACK_MS = 1000
#: a result of no task, which remembers that messages may leave results when they expire
_HAS_REVOCABLE = b"\0has-revocable"


class OpenChord:
    """A chord whose callback was not sent yet.

    Attributes:
        size: of the header; -1 while it is not known.
        added: tasks that came to the header later.
        header: what the client wants to remember of the header's structure.
        body: the task id of its callback; empty where it is not known.
        parts: (index, member) → key, of the tasks that are done.
        sender: the session that sends the callback; only in memory, so that after a restart another one may.
    """

    __slots__ = ("added", "body", "expires_at_ms", "header", "is_stored", "parts", "sender", "size", "written")

    def __init__(
        self, expires_at_ms: int = 0, size: int = -1, added: int = 0, header: bytes = b"", body: bytes = b""
    ) -> None:
        self.expires_at_ms = expires_at_ms
        self.size = size
        self.added = added
        self.header = header
        self.body = body
        self.parts: dict[tuple[int, bytes], bytes] = {}
        self.written: set[bytes] = set()  # keys of parts that the store has, or gets with the checkpoint under way
        self.is_stored = False
        self.sender: bytes | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every task of the header is done."""
        return self.size >= 0 and len(self.parts) == self.size + self.added


class ResultState:
    """The results and chords of one instance, and what each effect does to them.

    Attributes:
        has_revocable: some message says what result it leaves when it expires. It stays so for the life of the store.
    """

    def __init__(self) -> None:
        self.results: Shelf[Result] = Shelf(lambda result: len(result.value))
        self.parts: Shelf[bytes] = Shelf(len)
        self.chords: dict[bytes, OpenChord] = {}
        self.large = LargeValues()
        self.has_revocable = False
        self._expired: dict[bytes, set[int]] = {}  # by name: the expiry rows that go; 0 is the result itself
        self._gone: list[bytes] = []  # keys of closed chords and their parts
        self._changed: set[bytes] = set()  # chords

    @property
    def is_dirty(self) -> bool:
        """Whether a checkpoint has something to write."""
        shelves = self.results.is_dirty or self.parts.is_dirty
        return bool(shelves or self._expired or self._gone or self._changed)

    # ------------------------------------------------------------------ effects
    def replay(self, effect: fx.Effect) -> None:
        """Apply one effect from the journal."""
        kind, *fields = effect
        if kind == fx.RESULT:
            self.store(*fields)
        elif kind == fx.FORGET_RESULTS:
            self.forget(*fields)
        elif kind == fx.OPEN_CHORD:
            self.open_chord(*fields)
        else:
            self.close_chord(*fields)

    def store(
        self,
        name: bytes,
        kind: int,
        expires_at_ms: int,
        value: bytes,
        group: bytes,
        index: int,
        member: bytes,
        chord_expires_at_ms: int,
        at_ms: int = 0,
    ) -> None:
        """A result (if it has a name), which may be a chord's part as well (if it has a group)."""
        if name:
            self.results.put(name, Result(kind, expires_at_ms, value), at_ms)
            self.has_revocable = self.has_revocable or name == _HAS_REVOCABLE
        if not group:
            return
        chord = self.chords.get(group)
        if chord is None:
            chord = self.chords[group] = OpenChord()
        if (index, member) not in chord.parts:
            key = chord.parts[index, member] = keys.chord_part_key(group, index, member)
            self.parts.put(key, value, at_ms)
        chord.expires_at_ms = chord_expires_at_ms
        self._changed.add(group)

    def forget(self, names: Iterable[bytes]) -> None:
        """Results that nobody wants any more."""
        for name in names:
            self.results.put(name, None)

    def open_chord(
        self, group: bytes, expires_at_ms: int, size: int, added: int, header: bytes, again: bool, body: bytes = b""
    ) -> None:
        """What is known of a chord: its size (-1: not yet), ``added`` more tasks, its header; ``again`` starts anew."""
        if again:
            self.close_chord(group)
        chord = self.chords.get(group)
        if chord is None:
            chord = self.chords[group] = OpenChord()
        chord.expires_at_ms = expires_at_ms
        chord.size = size if size >= 0 else chord.size
        chord.added += added
        chord.header = header or chord.header
        chord.body = body or chord.body
        self._changed.add(group)

    def close_chord(self, group: bytes) -> None:
        """The chord is over: its parts go."""
        chord = self.chords.pop(group, None)
        if chord is None:
            return
        for key in chord.parts.values():
            self.parts.discard(key)
        self._gone += chord.written
        if chord.is_stored:
            self._gone.append(keys.chord_key(group))
        self._changed.discard(group)

    def expire(self, name: bytes, expires_at_ms: int, *, is_over: bool) -> None:
        """An expiry row that was reached; ``is_over`` when the result itself is past it too."""
        rows = self._expired.setdefault(name, set())
        rows.add(expires_at_ms)
        if is_over:
            rows.add(0)
            self.results.forget(name)

    # ------------------------------------------------------------------ checkpoints
    def snapshot(self, batch: Batch) -> None:
        """Add what changed to a checkpoint's batch."""
        for name, rows in self._expired.items():
            if 0 in rows and not self.results.is_pending(name):
                self._delete(batch, keys.result_key(name))
            for expires_at in rows - {0}:
                batch.delete(keys.result_expiry_key(expires_at, name))
        for key in self._gone:
            self._delete(batch, key)
        for name, result in self.results.begin_flush().items():
            key = keys.result_key(name)
            if result is None:
                self._delete(batch, key)
                continue
            inline = self.large.put(batch, key, result.value)
            batch.put(key, records.encode_result(result._replace(value=inline)))
            if result.expires_at_ms:
                batch.put(keys.result_expiry_key(result.expires_at_ms, name), records.encode_expiry())
        for key, value in self.parts.begin_flush().items():
            if value is not None:
                batch.put(key, records.encode_part(self.large.put(batch, key, value)))
                self._written(key)
        for group in self._changed:
            chord = self.chords[group]
            head = records.Chord(chord.expires_at_ms, chord.size, chord.added, chord.header, chord.body)
            batch.put(keys.chord_key(group), records.encode_chord(head))
            chord.is_stored = True
        self._expired, self._gone, self._changed = {}, [], set()

    def _delete(self, batch: Batch, key: bytes) -> None:
        batch.delete(key)
        self.large.drop(batch, key)

    def _written(self, key: bytes) -> None:
        chord = self.chords.get(keys.parse(key).chord or b"")
        if chord is not None:
            chord.written.add(key)

    def end_flush(self) -> None:
        """The checkpoint is in the store."""
        self.results.end_flush()
        self.parts.end_flush()

    async def load(self, store: Reads) -> None:
        """Find the chords that are open; the values stay where they are."""
        await self.large.load(store)
        self.has_revocable = await store.get(keys.result_key(_HAS_REVOCABLE)) is not None
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.CHORD)):
            for key, value in rows:
                chord = self.chords[keys.parse(key).chord or b""] = OpenChord(*records.decode_chord(key, value))
                chord.is_stored = True
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.CHORD_PART)):
            for key, _value in rows:
                parsed = keys.parse(key)
                chord = self.chords.setdefault(parsed.chord or b"", OpenChord())
                chord.parts[parsed.header_index or 0, parsed.result or b""] = key
                chord.written.add(key)


class Results:
    """What can be done to an engine's results. Nothing may be shown to anybody before the engine's commit.

    ``stored`` results and ``chords_completed`` (their callbacks were sent) are counted since the start.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.stored = self.chords_completed = 0

    @property
    def state(self) -> ResultState:
        return self._engine.state.results

    # ------------------------------------------------------------------ reading
    def find(self, name: bytes, age_ms: int = -1) -> tuple[bool, Result | None]:
        """Whether it is known what the result is, and the result.

        Args:
            age_ms: the result is not older than so much; -1 for unknown.
        """
        shelf, now = self.state.results, self._engine.clock.now_ms()
        known, found = shelf.find(name)
        if not known and age_ms >= 0:
            known = now - age_ms - _AGE_SLACK_MS >= shelf.complete_since_ms
        return known, _alive(found, now)

    async def get(self, name: bytes) -> Result | None:
        """The result, or None.

        Raises:
            CorruptRecord: its record does not decode.
        """
        known, found = self.find(name)
        if known:
            return found
        stored = await self._read(name)
        known, found = self.find(name)
        if known:
            return found  # it changed meanwhile
        self.state.results.keep(name, stored)
        return _alive(stored, self._engine.clock.now_ms())

    async def _read(self, name: bytes) -> Result | None:
        """What the store has; anything if it changes meanwhile."""
        found = await self._record(name)
        if found is None or found.value:
            return found
        key = keys.result_key(name)
        async with self._engine.commits.checkpointing:
            if self.find(name)[0]:
                return found
            found = await self._record(name)  # it may have been forgotten or replaced before
            if found is None or found.value or key not in self.state.large:
                return found
            return found._replace(value=await self.state.large.read(self._engine.store, key))

    async def _record(self, name: bytes) -> Result | None:
        """What the store has, without a value that is in chunks."""
        key = keys.result_key(name)
        value = await self._engine.store.get(key)
        return None if value is None else records.decode_result(key, value)

    async def part(self, key: bytes) -> bytes:
        """The value of a chord's part; empty when it is gone.

        Raises:
            CorruptRecord: its record does not decode.
        """
        known, found = self.state.parts.find(key)
        if not known:
            value = await self._engine.store.get(key)
            found = None if value is None else records.decode_part(key, value)
            if not found and key in self.state.large:
                async with self._engine.commits.checkpointing:
                    if key in self.state.large:
                        found = await self.state.large.read(self._engine.store, key)
        return found or b""

    # ------------------------------------------------------------------ writing
    def store(
        self,
        name: bytes,
        kind: int,
        value: bytes,
        ttl_ms: int,
        group: bytes = b"",
        index: int = records.NO_INDEX,
        member: bytes = b"",
        chord_ttl_ms: int = 0,
    ) -> bool:
        """Store a result, a chord's part, or both; returns whether the result was stored.

        A final result that is at hand is kept. TTLs of 0 are for ever.

        Raises:
            StoreFull: the disk is full, or the store takes no writes.
        """
        engine, now = self._engine, self._engine.clock.now_ms()
        stored = bool(name)
        if name:
            current = self.find(name)[1]
            if current is not None and current.kind == FINAL:
                name, stored = b"", False
        if group and self._has_part(group, index, member):
            group = b""
        if not name and not group:
            return stored
        engine.commits.check_room(len(value))
        fields = (name, kind, _until(now, ttl_ms), value, group, index, member, _until(now, chord_ttl_ms))
        self.state.store(*fields, at_ms=now)
        self.stored += stored
        self._done((fx.RESULT, *fields), len(value))
        return stored

    def _has_part(self, group: bytes, index: int, member: bytes) -> bool:
        chord = self.state.chords.get(group)
        return chord is not None and (index, member) in chord.parts

    def forget(self, names: list[bytes]) -> None:
        """Results that nobody wants any more."""
        self.state.forget(names)
        self._done((fx.FORGET_RESULTS, names))

    def note_revocable(self) -> None:
        """A message is published that says what result it leaves when it expires."""
        if not self.state.has_revocable:
            fields = (_HAS_REVOCABLE, FINAL, 0, b"", b"", records.NO_INDEX, b"", 0)
            self.state.store(*fields)
            self._done((fx.RESULT, *fields))

    def open_chord(
        self,
        group: bytes,
        ttl_ms: int,
        size: int = -1,
        added: int = 0,
        header: bytes = b"",
        *,
        again: bool = False,
        body: bytes = b"",
    ) -> None:
        """Say what is known of a chord; ``again`` forgets an earlier one of this name."""
        fields = (group, _until(self._engine.clock.now_ms(), ttl_ms), size, added, header, again, body)
        self.state.open_chord(*fields)
        self._done((fx.OPEN_CHORD, *fields), len(header))

    def close_chord(self, group: bytes) -> None:
        """The chord is over."""
        chord = self.state.chords.get(group)
        if chord is not None:
            self.chords_completed += chord.is_complete
            self.state.close_chord(group)
            self._done((fx.CLOSE_CHORD, group))

    def _done(self, effect: fx.Effect, size: int = 0) -> None:
        self._engine.commits.effects.append(effect)
        self._engine.commits.new_bytes += size
        self._engine.commits.sync_soon = True

    # ------------------------------------------------------------------ retention
    async def sweep(self, now: int) -> int:
        """Remove what has expired; returns how many results."""
        for group in [group for group, chord in self.state.chords.items() if 0 < chord.expires_at_ms <= now]:
            self.close_chord(group)
        start, end = keys.kind_range(keys.RecordKind.RESULT_EXPIRY)[0], keys.result_expiry_key(now + 1, b"")
        removed = seen = 0
        while seen < _SWEEP_LIMIT:
            async with self._engine.commits.checkpointing:  # what is put meanwhile stays pending, and so known
                rows = await self._engine.store.scan(start, end, limit=_SWEEP_PAGE)
                reached = [keys.parse(key) for key, _value in rows]
                stored = await asyncio.gather(*(self._peek(row.result or b"") for row in reached))
                removed += sum(self._expire(row, result, now) for row, result in zip(reached, stored, strict=True))
            if len(rows) < _SWEEP_PAGE:
                break
            seen += len(rows)
            start = rows[-1][0] + b"\0"
        return removed

    async def _peek(self, name: bytes) -> Result | None:
        """As :meth:`get`, but leaves the cache as it is, and chunks where they are."""
        known, found = self.state.results.find(name)
        return found if known else await self._record(name)

    def _expire(self, row: keys.Key, stored: Result | None, now: int) -> bool:
        name = row.result or b""
        known, found = self.state.results.find(name)
        is_over = _alive(found if known else stored, now) is None
        self.state.expire(name, row.expires_at_ms or 0, is_over=is_over)
        return is_over


def _until(now: int, ttl_ms: int) -> int:
    return now + ttl_ms if ttl_ms > 0 else 0


def _alive(result: Result | None, now: int) -> Result | None:
    """The result, unless it has expired: the store goes on showing an expired row until the collector removes it."""
    return None if result is None or 0 < result.expires_at_ms <= now else result
