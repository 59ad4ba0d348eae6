"""The done or failed list of a queue: an append-only sequence of buckets, of which only the tail is in memory."""

from __future__ import annotations

from .records import settled

#: entries of a bucket; at the usual commit sizes rewriting the tail stays below the cost of its messages' payloads
BUCKET_ENTRIES = 1024


class SettledLog:
    """Buckets ``first`` … ``tail``. Bucket 0 always has a record, also when it is empty and not the first.

    ``dirty`` maps the buckets that changed since the last checkpoint to their packed entries.
    """

    def __init__(self) -> None:
        self.first = 0
        self.tail = 0
        self.rows: list[bytes] = []
        self.oldest_at_ms: int | None = None  # of bucket `first`; None when not known
        self.dirty: dict[int, list[bytes]] = {0: self.rows}

    def restore(self, first: int, tail: int, rows: list[tuple[int, int, int]]) -> None:
        """Load the tail bucket from the store."""
        self.first, self.tail = first, tail
        self.rows = [settled.pack_entry(*row) for row in rows]
        self.oldest_at_ms = rows[0][1] if rows and first == tail else None
        self.dirty = {}

    def append(self, id: int, at_ms: int, attempts: int) -> None:
        """Add one message."""
        rows = self.rows
        if len(rows) >= BUCKET_ENTRIES:
            self.tail += 1
            rows = self.rows = []
        if not rows and self.first == self.tail:
            self.oldest_at_ms = at_ms
        rows.append(settled.pack_entry(id, at_ms, attempts))
        self.dirty[self.tail] = rows

    def newest_at_ms(self) -> int:
        """When the last message was added; 0 when the tail is empty."""
        return int.from_bytes(self.rows[-1][8:16], "little") if self.rows else 0

    def unsaved_ids(self) -> list[int]:
        """The ids in buckets that changed since the last checkpoint."""
        return [int.from_bytes(row[:8], "little") for rows in self.dirty.values() for row in rows]
