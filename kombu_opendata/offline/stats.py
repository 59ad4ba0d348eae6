"""Command ``store stats``: counts of a store's contents."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CorruptRecord
from ..storage import records
from ..storage.records import keys, metadata
from ..storage.records.keys import RecordKind
from .findings import OnProgress
from .records.message_facts import BUCKETS, DELAYED, READY, Span, entries_of, span_of, state_at
from .records.message_scan import BY_ID, MessageScan
from .records.offline_store import OfflineStore
from .records.record_view import kind_of, scan_except

#: the states of messages, as fields of QueueStats
_STATES = (READY, DELAYED, "in_flight", "done", "failed", "archived_failed")


@dataclass(slots=True)
class KindStats:
    """Records of one kind; sizes in bytes."""

    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0


@dataclass(slots=True)
class QueueStats:
    """Metrics of one queue.

    Attributes:
        payload_bytes: the size of the messages in each state; None if payloads were omitted.
        record_bytes: the size of the queue's records, including keys.
        largest_active_bucket: the number of its entries.
        oldest_id, newest_id: the ids of the oldest and newest message in the backlog or in flight; None if there are
            none.
        oldest_at_ms, newest_at_ms: the times of receipt of these messages.
    """

    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    done: int = 0
    failed: int = 0
    payload_bytes: dict[str, int] | None = None
    record_bytes: int = 0
    active_buckets: int = 0
    done_buckets: int = 0
    failed_buckets: int = 0
    largest_active_bucket: int = 0
    oldest_id: int | None = None
    newest_id: int | None = None
    oldest_at_ms: int | None = None
    newest_at_ms: int | None = None
    archived_failed: int = 0
    archived_failed_buckets: int = 0

    @property
    def available(self) -> int:
        """Length of the backlog: ready and delayed messages."""
        return self.ready + self.delayed

    def as_dict(self) -> dict[str, Any]:
        """Return the metrics for JSON."""
        mean = (self.available + self.in_flight) / max(self.active_buckets, 1)
        return asdict(self) | {"mean_active_bucket": round(mean, 1)}


@dataclass(slots=True)
class FileStats:
    """Files of one folder."""

    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class JournalStats:
    """Metrics of the journal.

    Attributes:
        position: the last record that the store has.
        last: the last record of the journal.
        tail_commits, tail_bytes: the records that the store does not have yet.
    """

    segments: int = 0
    spares: int = 0
    bytes: int = 0
    position: int = 0
    last: int = 0
    tail_commits: int = 0
    tail_bytes: int = 0


@dataclass(slots=True)
class StoreStats:
    """Metrics of a store; ``as_dict`` converts them for JSON.

    Attributes:
        records: the records by kind; ``unknown`` for records of no known kind.
        corrupt: records that do not decode; verify the store.
        files: SlateDB's files by folder; empty if the store is not in a local folder.
        sessions: sessions that published or hold leases.
        next_message_id: the end of the sequence block; ids below it may be in use.
    """

    location: str
    instance: str
    created_at_ms: int
    format_version: int
    broker_pid: int | None
    queues: dict[str, QueueStats] = field(default_factory=dict)
    records: dict[str, KindStats] = field(default_factory=dict)
    corrupt: int = 0
    exchanges: int = 0
    bindings: int = 0
    sessions: int = 0
    leased: int = 0
    results: int = 0
    chords: int = 0
    dead_letters: int = 0
    messages: int = 0
    next_message_id: int = 0
    files: dict[str, FileStats] = field(default_factory=dict)
    journal: JournalStats | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"queues": {name: queue.as_dict() for name, queue in self.queues.items()}}


async def stats(store: OfflineStore, *, payloads: bool = False, progress: OnProgress = lambda _: None) -> StoreStats:
    """Count the contents of a store. This reads every record once, and needs as much memory as a verification.

    ``payloads``: also sum payloads by queue and state, which is slower because it joins queues and payloads.

    Raises:
        CorruptRecord, StoreError: the store can't be read.
    """
    location = store.location
    header = store.header
    tail = store.journal
    created_at_ms, version = (0, 0) if header is None else (header.created_at_ms, header.format_version)
    result = StoreStats(
        location=str(location.root or location.url),
        instance=location.instance,
        created_at_ms=created_at_ms,
        format_version=version,
        broker_pid=store.broker_pid,
    )
    counter = _Counter(store, result)
    async for key, value in scan_except(store, BY_ID if payloads else (), 200, progress):
        counter.row(kind_of(key), key, value)
    if payloads:
        await counter.count_payloads(progress)
    await counter.finish()
    result.files = _files(location.database)
    if tail is not None:
        result.journal = JournalStats(
            segments=len(tail.segments),
            spares=len(tail.spares),
            bytes=sum(segment.size for segment in tail.segments),
            position=tail.position,
            last=tail.last,
            tail_commits=len(tail.commits),
            tail_bytes=tail.tail_bytes,
        )
    return result


class _Counter:
    def __init__(self, store: OfflineStore, result: StoreStats) -> None:
        self._store = store
        self._result = result
        self._now = store.clock.now_ms()
        self._spans: list[Span] = []
        self._sessions: set[bytes] = set()

    def row(self, kind: RecordKind | None, key: bytes, value: bytes) -> None:
        kind_stats = self._result.records.setdefault(kind.value if kind is not None else "unknown", KindStats())
        kind_stats.records += 1
        kind_stats.key_bytes += len(key)
        kind_stats.value_bytes += len(value)
        if kind is not None and kind in _DECODED:
            try:
                self._decode(kind, keys.parse(key), key, value)
            except CorruptRecord:
                self._result.corrupt += 1

    def _decode(self, kind: RecordKind, key: keys.ParsedKey, raw: bytes, value: bytes) -> None:
        decoded: Any = records.decode_any(raw, value)
        if kind is RecordKind.SEQ_BLOCK:
            self._result.next_message_id = sum(decoded)
        elif key.session is not None:
            self._sessions.add(key.session)
            if kind is RecordKind.LEASES:
                self._result.leased += sum(map(len, decoded.held.values()))
        else:
            queue = self._result.queues.setdefault(key.name or "", QueueStats())
            queue.record_bytes += len(raw) + len(value)
            if kind in BUCKETS:
                self._bucket(queue, kind, key, raw, decoded)

    def _bucket(self, queue: QueueStats, kind: RecordKind, key: keys.ParsedKey, raw: bytes, decoded: Any) -> None:
        span = span_of(kind, raw, key.name or "", key.bucket or 0, decoded)
        if span is not None:
            self._spans.append(span)
        counts = Counter(self._state(state, entry) for state, entry in entries_of(kind, decoded))
        counts[f"{kind.name.lower()}_buckets"] += 1
        for name, count in counts.items():
            setattr(queue, name, getattr(queue, name) + count)
        if kind is RecordKind.ACTIVE and span is not None:
            queue.largest_active_bucket = max(queue.largest_active_bucket, span.entries)
            queue.oldest_id = span.low if queue.oldest_id is None else min(queue.oldest_id, span.low)
            queue.newest_id = span.high if queue.newest_id is None else max(queue.newest_id, span.high)

    def _state(self, state: str, entry: tuple[int, ...]) -> str:
        """Return the field of QueueStats for an entry of a bucket."""
        return state_at(state, entry, self._now).replace(" ", "_")

    async def count_payloads(self, progress: OnProgress) -> None:
        """Count the records by message id, joined with the queues."""
        for queue in self._result.queues.values():
            queue.payload_bytes = dict.fromkeys(_STATES, 0)
        scan = MessageScan(self._store, self._spans, self._corrupt, self.row)
        async for facts in scan.messages(progress):
            for place in facts.places:
                sizes = self._result.queues[place.queue].payload_bytes
                assert sizes is not None
                sizes[self._state(place.state, place.entry)] += facts.payload_bytes

    def _corrupt(self, _key: bytes, _exc: CorruptRecord) -> None:
        self._result.corrupt += 1

    async def finish(self) -> None:
        result = self._result
        counts = Counter({kind: stats.records for kind, stats in result.records.items()})
        result.exchanges, result.bindings = counts["exchange"], counts["binding"]
        result.results, result.chords = counts["result"], counts["chord"]
        result.dead_letters, result.messages = counts["dead letter"], counts["metadata"]
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
            return None if value is None else metadata.received_at(key, value)
        except CorruptRecord:
            return None


_DECODED = frozenset(
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
