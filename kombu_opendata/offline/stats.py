"""``store stats``: counts what is in a store."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
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
from .records.record_ranges import between, kind_of

_PROGRESS_ROWS = 1000


@dataclass(slots=True)
class KindStats:
    """The records of one kind; sizes in bytes."""

    records: int = 0
    key_bytes: int = 0
    value_bytes: int = 0


@dataclass(slots=True)
class QueueStats:
    """One queue.

    Attributes:
        available: waiting messages, including the ``delayed`` ones, which are not visible yet.
        in_flight, done, failed, archived_failed: messages in these states.
        payload_bytes: of the messages in each state; None if payloads were left out.
        record_bytes: size of the queue's own records, keys included.
        active_buckets, done_buckets, failed_buckets, archived_failed_buckets: how many there are.
        largest_active_bucket: how many entries it has.
        oldest_id, newest_id: of the waiting and leased messages; None if there are none.
        oldest_at_ms, newest_at_ms: when these messages were received.
    """

    available: int = 0
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
    def mean_active_bucket(self) -> float:
        """The average number of entries in an active bucket."""
        return (self.available + self.in_flight) / max(self.active_buckets, 1)


@dataclass(slots=True)
class FileStats:
    """Files of one folder."""

    files: int = 0
    bytes: int = 0


@dataclass(slots=True)
class JournalStats:
    """The journal.

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
    """A store. ``as_dict`` is the same for JSON.

    Attributes:
        records: by kind; ``unknown`` for records of no known kind.
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
        found = asdict(self)
        for name, queue in self.queues.items():
            found["queues"][name]["mean_active_bucket"] = round(queue.mean_active_bucket, 1)
        return found


async def stats(store: OfflineStore, *, payloads: bool = False, progress: OnProgress = lambda _: None) -> StoreStats:
    """Count what is in a store. This reads every record once, and needs as much memory as a verification.

    Args:
        payloads: also sum payloads by queue and state, which is slower because it joins queues and payloads.
        progress: called now and then.

    Raises:
        CorruptRecord, StoreError: it can't be read.
    """
    header = store.header
    found = StoreStats(
        str(store.location.root or store.location.url),
        store.location.instance,
        header.created_at_ms if header is not None else 0,
        header.format_version if header is not None else 0,
        store.broker_pid,
    )
    counting = _Counting(store, found)
    await counting.count(BY_ID if payloads else (), progress)
    if payloads:
        await counting.count_payloads(progress)
    await counting.finish()
    found.files = _files(store.location.database)
    found.journal = _journal(store)
    return found


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

    def _look(self, kind: RecordKind, key: keys.Key, raw: bytes, value: bytes) -> None:
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

    def _bucket(self, queue: QueueStats, kind: RecordKind, key: keys.Key, raw: bytes, decoded: Any) -> None:
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
        found, kinds = self._found, self._by_kind
        found.exchanges, found.bindings = kinds[RecordKind.EXCHANGE], kinds[RecordKind.BINDING]
        found.results, found.chords = kinds[RecordKind.RESULT], kinds[RecordKind.CHORD]
        found.dead_letters, found.messages = kinds[RecordKind.DEAD_LETTER], kinds[RecordKind.METADATA]
        found.sessions = len(self._sessions)
        for queue in found.queues.values():
            queue.oldest_at_ms = await self._received_at(queue.oldest_id)
            queue.newest_at_ms = await self._received_at(queue.newest_id)

    async def _received_at(self, id: int | None) -> int | None:
        if id is None:
            return None
        key = keys.metadata_key(id)
        value = await self._store.get(key)
        try:
            found: Metadata | None = None if value is None else metadata.decode(key, value)
        except CorruptRecord:
            return None
        return None if found is None else found.received_at_ms


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
    found: dict[str, FileStats] = {}
    for path in [] if database is None else database.rglob("*"):
        try:
            size = path.stat().st_size if path.is_file() else None
        except FileNotFoundError:  # the broker deleted it
            continue
        if size is not None:
            folder = found.setdefault(path.parent.name, FileStats())
            folder.files += 1
            folder.bytes += size
    return found


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
