"""A store as a program sees it that has only the ``slatedb`` package and the RFC."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

from slatedb import uniffi

from kombu_opendata.staging.compression import decompress
from kombu_opendata.storage import records
from kombu_opendata.storage.records import payload
from kombu_opendata.storage.records.keys import RecordKind, parse
from kombu_opendata.storage.records.payload_places import parse_payload_uri


class PlainStore:
    """Every record of a database in a local folder, decoded by its key."""

    def __init__(self, root: Path, name: str = "default") -> None:
        self.raw = asyncio.run(_read(root, name))
        self._staged = root / f"{name}.staged"
        self.of: dict[RecordKind, dict[Any, Any]] = defaultdict(dict)
        for key, value in self.raw.items():
            where = parse(key)
            place: Any = where.id
            if where.kind in (RecordKind.ACTIVE, RecordKind.DONE, RecordKind.FAILED, RecordKind.ARCHIVED_FAILED):
                place = where.name, where.bucket
            elif where.kind is RecordKind.DEAD_LETTER:
                place = where.id, where.name
            elif where.kind is RecordKind.CHUNK:
                place = where.id, where.chunk
            elif where.name is not None:
                place = (where.name, where.queue, where.routing_key) if where.queue is not None else where.name
            elif where.session is not None:
                place = where.session
            if where.kind is RecordKind.ROUTES_BLOCK:
                self.of[where.kind].update(records.decode_any(key, value))  # type: ignore[call-overload]
            else:
                self.of[where.kind][place] = records.decode_any(key, value)

    def rows(self, kind: RecordKind, queue: str) -> list[tuple[int, ...]]:
        """The entries of a queue's done or failed list, in order."""
        return [row for (name, _bucket), rows in sorted(self.of[kind].items()) if name == queue for row in rows]

    def active(self, queue: str) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """The available and the in-flight entries of a queue."""
        found = [lists for (name, _bucket), lists in sorted(self.of[RecordKind.ACTIVE].items()) if name == queue]
        return [row for lists in found for row in lists[0]], [row for lists in found for row in lists[1]]

    def buckets(self, kind: RecordKind, queue: str) -> dict[int, Any]:
        """Bucket number → entries."""
        return {bucket: rows for (name, bucket), rows in sorted(self.of[kind].items()) if name == queue}

    def envelope(self, id: int) -> bytes:
        """The payload of a message, put together if it is in chunks."""
        stored = self.of[RecordKind.PAYLOAD][id]
        if isinstance(stored, bytes):
            return stored
        place = parse_payload_uri(stored.uri)
        if place is not None:
            stored = (self._staged / place.path).read_bytes()[place.offset : place.offset + place.stored_bytes]
            contents = decompress(stored, 1 << 30) if place.frame_bytes else stored
            return contents[place.start : place.start + place.length]
        count, size = payload.parse_chunks_uri(stored.uri) or (0, 0)
        whole = b"".join(self.of[RecordKind.CHUNK][id, number] for number in range(count))
        assert len(whole) == size
        return whole

    def message_ids(self) -> dict[RecordKind, set[int]]:
        """Which messages have records of their own, by kind of record."""
        return {
            RecordKind.PAYLOAD: set(self.of[RecordKind.PAYLOAD]),
            RecordKind.METADATA: set(self.of[RecordKind.METADATA]),
            RecordKind.ATTEMPTS: set(self.of[RecordKind.ATTEMPTS]),
            RecordKind.ROUTES_BLOCK: set(self.of[RecordKind.ROUTES_BLOCK]),
            RecordKind.CHUNK: {id for id, _number in self.of[RecordKind.CHUNK]},
        }


async def _read(root: Path, name: str) -> dict[bytes, bytes]:
    builder = uniffi.ObjectStoreBuilder(uniffi.ObjectStoreType.LOCAL)
    builder.with_config("local_path", str(root))
    db = await uniffi.DbReaderBuilder(name, builder.build()).build()
    try:
        found: dict[bytes, bytes] = {}
        iterator = await db.scan(uniffi.KeyRange(start=None, start_inclusive=True, end=None, end_inclusive=False))
        while rows := await iterator.next_batch(1000):
            found.update((row.key, row.value) for row in rows)
        return found
    finally:
        await db.shutdown()
