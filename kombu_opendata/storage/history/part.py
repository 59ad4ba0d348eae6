"""A part of the index while it is in memory: positions by value, and what became of messages; then its records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..records import history_index, history_trail, keys
from ..records.history_index import ATTEMPTS, MESSAGES, OFFSET_MASK, SEGMENT_BITS, Run
from ..records.history_trail import BLOCK_BITS, Event

#: a value that a part has at most so often is in its run; one that it has more often has postings of its own
RARE = 4
#: the highest bits of a hash that make the page of a new run
PAGE_BITS = 6

Row = tuple[bytes, bytes | None]


class Part:
    """Positions by space and hash, events by block. Both only grow, in order of the log."""

    def __init__(self) -> None:
        self.positions: tuple[dict[int, list[int]], dict[int, list[int]]] = ({}, {})
        self.events: dict[int, list[Event]] = {}
        self.rows = 0

    def add(self, space: int, position: int, hashes: Iterable[int]) -> None:
        """A message or an attempt has these values."""
        known = self.positions[space]
        for hash in hashes:
            found = known.get(hash)
            if found is None:
                known[hash] = [position]
            else:
                found.append(position)

    def event(self, event: Event) -> None:
        """Something happened to a message."""
        self.events.setdefault(event.message_id >> BLOCK_BITS, []).append(event)

    # ------------------------------------------------------------------ becoming records
    def write(self, number: int, runs: tuple[int, int], into: list[Row]) -> Iterator[list[Run]]:
        """Put the part's records into ``into``, a little with each step; the last step gives the new runs."""
        for block, events in self.events.items():
            into.append((keys.history_trail_key(block, number), history_trail.encode(events)))
            yield []
        made = []
        touched = {block >> (SEGMENT_BITS - BLOCK_BITS) for block in self.events}
        for space, run in zip((MESSAGES, ATTEMPTS), runs, strict=True):
            writer = _SpaceWriter(space, number, run, into, touched if space == MESSAGES else ())
            for hash, positions in self.positions[space].items():
                writer.add(hash, positions)
                if len(positions) > RARE:
                    yield []
            for _ in writer.finish():
                yield []
            made += writer.made
        yield made


class _SpaceWriter:
    """The records of one space of a part."""

    def __init__(self, space: int, part: int, run: int, into: list[Row], touched: Iterable[int]) -> None:
        self._space, self._part, self._run, self._into = space, part, run, into
        # Also those without postings: the sweep finds by these records what it may have to remove.
        self._segments: dict[int, list[int]] = {segment: [] for segment in touched}
        self._pages: dict[int, tuple[list[int], list[int]]] = {}
        self._low, self._high, self._entries = 1 << 64, 0, 0
        self.made: list[Run] = []

    def add(self, hash: int, positions: list[int]) -> None:
        if len(positions) <= RARE:
            hashes, places = self._pages.setdefault(hash >> (64 - PAGE_BITS), ([], []))
            hashes += [hash] * len(positions)
            places += positions
            self._low, self._high = min(self._low, *positions), max(self._high, *positions)
            self._entries += len(positions)
            return
        for segment, offsets in _by_segment(positions):
            key = keys.history_postings_key(self._space, hash, segment, self._part)
            self._into.append((key, history_index.encode_postings(offsets)))
            self._segments.setdefault(segment, []).append(hash)

    def finish(self) -> Iterator[None]:
        for page, (hashes, positions) in self._pages.items():
            key = keys.history_page_key(self._space, self._run, page)
            self._into.append((key, history_index.encode_page(hashes, positions)))
            yield
        for segment, hashes in self._segments.items():
            key = keys.history_segment_key(self._space, segment, self._part)
            self._into.append((key, history_index.encode_segment(hashes)))
            yield
        if self._pages:
            self.made = [Run(self._space, self._run, 0, PAGE_BITS, self._low, self._high, self._entries)]


def _by_segment(positions: list[int]) -> Iterator[tuple[int, list[int]]]:
    """The positions as ascending offsets in their segments; the usual case, all in one segment, is quick."""
    ascending = sorted(set(positions))
    segment = ascending[0] >> SEGMENT_BITS
    if segment == ascending[-1] >> SEGMENT_BITS:
        yield segment, [position & OFFSET_MASK for position in ascending]
        return
    found: dict[int, list[int]] = {}
    for position in ascending:
        found.setdefault(position >> SEGMENT_BITS, []).append(position & OFFSET_MASK)
    yield from found.items()
