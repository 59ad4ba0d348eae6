"""Storage, reads and expiry of task results and parts of chords. Values not in memory are read from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ...errors import CorruptRecord
from ..effects import Effect
from ..effects.tasks import (
    AddToChordEffect,
    CloseChordEffect,
    ForgetResultsEffect,
    OpenChordEffect,
    StoreLargeResultEffect,
    StoreResultEffect,
)
from ..engine_parts import EngineParts, EngineService
from ..records import keys
from ..records import results as records
from ..records.payload import Chunks
from ..records.payload_places import EnvelopePlace, Place
from ..records.results import FINAL, Result
from ..state.result_state import HAS_REVOCABLE

#: the most expired results that one sweep removes
_SWEEP_LIMIT = 50_000
#: the number of them in one read
_SWEEP_PAGE = 100
#: the possible error of a task's age in a client's request
_AGE_SLACK_MS = 1000


class ResultStore(EngineService):
    """The results of one instance. No client may see a change before the commit.

    ``stored`` counts results, and ``chords_completed`` the chords whose callbacks were sent, since startup.
    """

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self.state = parts.state.results
        self.stored = self.chords_completed = 0

    # ------------------------------------------------------------------ reading
    def find(self, name: bytes, age_ms: int = -1) -> tuple[bool, Result | None]:
        """Return True if the result is in memory or known to be absent, and the result, if any.

        ``age_ms``: the result is not older than this; -1 for unknown.
        """
        cache, now = self.state.results, self._clock.now_ms()
        is_known, result = cache.find(name)
        if not is_known and age_ms >= 0:
            is_known = now - age_ms - _AGE_SLACK_MS >= cache.complete_since_ms
        return is_known, _alive(result, now)

    async def get(self, name: bytes) -> Result | None:
        """Return the result, or None; :meth:`value` reads its value if that is elsewhere."""
        is_known, result = self.find(name)
        if is_known:
            return result
        stored_result = await self._read(name)
        is_known, result = self.find(name)
        if is_known:
            return result  # it changed during the read
        self.state.results.keep(name, stored_result)
        return _alive(stored_result, self._clock.now_ms())

    async def _read(self, name: bytes) -> Result | None:
        """Return the stored result; undefined if the result changes during the read."""
        result = await self._record(name)
        if result is None or result.value or result.place is not None:
            return result
        async with self._commits.checkpointing:  # one that began before may delete a record and knew its place last
            return result if self.find(name)[0] else await self._record(name)

    async def _record(self, name: bytes) -> Result | None:
        """Return the stored result, with the place of its value if that is elsewhere."""
        key = keys.result_key(name)
        value = await self._store.get(key)
        if value is None:
            return None
        result = records.decode_result(key, value)
        return result if result.value else result._replace(place=self.state.large.get(key))

    async def value(self, name: bytes, result: Result) -> bytes | None:
        """Return the value of a result, which :meth:`get` has returned; None if the result was deleted since.

        Raises:
            CorruptRecord: the value is missing or damaged. Only this result is affected.
        """

        async def current() -> Place | None:
            result = await self.get(name)
            return None if result is None else result.place or result.value

        label = f"the result {name.decode('utf-8', 'backslashreplace')!r}"
        return await self._load(keys.result_key(name), label, result.place or result.value, current)

    async def part(self, key: bytes) -> Place:
        """Return the value of a chord's part, or its place; empty if it does not exist."""
        is_known, part = self.state.parts.find(key)
        if not is_known:
            value = await self._store.get(key)
            part = None if value is None else records.decode_part(key, value) or self.state.large.get(key)
        return part or b""

    async def part_value(self, key: bytes, part: Place) -> bytes:
        """Return the value of a chord's part, which :meth:`part` has returned. Errors are those of :meth:`value`."""
        return await self._load(key, "a part of a chord", part, lambda: self.part(key)) or b""

    async def _load(
        self, key: bytes, label: str, place: Place | None, current: Callable[[], Awaitable[Place | None]]
    ) -> bytes | None:
        """Return a value; ``current`` returns its place again, as it may be deleted or replaced during a read."""
        while place is not None and not isinstance(place, bytes):
            try:
                return await self._read_place(key, place)
            except CorruptRecord as exc:
                before, place = place, await current()
                if place == before:
                    raise CorruptRecord(f"{label} can't be read: {exc.text}", key=key, offset=exc.offset) from exc
        return place

    async def _read_place(self, key: bytes, place: Chunks | EnvelopePlace) -> bytes:
        if isinstance(place, EnvelopePlace):
            value = self._payloads.find_value(place)
            if value is not None:
                return value
            if (segments := self._commits.segments) is not None and not segments.has(place.path):
                await self._commits.catch_up()
            return await self._payloads.read_value(place)
        async with self._commits.checkpointing:  # else the chunks may be those of two values
            if self.state.large.get(key) != place:
                raise CorruptRecord("its chunks were replaced", key=key, offset=0)
            return await self.state.large.read(self._store, key, place)

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
        """Store a result, a chord's part, or both; return True if the result was stored.

        Does not replace a final result that is in memory. A TTL of 0 means no limit. Errors are those of
        :meth:`.Commits.check_room` and :meth:`.Commits.write_large`; nothing was changed.
        """
        now = self._clock.now_ms()
        is_stored = bool(name)
        if name:
            current = self.find(name)[1]
            if current is not None and current.kind == FINAL:
                name, is_stored = b"", False
        chord = self.state.chords.get(group)
        if chord is not None and (index, member) in chord.parts:
            group = b""
        if not name and not group:
            return is_stored
        self._commits.check_room(self._commits.journal_bytes(value))
        place = self._commits.write_large(value)
        self._state.time(now)
        values = (
            name,
            kind,
            _until(now, ttl_ms),
            b"" if place else value,
            group,
            index,
            member,
            _until(now, chord_ttl_ms),
        )
        if place is None:
            self._apply(StoreResultEffect(*values), len(value))
        else:
            self._payloads.keep_value(place, value)
            self._apply(StoreLargeResultEffect(*values, place))
        self.stored += is_stored
        return is_stored

    def forget(self, names: list[bytes]) -> None:
        self._apply(ForgetResultsEffect(names))

    def note_revocable(self) -> None:
        """Record that a published message names a result to store when it expires."""
        if not self.state.has_revocable:
            self._apply(StoreResultEffect(HAS_REVOCABLE, FINAL, 0, b"", b"", records.NO_INDEX, b"", 0))

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
        member: bytes = b"",
    ) -> None:
        """Declare or extend a chord; ``again`` replaces an earlier one of this name.

        Args:
            member: the id of the added task, which is added once.
        """
        expires_at = _until(self._clock.now_ms(), ttl_ms)
        if not member:
            self._apply(OpenChordEffect(group, expires_at, size, added, header, again, body), len(header))
        elif (chord := self.state.chords.get(group)) is None or member not in chord.members:
            self._apply(AddToChordEffect(group, expires_at, size, added, header, again, body, member), len(header))

    def close_chord(self, group: bytes) -> None:
        chord = self.state.chords.get(group)
        if chord is not None:
            self.chords_completed += chord.is_complete
            self._apply(CloseChordEffect(group))

    def _apply(self, effect: Effect, size: int = 0) -> None:
        commits = self._commits
        commits.apply(effect)
        commits.new_bytes += size
        commits.sync_soon = True

    # ------------------------------------------------------------------ retention
    async def sweep(self, now: int) -> int:
        """Remove expired chords and results; return the number of results."""
        for group in [group for group, chord in self.state.chords.items() if 0 < chord.expires_at_ms <= now]:
            self.close_chord(group)
        start = keys.kind_range(keys.RecordKind.RESULT_EXPIRY)[0]
        end = keys.result_expiry_key(now + 1, b"")
        removed_count = examined = 0
        # The first read is outside of the lock, so commits wait only if results have expired. No checkpoint runs during
        # the block: results that are stored then remain in memory, where `_expire` finds them.
        while examined < _SWEEP_LIMIT and await self._store.scan(start, end, limit=1):
            async with self._commits.checkpointing:
                rows = await self._store.scan(start, end, limit=_SWEEP_PAGE)
                expiry_keys = [keys.parse(key) for key, _value in rows]
                results = await asyncio.gather(*(self._peek(row.result or b"") for row in expiry_keys))
                removed_count += sum(self._expire(*pair, now) for pair in zip(expiry_keys, results, strict=True))
            if len(rows) < _SWEEP_PAGE:
                break
            examined += len(rows)
            start = rows[-1][0] + b"\0"
        return removed_count

    async def _peek(self, name: bytes) -> Result | None:
        """Return the result as :meth:`get`, but without a change of the cache."""
        is_known, result = self.state.results.find(name)
        return result if is_known else await self._record(name)

    def _expire(self, row: keys.ParsedKey, result: Result | None, now: int) -> bool:
        name = row.result or b""
        is_known, cached = self.state.results.find(name)
        is_over = _alive(cached if is_known else result, now) is None
        self.state.expire(name, row.expires_at_ms or 0, is_over=is_over)
        return is_over


def _until(now: int, ttl_ms: int) -> int:
    return now + ttl_ms if ttl_ms > 0 else 0


def _alive(result: Result | None, now: int) -> Result | None:
    """Return the result, unless it has expired: the store has an expired row until a sweep removes it."""
    return None if result is None or 0 < result.expires_at_ms <= now else result
