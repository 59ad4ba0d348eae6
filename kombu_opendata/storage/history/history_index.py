"""The index of an instance in memory: its parts, its head, and the records for the next checkpoint.

A part has positions by value, and events of messages; it is converted to records when it is large. Most values of a
message (roughly all but its ids) recur together in other messages. So positions are collected for *groups* of values,
and per value only when the part is converted to records. That saves most of the work.

Records become visible at the end of their checkpoint. So a reader first takes the parts in memory and then reads the
store; an entry in both counts once. Replaced records are removed when all reads that began before have ended.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ..records import history_index, history_trail, keys
from ..records.history_index import ATTEMPTS, MESSAGES, SEGMENT_BITS, IndexHead, PostingRun
from ..records.history_trail import BLOCK_BITS, ROUTED, TrailEvent
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads

#: number of the highest bits of a hash that select the page of a new run
PAGE_BITS = 6
_PAGE_SHIFT = 64 - PAGE_BITS
#: rare values of one step
_STEP = 256

Row = tuple[bytes, bytes | None]
Group = tuple[int, ...]


class Part:
    """Positions by space and hash, and events by block. Both only grow, in the order of the log."""

    def __init__(self) -> None:
        self._groups: dict[Group, tuple[list[int], list[int]]] = {}
        self._single: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        self.events: dict[int, list[TrailEvent]] = {}
        self.attempted: set[int] = set()  # the messages of its attempts
        self.rows = 0

    def add(self, space: int, position: int, group: Group, single: Sequence[int] = ()) -> None:
        """Add the values of a message or an attempt: hashes that recur together, and others."""
        lists = self._groups.get(group)
        if lists is None:
            lists = self._groups[group] = ([], [])
        lists[space].append(position)
        if single:
            positions_by_hash = self._single[space]
            for hash in single:
                positions_by_hash.setdefault(hash, []).append(position)

    def add_all(self, space: int, positions: Sequence[int], values: Iterable[tuple[Group, Sequence[int]]]) -> None:
        """Add the values of several messages or attempts, as :meth:`add` does."""
        positions_by_hash, groups, last_group = self._single[space], self._groups, None
        for position, (group, single) in zip(positions, values, strict=True):
            if group is not last_group:
                last_group, together = group, groups.setdefault(group, ([], []))[space]
            together.append(position)
            for hash in single:
                others = positions_by_hash.get(hash)
                if others is None:
                    positions_by_hash[hash] = [position]
                else:
                    others.append(position)

    def add_routed(self, ids: Sequence[int], queue: str, group: Group) -> None:
        """Add messages that were routed to a queue, which is the value of the group."""
        self._groups.setdefault(group, ([], []))[MESSAGES].extend(ids)
        events = self.events
        for id in ids:
            events.setdefault(id >> BLOCK_BITS, []).append(TrailEvent(id, queue, ROUTED))

    def event(self, event: TrailEvent) -> None:
        self.events.setdefault(event[0] >> BLOCK_BITS, []).append(event)

    def find(self, space: int, hash: int) -> list[int]:
        """Return the positions of a value, unordered."""
        positions = list(self._single[space].get(hash, ()))
        for group, lists in self._groups.items():
            if hash in group:
                positions += lists[space]
        return positions

    # ------------------------------------------------------------------ conversion to records
    def write(self, number: int, runs: tuple[int, int], into: list[Row], rare: int) -> Iterator[list[PostingRun]]:
        """Append the part's records to ``into``, a few with each step; the last step yields the new runs."""
        for block, events in self.events.items():
            into.append((keys.history_trail_key(block, number), history_trail.encode(events)))
            yield []
        new_runs: list[PostingRun] = []
        touched = {block >> (SEGMENT_BITS - BLOCK_BITS) for block in self.events}
        for space, run in zip((MESSAGES, ATTEMPTS), runs, strict=True):
            writer = _SpaceWriter(space, number, run, into, touched if space == MESSAGES else (), rare)
            for _ in self._write_space(space, writer):
                yield []
            new_runs += writer.made
        yield new_runs

    def _write_space(self, space: int, writer: _SpaceWriter) -> Iterator[None]:
        single = self._single[space]
        together: dict[int, list[int]] = {}
        for count, (group, lists) in enumerate(self._groups.items()):
            for hash in group if lists[space] else ():
                together.setdefault(hash, []).extend(lists[space])
            if count % _STEP == 0:
                yield
        for hash, positions in together.items():
            writer.add(hash, positions + single.get(hash, []))
            yield
        pages = writer.pages
        for count, (hash, positions) in enumerate(single.items()):
            if hash in together:
                continue
            if len(positions) == 1:  # nearly all of them
                hashes, places = pages[hash >> _PAGE_SHIFT]
                hashes.append(hash)
                places.append(positions[0])
            else:
                writer.add(hash, positions)
            if count % _STEP == 0:
                yield
        yield from writer.finish()


class _SpaceWriter:
    def __init__(self, space: int, part: int, run: int, into: list[Row], touched: Iterable[int], rare: int) -> None:
        self._rare = rare
        self._space = space
        self._part = part
        self._run = run
        self._into = into
        # Segments without postings are included: the sweep needs these records to find index entries for removal.
        self._segments: dict[int, list[int]] = {segment: [] for segment in touched}
        self.pages: list[tuple[list[int], list[int]]] = [([], []) for _ in range(1 << PAGE_BITS)]
        self.made: list[PostingRun] = []

    def add(self, hash: int, positions: list[int]) -> None:
        if len(positions) <= self._rare:
            hashes, places = self.pages[hash >> _PAGE_SHIFT]
            for position in positions:
                hashes.append(hash)
                places.append(position)
            return
        for segment, segment_positions in _by_segment(positions):
            key = keys.history_postings_key(self._space, hash, segment, self._part)
            self._into.append((key, history_index.encode_postings(segment_positions)))
            self._segments.setdefault(segment, []).append(hash)

    def finish(self) -> Iterator[None]:
        low = 1 << 64
        high = 0
        entries = 0
        for page, (hashes, positions) in enumerate(self.pages):
            if hashes:
                key = keys.history_page_key(self._space, self._run, page)
                self._into.append((key, history_index.encode_page(hashes, positions)))
                low, high = min(low, min(positions)), max(high, max(positions))
                entries += len(hashes)
                yield
        for segment, values in self._segments.items():
            key = keys.history_segment_key(self._space, segment, self._part)
            self._into.append((key, history_index.encode_segment(values)))
            yield
        if entries:
            self.made = [PostingRun(self._space, self._run, 0, PAGE_BITS, low, high, entries)]


def _by_segment(positions: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield the positions grouped by their segments, which are usually few."""
    positions.sort()
    start, end = 0, len(positions)
    while start < end:
        segment = positions[start] >> SEGMENT_BITS
        stop = bisect_left(positions, (segment + 1) << SEGMENT_BITS, start)
        yield segment, positions[start:stop]
        start = stop


_DELETES_PER_CHECKPOINT = 500


class View(NamedTuple):
    """The parts and runs that a reader uses."""

    parts: tuple[Part, ...]
    runs: tuple[PostingRun, ...]


class Index:
    """The index of one instance.

    Attributes:
        open: the part to which new rows are added.
        frozen: complete parts, whose records are being built or written.
        head: the stored head.
        planned: the head after all queued records are written.
    """

    def __init__(self) -> None:
        self.open = Part()
        self.frozen: list[Part] = []
        self.head = self.planned = IndexHead()
        self._queued: list[Row] = []
        self._retiring: list[bytes] = []  # keys that become obsolete when the queued records are written
        self._flushing: tuple[IndexHead, list[Part], list[bytes]] | None = None
        self._queued_parts: list[Part] = []  # frozen parts whose records are queued
        self._obsolete: list[tuple[int, list[bytes]]] = []  # era, keys
        self._readers: dict[int, int] = {}  # token → era
        self._era = 0
        self._tokens = itertools.count()

    async def load(self, store: Reads) -> None:
        value = await store.get(keys.HISTORY_HEAD_KEY)
        if value is not None:
            self.head = self.planned = history_index.decode_head(keys.HISTORY_HEAD_KEY, value)

    # ------------------------------------------------------------------ reading
    @contextmanager
    def reading(self) -> Iterator[View]:
        """Open a view of the current index; its records remain until the end of the block."""
        token = next(self._tokens)
        self._readers[token] = self._era
        try:
            yield View((*self.frozen, self.open), self.head.runs)
        finally:
            del self._readers[token]

    # ------------------------------------------------------------------ writing
    def queue(self, rows: Iterable[Row]) -> None:
        """Queue records for the next checkpoint: new ones that no reader uses yet, or removals of unneeded ones."""
        self._queued += rows

    def take_runs(self, count: int) -> int:
        """Reserve numbers for new runs; return the first."""
        first = self.planned.run
        self.planned = self.planned._replace(run=first + count)
        return first

    def wrote(self, part: Part, rows: list[Row], runs: list[PostingRun], place: tuple[int, int]) -> None:
        """Queue the records of a frozen part; with them the log is indexed up to ``place``."""
        self.queue(rows)
        self._queued_parts.append(part)
        planned = self.planned
        self.planned = planned._replace(
            part=planned.part + 1, attempt=place[0], row=place[1], runs=planned.runs + tuple(runs)
        )

    def replace_runs(self, old: Iterable[PostingRun], new: Iterable[PostingRun], old_keys: list[bytes]) -> None:
        remaining_runs = [run for run in self.planned.runs if run not in set(old)]
        self.planned = self.planned._replace(runs=(*remaining_runs, *new))
        self._retiring += old_keys

    def keep_from(self, attempt: int) -> None:
        """Record that older attempts are no longer in the log."""
        self.planned = self.planned._replace(kept=max(self.planned.kept, attempt))

    @property
    def stored_head(self) -> IndexHead:
        """The stored head after the current checkpoint, if there is one."""
        return self._flushing[0] if self._flushing else self.head

    @property
    def unstored(self) -> list[Part]:
        """The parts that are only in memory after the current checkpoint."""
        queued_parts = self._flushing[1] if self._flushing else []
        return [*(part for part in self.frozen if part not in queued_parts), self.open]

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        return bool(self._queued or self._obsolete) or self.planned != self.stored_head

    def snapshot(self, batch: WriteBatch) -> None:
        """Add the queued records and the head to a checkpoint's batch."""
        self._retire()
        if not self.is_dirty:
            self._flushing = None
            return
        queued, self._queued = self._queued, []
        for row in queued:
            batch.put_or_delete(*row)
        batch.put(keys.HISTORY_HEAD_KEY, history_index.encode_head(self.planned))
        self._flushing = self.planned, self._queued_parts, self._retiring
        self._queued_parts, self._retiring = [], []

    def end_flush(self) -> None:
        """Publish the records of the completed checkpoint to readers."""
        if self._flushing is None:
            return
        self.head, stored_parts, retiring = self._flushing
        self._flushing = None
        self.frozen = [part for part in self.frozen if part not in stored_parts]
        if retiring:
            self._obsolete.append((self._era, retiring))
            self._era += 1
        self._retire()

    def _retire(self) -> None:
        """Queue the removal of obsolete records that no reader uses, a limited number with each checkpoint."""
        oldest = min(self._readers.values(), default=self._era)
        room = _DELETES_PER_CHECKPOINT - len(self._queued)
        while room > 0 and self._obsolete and self._obsolete[0][0] < oldest:
            _era, obsolete_keys = self._obsolete[0]
            self._queued += ((key, None) for key in obsolete_keys[:room])
            del obsolete_keys[:room]
            room = _DELETES_PER_CHECKPOINT - len(self._queued)
            if not obsolete_keys:
                del self._obsolete[0]
