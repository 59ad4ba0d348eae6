"""Checks of results, their expiry, large values, and the parts of chords."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from ...errors import CorruptRecord
from ...storage.messages.payload_reader import NO_MESSAGE
from ...storage.records import keys
from ...storage.records import results as records
from ...storage.records.keys import ParsedKey, RecordKind
from ...storage.records.payload import Chunks
from ...storage.records.payload_places import EnvelopePlace
from ...storage.records.results import Chord
from .family import CheckContext, Family

_PAGE = 200


class ResultFamily(Family):
    """Family of results and chords.

    It collects the name and size of each open chord and large value. Results are read a second time, in pages.
    """

    kinds = (
        RecordKind.RESULT, RecordKind.RESULT_EXPIRY, RecordKind.CHORD, RecordKind.CHORD_PART, RecordKind.LARGE_VALUE,
        RecordKind.VALUE_CHUNK,
    )  # fmt: skip

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._chords: dict[bytes, Chord] = {}
        self._parts: Counter[bytes] = Counter()
        self._large: dict[bytes, Chunks | EnvelopePlace] = {}
        self._chunks: Counter[bytes] = Counter()
        self._chunk_bytes: Counter[bytes] = Counter()

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> None:
        if key.kind is RecordKind.CHORD:
            self._chords[key.chord or b""] = value
            if value.size < -1 or value.added < 0 or value.expires_at_ms < 0:
                text = f"chord {_text(key.chord)} has size {value.size} and {value.added} more"
                self.add("chord-wrong", text, key=raw)
        elif key.kind is RecordKind.CHORD_PART:
            self._parts[key.chord or b""] += 1
        elif key.kind is RecordKind.LARGE_VALUE:
            self._large[key.owner or b""] = value
            if isinstance(value, EnvelopePlace):
                self.context.use_segment(value)
                self.context.check_place(value, f"the value of {_label(key.owner or b'')}", NO_MESSAGE, key=raw)
        elif key.kind is RecordKind.VALUE_CHUNK:
            self._chunks[key.owner or b""] += 1
            self._chunk_bytes[key.owner or b""] += len(value)
        elif key.kind is RecordKind.RESULT and value.expires_at_ms < 0:
            self.add("result-implausible", f"result {_text(key.result)} expires at {value.expires_at_ms} ms", key=raw)

    async def finish(self) -> None:
        for group, parts in self._parts.items():
            chord = self._chords.get(group)
            if chord is None:
                if self.context.sees(RecordKind.CHORD):
                    text = f"there are {parts} parts of chord {_text(group)}, but no such chord"
                    self.add("chord-wrong", text, key=keys.chord_part_key(group))
            elif 0 <= chord.size + chord.added < parts and chord.size >= 0:
                text = f"chord {_text(group)} of {chord.size + chord.added} tasks has {parts} parts"
                self.add("chord-wrong", text, key=keys.chord_key(group))
        if self.context.sees(RecordKind.LARGE_VALUE, RecordKind.VALUE_CHUNK):
            await self._large_values()
        if self.context.sees(RecordKind.RESULT_EXPIRY):
            await self._expiries()

    async def _large_values(self) -> None:
        """Check that a large value is at its place or has all its chunks, and belongs to a record."""
        for owner in sorted(self._large.keys() | self._chunks.keys()):
            large = self._large.get(owner)
            chunks = self._chunks[owner]
            size = self._chunk_bytes[owner]
            if large != Chunks(chunks, size) and (chunks or not isinstance(large, EnvelopePlace)):
                text = f"the value of {owner.hex()} has {chunks} chunks of {size} bytes, but its record has {large}"
                self.add("result-chunks", text, key=keys.large_value_key(owner))
            elif await self.context.store.get(owner) is None:
                where = f"there are {chunks} chunks of" if chunks else "a segment has"
                text = f"{where} the value of {owner.hex()}, which does not exist"
                self.add("result-chunks", text, key=keys.large_value_key(owner))

    async def _expiries(self) -> None:
        """Check that a result that expires has an expiry record.

        Expiry records of earlier values may exist, too.
        """
        store = self.context.store
        async for rows in store.scan_batches(*keys.kind_range(RecordKind.RESULT), batch=_PAGE):
            expiries = list(filter(None, (_expiry(key, value) for key, value in rows)))
            values = await asyncio.gather(*(store.get(expiry) for _key, expiry in expiries))
            for (key, expiry), value in zip(expiries, values, strict=True):
                if value is None:
                    text = f"result {_text(keys.parse(key).result)} has no record of its expiry {expiry.hex()}"
                    self.add("result-expiry", text, key=key)


def _expiry(key: bytes, value: bytes) -> tuple[bytes, bytes] | None:
    """Return the keys of a result and of its expiry; None if it does not expire, or does not decode."""
    try:
        result = records.decode_result(key, value)
        name = keys.parse(key).result or b""
    except CorruptRecord:
        return None
    return (key, keys.result_expiry_key(result.expires_at_ms, name)) if result.expires_at_ms > 0 else None


def _label(key: bytes) -> str:
    """Return the name of the result or chord with this key."""
    try:
        owner = keys.parse(key)
    except CorruptRecord:
        return key.hex()
    return f"result {_text(owner.result)}" if owner.chord is None else f"a part of chord {_text(owner.chord)}"


def _text(name: bytes | None) -> str:
    return repr((name or b"").decode("utf-8", "backslashreplace"))
