"""Scan over all messages in the order of their ids, with all facts about each.

Payloads, metadata, chunks, attempts, routes and dead letters are sorted by message id, but the entries of queues are
not. The scan therefore processes the ids in windows: for each window it reads the buckets that may contain some of its
ids, and joins them with scans of the other records. A small summary of each bucket, and the entries of one window, are
in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any

from ...errors import CorruptRecord
from ...storage.records import active, dead_letter, keys, metadata, payload, routes_block
from ...storage.records.keys import RecordKind
from ...storage.records.routes_block import BLOCK_BITS
from ..findings import OnProgress, Progress
from .message_facts import BUCKETS, MessageFacts, QueueMembership, Span, entries_of
from .offline_store import OfflineStore

OnCorrupt = Callable[[bytes, CorruptRecord], None]
OnRow = Callable[[RecordKind, bytes, bytes], None]

#: limit for the queue entries in memory, approximate
WINDOW_ENTRIES = 100_000
#: limit for the ids of a window
WINDOW_IDS = 50_000
#: limit for the buckets in memory
_MAX_BUCKETS = 128
_PROGRESS_MESSAGES = 1000
#: rows per read, for kinds with large values
_ROWS = {RecordKind.PAYLOAD: 200, RecordKind.CHUNK: 8}
_ROUTES_BLOCKS = 100
#: kinds of records with the message id directly after the prefix of the key
_OWN = RecordKind.PAYLOAD, RecordKind.METADATA, RecordKind.ATTEMPTS, RecordKind.CHUNK, RecordKind.DEAD_LETTER
#: kinds of records that are sorted by message id
BY_ID = (*_OWN, RecordKind.ROUTES_BLOCK)
#: higher than every message id
_NONE = 1 << 64
#: kinds with one record per message → field of MessageFacts, decoder, length of the key
_SINGLE: dict[RecordKind, tuple[str, Callable[[bytes, bytes], Any] | None, int]] = {
    kind: (kind.name.lower(), decode, len(kind.prefix) + 8)
    for kind, decode in (
        (RecordKind.PAYLOAD, payload.decode),
        (RecordKind.METADATA, metadata.decode),
        (RecordKind.ATTEMPTS, active.decode_attempts),
    )
}


class MessageScan:
    """Pass over all messages.

    Args:
        spans: summaries of all buckets of all queues.
        on_corrupt: called for each record that does not decode.
        on_row: called once for each record by message id.
    """

    def __init__(
        self,
        store: OfflineStore,
        spans: list[Span],
        on_corrupt: OnCorrupt = lambda _key, _exc: None,
        on_row: OnRow = lambda _kind, _key, _value: None,
        *,
        window_entries: int = WINDOW_ENTRIES,
        window_ids: int = WINDOW_IDS,
        max_buckets: int = _MAX_BUCKETS,
    ) -> None:
        self._store = store
        self._window_entries = window_entries
        self._window_ids = window_ids
        self._max_buckets = max_buckets
        self._spans = sorted(spans)
        self._on_corrupt, self._on_row = on_corrupt, on_row
        self._open: list[Span] = []
        self._next_span = 0
        self._blocks = _RouteBlocks(store, on_corrupt, on_row)
        self._cache: OrderedDict[bytes, list[tuple[str, tuple[int, ...]]]] = OrderedDict()

    async def messages(self, progress: OnProgress = lambda _: None) -> AsyncIterator[MessageFacts]:
        """Yield the facts about each message id that any record mentions."""
        count, last = 0, max((span.high for span in self._spans), default=-1)
        low: int | None = await self._first_from(0)
        while low is not None:
            high = self._window_end(low)
            async for facts in self._window(low, high):
                yield facts
                count += 1
                if not count % _PROGRESS_MESSAGES:
                    progress(Progress("messages", facts.id, max(last, facts.id)))
            low = await self._first_from(high)

    async def _first_from(self, low: int) -> int | None:
        """Return the first id from ``low`` on that a record mentions."""
        if low >= keys.MAX_MESSAGE_ID:
            return None
        candidates = [span.low if span.low >= low else low for span in self._spans[self._next_span :][:1]]
        candidates += [low for span in self._open if span.high >= low][:1]
        for kind in _OWN:
            rows = await self._store.scan(*_id_range(kind, low, keys.MAX_MESSAGE_ID), limit=1)
            candidates += [max(_id_of(kind, key), low) for key, _value in rows]
        candidates += await self._blocks.first_from(low)
        return min(candidates, default=None)

    def _window_end(self, low: int) -> int:
        """Open the buckets with ids in the window that begins at ``low``; return the end of the window."""
        self._open = [span for span in self._open if span.high >= low]
        entries = sum(span.entries for span in self._open)
        high = low + self._window_ids
        while self._next_span < len(self._spans) and self._spans[self._next_span].low < high:
            span = self._spans[self._next_span]
            if entries > self._window_entries and span.low > low:
                high = span.low
                break
            self._open.append(span)
            entries += span.entries
            self._next_span += 1
        return min(high, keys.MAX_MESSAGE_ID)

    async def _window(self, low: int, high: int) -> AsyncIterator[MessageFacts]:
        places: dict[int, list[QueueMembership]] = {}
        for span in self._open:
            if span.low < high and span.high >= low:
                for state, entry in await self._entries(span):
                    if low <= entry[0] < high:
                        places.setdefault(entry[0], []).append(QueueMembership(span.queue, state, span.bucket, entry))
        cursors = [_RecordCursor(kind, _records(self._store, kind, low, high)) for kind in _OWN]
        counts = _RecordCursor(RecordKind.ROUTES_BLOCK, self._blocks.counts(low, high))
        for cursor in (counts, *cursors):
            await cursor.fill()
        remaining = iter(sorted(places))
        placed = next(remaining, _NONE)
        while True:
            id = min(counts.id, *(cursor.id for cursor in cursors))
            if placed <= id:
                id = placed
                placed = next(remaining, _NONE)
            if id == _NONE:
                return
            facts = MessageFacts(id, places=places.get(id, []))
            while counts.id == id:
                facts.routes = counts.take()
                if counts.is_empty:
                    await counts.fill()
            if id >> BLOCK_BITS in self._blocks.damaged:
                facts.corrupt.add(RecordKind.ROUTES_BLOCK)
            for cursor in cursors:
                while cursor.id == id:
                    self._add(facts, cursor.kind, *cursor.take())
                    if cursor.is_empty:
                        await cursor.fill()
            yield facts

    async def _entries(self, span: Span) -> list[tuple[str, tuple[int, ...]]]:
        bucket_entries = self._cache.get(span.key)
        if bucket_entries is None:
            value = await self._store.get(span.key)
            bucket_entries = list(entries_of(span.kind, BUCKETS[span.kind](span.key, value or b"")))
            self._cache[span.key] = bucket_entries
            if len(self._cache) > self._max_buckets:
                self._cache.popitem(last=False)
        return bucket_entries

    def _add(self, facts: MessageFacts, kind: RecordKind, key: bytes, value: bytes) -> None:
        self._on_row(kind, key, value)
        try:
            attribute, decode, size = _SINGLE.get(kind, ("", None, 0))
            if decode is not None and len(key) == size:
                setattr(facts, attribute, decode(key, value))
                return
            parsed = keys.parse(key)
            if kind is RecordKind.CHUNK:
                facts.chunks.append((parsed.chunk or 0, len(value)))
            else:
                facts.letters.append((parsed.name or "", dead_letter.decode(key, value)))
        except CorruptRecord as exc:
            facts.corrupt.add(kind)
            self._on_corrupt(key, exc)


class _RecordCursor:
    """Cursor over the records of one kind in a window. ``id`` is the next message id; at the end, above all ids."""

    __slots__ = ("_at", "_batches", "_rows", "id", "kind")

    def __init__(self, kind: RecordKind, batches: AsyncIterator[list[tuple[int, Any]]]) -> None:
        self.kind = kind
        self._batches = batches
        self._rows: list[tuple[int, Any]] = []
        self._at = 0
        self.id = _NONE

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._rows)

    async def fill(self) -> None:
        """Read the next batch, if there is one."""
        self._rows, self._at = await anext(self._batches, []), 0
        self.id = _NONE if self.is_empty else self._rows[0][0]

    def take(self) -> Any:
        _id, record = self._rows[self._at]
        self._at += 1
        self.id = _NONE if self.is_empty else self._rows[self._at][0]
        return record


async def _records(store: OfflineStore, kind: RecordKind, low: int, high: int) -> AsyncIterator[list[tuple[int, Any]]]:
    """Yield (message id, (key, value)) of the records of a kind in a window."""
    async for rows in store.scan_batches(*_id_range(kind, low, high), batch=_ROWS.get(kind, 1000)):
        yield [(_id_of(kind, row[0]), row) for row in rows]


class _RouteBlocks:
    """Routes blocks of a store. A window may end within a block, which is then decoded twice but reported once.

    Attributes:
        damaged: the numbers of the blocks that did not decode so far.
    """

    def __init__(self, store: OfflineStore, on_corrupt: OnCorrupt, on_row: OnRow) -> None:
        self._store = store
        self._on_corrupt, self._on_row = on_corrupt, on_row
        self._last = b""  # key of the last block that was reported
        self.damaged: set[int] = set()

    async def first_from(self, low: int) -> list[int]:
        """Return the first id from ``low`` on that has an entry or is in a damaged block; empty if there is none."""
        async for rows in self._store.scan_batches(*_block_range(low, keys.MAX_MESSAGE_ID), batch=2):
            for key, value in rows:
                try:
                    ids = [id for id in _counts(key, value) if id >= low]
                except CorruptRecord:
                    block = _id_of(RecordKind.ROUTES_BLOCK, key)
                    ids = [max(block << BLOCK_BITS, low)] if key > self._last else []
                if ids:
                    return ids[:1]
        return []

    async def counts(self, low: int, high: int) -> AsyncIterator[list[tuple[int, Any]]]:
        """Yield (message id, count) of the messages in a window, without those in a damaged block."""
        async for rows in self._store.scan_batches(*_block_range(low, high), batch=_ROUTES_BLOCKS):
            entries = [entry for key, value in rows for entry in self._entries(key, value).items()]
            if inside := [(id, count) for id, count in entries if low <= id < high]:
                yield inside

    def _entries(self, key: bytes, value: bytes) -> dict[int, int]:
        is_new = key > self._last
        if is_new:
            self._last = key
            self._on_row(RecordKind.ROUTES_BLOCK, key, value)
        try:
            return _counts(key, value)
        except CorruptRecord as exc:
            if is_new:
                self.damaged.add(_id_of(RecordKind.ROUTES_BLOCK, key))
                self._on_corrupt(key, exc)
            return {}


def _counts(key: bytes, value: bytes) -> dict[int, int]:
    keys.parse(key)
    return routes_block.decode(key, value)


def _block_range(low: int, high: int) -> tuple[bytes, bytes]:
    """Return the range of keys of the blocks that may have ids from ``low`` to ``high`` (exclusive)."""
    prefix = RecordKind.ROUTES_BLOCK.prefix
    first, end = low >> BLOCK_BITS, (high - 1 >> BLOCK_BITS) + 1
    return prefix + (first.to_bytes(8, "big") if first else b""), prefix + end.to_bytes(8, "big")


def _id_range(kind: RecordKind, low: int, high: int) -> tuple[bytes, bytes]:
    """Return the range of keys of a kind with ids from ``low`` to ``high`` (exclusive)."""
    prefix = kind.prefix
    start, end = prefix + low.to_bytes(8, "big"), prefix + high.to_bytes(8, "big")
    return (keys.kind_range(kind)[0] if low == 0 else start), end


def _id_of(kind: RecordKind, key: bytes) -> int:
    """Return the number after the prefix of a key, padded if the key is too short."""
    start = len(kind.prefix)
    return int.from_bytes(key[start : start + 8].ljust(8, b"\0"), "big")
