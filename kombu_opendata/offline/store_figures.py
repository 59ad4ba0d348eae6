"""Metrics of a store that ``store stats`` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


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
        available: ready messages, including the ``delayed`` ones, which are not due yet.
        in_flight, done, failed, archived_failed: messages in these states.
        payload_bytes: the size of the messages in each state; None if payloads were omitted.
        record_bytes: the size of the queue's records, including keys.
        active_buckets, done_buckets, failed_buckets, archived_failed_buckets: the numbers of these buckets.
        largest_active_bucket: the number of its entries.
        oldest_id, newest_id: the ids of the oldest and newest message in the backlog or in flight; None if there are
            none.
        oldest_at_ms, newest_at_ms: the times of receipt of these messages.
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
        """Average number of entries in an active bucket."""
        return (self.available + self.in_flight) / max(self.active_buckets, 1)


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
        data = asdict(self)
        for name, queue in self.queues.items():
            data["queues"][name]["mean_active_bucket"] = round(queue.mean_active_bucket, 1)
        return data
