"""Command ``store stats``: counts of a store's contents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ..errors import CorruptRecord
from ..storage import records
from ..storage.records import keys, metadata
from ..storage.records.keys import RecordKind
from ..storage.records.metadata import Metadata
from .findings import OnProgress, Progress
from .records.message_facts import ARCHIVED, AVAILABLE, BUCKETS, DONE, FAILED, IN_FLIGHT, Span, entries_of, span_of
from .records.message_scan import BY_ID, MessageScan
from .records.offline_store import OfflineStore
from .records.record_view import between, kind_of
from .store_figures import FileStats, JournalStats, KindStats, QueueStats, StoreStats

_PROGRESS_ROWS = 1000


async def stats(store: OfflineStore, *, payloads: bool = False, progress: OnProgress = lambda _: None) -> StoreStats:
    """Count the contents of a store. This reads every record once, and needs as much memory as a verification.

    Args:
        payloads: also sum payloads by queue and state, which is slower because it joins queues and payloads.
        progress: called periodically.

    Raises:
        CorruptRecord, StoreError: the store can't be read.
    """
    header = store.header
    result = StoreStats(
        str(store.location.root or store.location.url),
        store.location.instance,
        header.created_at_ms if header is not None else 0,
        header.format_version if header is not None else 0,
        store.broker_pid,
    )
    counting = _Counting(store, result)
    await counting.count(BY_ID if payloads else (), progress)
    if payloads:
        await counting.count_payloads(progress)
    await counting.finish()
    result.files = _files(store.location.database)
    result.journal = _journal(store)
    return result


class _Counting:
    def __init__(self, store: OfflineStore, found: StoreStats) -> None:
        self._store = store
        self._found = found
        self._now = store.clock.now_ms()
        self._spans: list[Span] = []
        self._sessions: set[bytes] = set()
        self._by_kind: Counter[RecordKind] = Counter()

    async def count(self, without: tuple[RecordKind, ...], progress: OnProgress) -> None:
        """Count every record except the kinds in ``without``."""
        done = 0
        for start, end in between(without):
            async for rows in self._store.scan_batches(start, end, batch=200):
                for key, value in rows:
                    self._row(kind_of(key), key, value)
                done += len(rows)
                progress(Progress("records", done))

    def _row(self, kind: RecordKind | None, key: bytes, value: bytes) -> None:
        kinds = self._found.records
        name = kind.value if kind is not None else "unknown"
        counted = kinds.get(name)
        if counted is None:
            counted = kinds[name] = KindStats()
        counted.records += 1
        counted.key_bytes += len(key)
        counted.value_bytes += len(value)
        if kind is None:
            return
        self._by_kind[kind] += 1
        if kind in _LOOKED_INTO:
            try:
                self._look(kind, keys.parse(key), key, value)
            except CorruptRecord:
                self._found.corrupt += 1

    def _look(self, kind: RecordKind, key: keys.ParsedKey, raw: bytes, value: bytes) -> None:
        decoded: Any = records.decode_any(raw, value)
        if kind is RecordKind.SEQ_BLOCK:
            self._found.next_message_id = sum(decoded)
        elif key.session is not None:
            self._sessions.add(key.session)
            if kind is RecordKind.LEASES:
                self._found.leased += sum(map(len, decoded[2].values()))
        else:
            queue = self._found.queues.setdefault(key.name or "", QueueStats())
            queue.record_bytes += len(raw) + len(value)
            if kind in BUCKETS:
                self._bucket(queue, kind, key, raw, decoded)

    def _bucket(self, queue: QueueStats, kind: RecordKind, key: keys.ParsedKey, raw: bytes, decoded: Any) -> None:
        span = span_of(kind, raw, key.name or "", key.bucket or 0, decoded)
        if span is not None:
            self._spans.append(span)
        name = f"{kind.name.lower()}_buckets"
        setattr(queue, name, getattr(queue, name) + 1)
        for state, entry in entries_of(kind, decoded):
            name = _FIELDS[state]
            setattr(queue, name, getattr(queue, name) + 1)
            queue.delayed += state == AVAILABLE and entry[2] > self._now
        if kind is RecordKind.ACTIVE and span is not None:
            queue.largest_active_bucket = max(queue.largest_active_bucket, span.entries)
            queue.oldest_id = span.low if queue.oldest_id is None else min(queue.oldest_id, span.low)
            queue.newest_id = span.high if queue.newest_id is None else max(queue.newest_id, span.high)

    async def count_payloads(self, progress: OnProgress) -> None:
        """Count the records by message id, joined with the queues."""
        for queue in self._found.queues.values():
            queue.payload_bytes = dict.fromkeys(_FIELDS.values(), 0)
        scan = MessageScan(self._store, self._spans, self._corrupt, self._row)
        number, last = 0, scan.last_id
        async for facts in scan.messages():
            number += 1
            for place in facts.places:
                sizes = self._found.queues[place.queue].payload_bytes
                assert sizes is not None
                sizes[_FIELDS[place.state]] += facts.payload_bytes
            if not number % _PROGRESS_ROWS:
                progress(Progress("messages", facts.id, max(last, facts.id)))

    def _corrupt(self, _key: bytes, _exc: CorruptRecord) -> None:
        self._found.corrupt += 1

    async def finish(self) -> None:
        result, kinds = self._found, self._by_kind
        result.exchanges, result.bindings = kinds[RecordKind.EXCHANGE], kinds[RecordKind.BINDING]
        result.results, result.chords = kinds[RecordKind.RESULT], kinds[RecordKind.CHORD]
        result.dead_letters, result.messages = kinds[RecordKind.DEAD_LETTER], kinds[RecordKind.METADATA]
        result.sessions = len(self._sessions)
        for queue in result.queues.values():
            queue.oldest_at_ms = await self._received_at(queue.oldest_id)
            queue.newest_at_ms = await self._received_at(queue.newest_id)

    async def _received_at(self, id: int | None) -> int | None:
        if id is None:
            return None
        key = keys.metadata_key(id)
        value = await self._store.get(key)
        try:
            record: Metadata | None = None if value is None else metadata.decode(key, value)
        except CorruptRecord:
            return None
        return None if record is None else record.received_at_ms


_FIELDS = {
    AVAILABLE: "available",
    IN_FLIGHT: "in_flight",
    DONE: "done",
    FAILED: "failed",
    ARCHIVED: "archived_failed",
}
_LOOKED_INTO = frozenset(
    {*BUCKETS, RecordKind.SEQ_BLOCK, RecordKind.PRODUCER, RecordKind.LEASES, RecordKind.CONFIG, RecordKind.OPTIONS}
)


def _files(database: Path | None) -> dict[str, FileStats]:
    folders: dict[str, FileStats] = {}
    for path in [] if database is None else database.rglob("*"):
        try:
            size = path.stat().st_size if path.is_file() else None
        except FileNotFoundError:  # the broker deleted it
            continue
        if size is not None:
            folder = folders.setdefault(path.parent.name, FileStats())
            folder.files += 1
            folder.bytes += size
    return folders


def _journal(store: OfflineStore) -> JournalStats | None:
    tail = store.journal
    if tail is None:
        return None
    return JournalStats(
        len(tail.segments),
        len(tail.spares),
        sum(segment.size for segment in tail.segments),
        tail.position,
        tail.last,
        len(tail.commits),
        tail.tail_bytes,
    )
