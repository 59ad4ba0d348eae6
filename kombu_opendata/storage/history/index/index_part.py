"""A part of the index in memory: positions by value, and events of messages; converted to records when it is large.

Most values of a message (roughly all but its ids) recur together in other messages. So positions are collected for
*groups* of values, and per value only when the part is converted to records. That saves most of the work.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from ...records import history_index, history_trail, keys
from ...records.history_index import ATTEMPTS, MESSAGES, SEGMENT_BITS, PostingRun
from ...records.history_trail import BLOCK_BITS, TrailEvent

#: a value with at most this many positions in a part is added to its run; one with more gets its own postings
RARE = 4
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
                positions = positions_by_hash.get(hash)
                if positions is None:
                    positions_by_hash[hash] = [position]
                else:
                    positions.append(position)

    def event(self, event: TrailEvent) -> None:
        """Add an event of a message."""
        events = self.events.get(event[0] >> BLOCK_BITS)
        if events is None:
            self.events[event[0] >> BLOCK_BITS] = [event]
        else:
            events.append(event)

    def find(self, space: int, hash: int) -> list[int]:
        """Return the positions of a value, unordered."""
        positions = list(self._single[space].get(hash, ()))
        for group, lists in self._groups.items():
            if hash in group:
                positions += lists[space]
        return positions

    # ------------------------------------------------------------------ conversion to records
    def write(self, number: int, runs: tuple[int, int], into: list[Row]) -> Iterator[list[PostingRun]]:
        """Append the part's records to ``into``, a few with each step; the last step yields the new runs."""
        for block, events in self.events.items():
            into.append((keys.history_trail_key(block, number), history_trail.encode(events)))
            yield []
        new_runs: list[PostingRun] = []
        touched = {block >> (SEGMENT_BITS - BLOCK_BITS) for block in self.events}
        for space, run in zip((MESSAGES, ATTEMPTS), runs, strict=True):
            writer = _SpaceWriter(space, number, run, into, touched if space == MESSAGES else ())
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
    """The records of one space of a part."""

    def __init__(self, space: int, part: int, run: int, into: list[Row], touched: Iterable[int]) -> None:
        self._space, self._part, self._run, self._into = space, part, run, into
        # Segments without postings are included: the sweep needs these records to find index entries for removal.
        self._segments: dict[int, list[int]] = {segment: [] for segment in touched}
        self.pages: list[tuple[list[int], list[int]]] = [([], []) for _ in range(1 << PAGE_BITS)]
        self.made: list[PostingRun] = []

    def add(self, hash: int, positions: list[int]) -> None:
        if len(positions) <= RARE:
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
        low, high, entries = 1 << 64, 0, 0
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
