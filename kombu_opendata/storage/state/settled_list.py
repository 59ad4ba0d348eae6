"""A settled list of a queue (done, failed, archived failed): buckets of entries, with the tail in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from ...errors import RequestError
from ..engine_sizes import SIZES
from ..records import keys, settled

ListName = Literal["done", "failed", "archived_failed"]

#: all settled lists of a queue
LISTS: tuple[ListName, ...] = ("done", "failed", "archived_failed")
_KEYS: dict[ListName, Callable[[str, int], bytes]] = {
    "done": keys.done_key,
    "failed": keys.failed_key,
    "archived_failed": keys.archived_failed_key,
}


class Taken(NamedTuple):
    """Messages in one bucket of one of a queue's settled lists."""

    which: ListName
    bucket: int
    ids: list[int]


def list_name(name: str) -> ListName:
    """Return the settled list of this name.

    Raises:
        RequestError: there is none.
    """
    for which in LISTS:
        if which == name:
            return which
    raise RequestError(f"settled messages are {', '.join(LISTS)}, not {name[:40]!r}", which=name[:40])


def bucket_key(queue: str, which: ListName, number: int) -> bytes:
    return _KEYS[which](queue, number)


class SettledList:
    """The buckets ``first`` … ``tail`` of a list.

    Bucket 0 always has a record, even if it is empty and not the first; but an ``optional`` list has no records before
    its first entry, and none for empty buckets before the tail.

    Attributes:
        dirty: the packed entries of the buckets that changed since the last checkpoint.
        at_hand: the packed entries of other buckets, which were read for :meth:`take` only.
        sizes: the number of entries of each bucket before the tail that is not full.
        unread: the bucket below which ``sizes`` may lack buckets.
        watchers: called with (id, bucket) of each new entry.
    """

    def __init__(
        self,
        queue: str = "",
        *,
        optional: bool = False,
        changed: set[str] | None = None,
        bucket_entries: int = SIZES.settled_entries,
    ) -> None:
        """Create the list. The queue's name is added to ``changed`` if there are changes for a checkpoint."""
        self._bucket_entries = bucket_entries
        self._queue = queue
        self._changed: set[str] = set() if changed is None else changed
        self.optional = optional
        self.first = 0
        self.tail = 0
        self.rows: list[bytes] = []
        self.oldest_at_ms: int | None = None  # of bucket `first`; None if unknown
        self.dirty: dict[int, list[bytes]] = {} if optional else {0: self.rows}
        self.at_hand: dict[int, list[bytes]] = {}
        self.sizes: dict[int, int] = {}
        self.unread = 0
        self.watchers: list[Callable[[int, int], None]] = []

    def restore(self, first: int, tail: int, rows: list[settled.SettledEntry]) -> None:
        """Load the tail bucket from the store."""
        self.first, self.tail = first, tail
        self.rows = settled.pack_entries(rows)
        self.oldest_at_ms = rows[0].settled_at_ms if rows and first == tail else None
        self.dirty = {}
        self.sizes = {}
        self.unread = tail

    def append(self, id: int, at_ms: int, attempts: int) -> None:
        rows = self.rows
        if len(rows) >= self._bucket_entries:
            self.tail += 1
            rows = self.rows = []
        if not rows and self.first == self.tail:
            self.oldest_at_ms = at_ms
        rows.append(settled.pack_entry(id, at_ms, attempts))
        self.dirty[self.tail] = rows
        self._changed.add(self._queue)
        for watcher in self.watchers:
            watcher(id, self.tail)

    def may_have_since(self, at_ms: int) -> bool:
        """Return True if there may be an entry of this time or later; the list must be in the order of time."""
        if not self.rows:
            return self.first < self.tail
        return int.from_bytes(self.rows[-1][8:16], "little") >= at_ms

    def loaded(self, number: int) -> list[bytes] | None:
        """Return the packed entries of a bucket, if they are in memory and newer than the store's."""
        return self.rows if number == self.tail else self.dirty.get(number)

    def take(self, number: int, ids: Iterable[int]) -> None:
        """Remove entries of bucket ``number``, which is in ``at_hand`` if it is not :meth:`loaded`.

        In a replay of the journal an entry may be in another bucket than before, because the removals of retention are
        not in the journal: if entries of the tail had been removed, later entries fit into it. All these buckets are
        loaded.
        """
        remaining = set(ids)
        others = [bucket for bucket in (*self.dirty, self.tail) if bucket != number]
        for bucket in dict.fromkeys((number, *others)):
            if remaining:
                self._take_from(bucket, remaining)

    def _take_from(self, number: int, ids: set[int]) -> None:
        """Remove the entries of one bucket that are in ``ids``, and their ids from ``ids``."""
        rows = self.loaded(number)
        if rows is None:
            rows = self.at_hand.get(number, [])
        remaining = [row for row in rows if int.from_bytes(row[:8], "little") not in ids]
        if len(remaining) == len(rows):
            return
        ids.difference_update(int.from_bytes(row[:8], "little") for row in rows)
        self.replace(number, remaining)

    def replace(self, number: int, rows: list[bytes]) -> None:
        """Set the remaining entries of a bucket."""
        self.dirty[number] = rows
        self._changed.add(self._queue)
        if number == self.tail:
            self.rows = rows
        else:
            self.sizes[number] = len(rows)
        if number == self.first:
            self.oldest_at_ms = int.from_bytes(rows[0][8:16], "little") if rows else None
            self._skip_empty()

    def drop_first(self) -> None:
        """Record that bucket ``first`` is empty."""
        self.sizes[self.first] = 0
        self.oldest_at_ms = None
        self._skip_empty()

    def _skip_empty(self) -> None:
        while self.first < self.tail and self.sizes.get(self.first) == 0:
            del self.sizes[self.first]
            self.first += 1
            self.oldest_at_ms = None

    def learn(self, start: int, counts: Sequence[int]) -> None:
        """Set the stored numbers of entries of the buckets from ``start`` up to ``unread``; not during a checkpoint."""
        for number, count in enumerate(counts, start):
            if self.first <= number < self.tail and number not in self.dirty and count != self._bucket_entries:
                self.sizes[number] = count
        self.unread = start
        self._skip_empty()

    @property
    def length(self) -> int:
        """The number of entries; a bucket whose number is unknown counts as full."""
        full = (self.tail - self.first) * self._bucket_entries
        return full - sum(self._bucket_entries - size for size in self.sizes.values()) + len(self.rows)

    @property
    def version(self) -> int:
        """A number that changes with the length."""
        sizes = self.sizes
        return hash((self.first, self.tail, len(self.rows), len(sizes), sum(sizes.values()) if sizes else 0))

    def unsaved_ids(self) -> list[int]:
        """Return the ids in buckets that changed since the last checkpoint."""
        return [int.from_bytes(row[:8], "little") for rows in self.dirty.values() for row in rows]
