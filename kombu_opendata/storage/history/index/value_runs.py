"""Runs of rare values: their search, and their merge, which limits their number."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterable, Set

from ...records import history_index, keys
from ...records.history_index import ATTEMPTS, MESSAGES, SEGMENT_BITS, PostingRun
from ...slatedb.store_writer import SlateStore
from ...time_slice import TimeSlice
from .history_index import Index, View

#: number of runs of a level that are merged into one of the next
FAN_IN = 16
#: from this level on a merged run has more page bits, which keeps the size of pages constant
_SPLIT_LEVEL = 2
_SPLIT_BITS = 4
_MAX_PAGE_BITS = 16
#: a merge passes its records to checkpoints in pieces of this size
_PIECE_BYTES = 1 << 20
_READS = 16


async def look_up(store: SlateStore, view: View, space: int, hashes: Iterable[int]) -> dict[int, list[int]]:
    """Return the positions of rare values in all runs, by hash, unordered."""
    positions_by_hash: dict[int, list[int]] = {hash: [] for hash in hashes}
    hashes_by_page: dict[tuple[int, int], list[int]] = {}
    for run in view.runs:
        if run.space == space:
            for hash in positions_by_hash:
                hashes_by_page.setdefault((run.number, hash >> (64 - run.page_bits)), []).append(hash)
    places = list(hashes_by_page)
    for start in range(0, len(places), _READS):
        batch = places[start : start + _READS]
        pages = await _pages(store, space, batch)
        for place, (page_hashes, positions) in zip(batch, pages, strict=True):
            for hash in hashes_by_page[place]:
                positions_by_hash[hash] += _find(page_hashes, positions, hash)
    return positions_by_hash


def _find(hashes: array[int], positions: array[int], hash: int) -> list[int]:
    """Return the positions of a hash. Searching for its bytes is many times as fast as ``array.index``."""
    needle, raw = array("Q", (hash,)).tobytes(), hashes.tobytes()
    matches = []
    at = raw.find(needle)
    while at >= 0:
        place, off = divmod(at, len(needle))
        if not off:
            matches.append(positions[place])
        at = raw.find(needle, at + 1)
    return matches


async def _pages(
    store: SlateStore, space: int, places: Iterable[tuple[int, int]]
) -> list[tuple[array[int], array[int]]]:
    """Return hashes and positions of these (run, page) pairs; empty for a page that does not exist."""
    page_keys = [keys.history_page_key(space, *place) for place in places]
    return [
        history_index.decode_page(key, value) if value is not None else (array("Q"), array("Q"))
        for key, value in zip(page_keys, await store.get_many(page_keys), strict=True)
    ]


class Merger:
    """The merge of runs, without the positions of removed messages and attempts.

    Args:
        saved: waits until the queued records are in the store.
        alive: returns the segments in a range that still have messages.
    """

    def __init__(
        self,
        store: SlateStore,
        index: Index,
        saved: Callable[[], Awaitable[None]],
        alive: Callable[[int, int], Awaitable[Set[int]]],
    ) -> None:
        self._store, self._index, self._saved, self._alive = store, index, saved, alive
        self._next = 0

    async def merge_some(self) -> bool:
        """Merge the runs of one level if there are enough; return True if runs were merged."""
        by_level: dict[tuple[int, int], list[PostingRun]] = {}
        for run in self._index.head.runs:
            same = by_level.setdefault((run.space, run.level), [])
            same.append(run)
            if len(same) == FAN_IN:
                await self.merge(same, run.level + 1)
                return True
        return False

    async def prune_one(self) -> None:
        """Check one run: remove it if none of its segments is alive, rewrite it if at most half of them are."""
        runs = self._index.head.runs
        if not runs:
            return
        self._next = (self._next + 1) % len(runs)
        run = runs[self._next]
        segments = await self._living([run])
        span = (run.high >> SEGMENT_BITS) - (run.low >> SEGMENT_BITS) + 1
        if not segments or (2 * len(segments) <= span and run.level):
            await self.merge([run], run.level)

    async def _living(self, runs: list[PostingRun]) -> Set[int]:
        """Return the segments of these runs that have messages or attempts."""
        low, high = min(run.low for run in runs) >> SEGMENT_BITS, max(run.high for run in runs) >> SEGMENT_BITS
        if runs[0].space == MESSAGES:
            return await self._alive(low, high)
        return set(range(max(low, self._index.planned.kept >> SEGMENT_BITS), high + 1))

    async def merge(self, runs: list[PostingRun], level: int) -> None:
        """Merge these runs into one, without removed positions; into none if no position remains."""
        space = runs[0].space
        bits = runs[0].page_bits
        extra_bits = _SPLIT_BITS if level > runs[0].level and level >= _SPLIT_LEVEL else 0
        out = _Output(space, self._index.take_runs(1), level, min(bits + extra_bits, _MAX_PAGE_BITS))
        living, piece = await self._living(runs), TimeSlice()
        for page in range(1 << bits) if living else ():
            pages = await _pages(self._store, space, [(run.number, page) for run in runs])
            for columns in pages:
                out.add(*columns, living)
                await piece.pause()
            out.end_page()
            if out.size > _PIECE_BYTES:
                self._index.queue(out.take())
                await self._saved()
        old_keys = [
            keys.history_page_key(space, run.number, page) for run in runs for page in range(1 << run.page_bits)
        ]  # fmt: skip
        self._index.queue(out.take())
        self._index.replace_runs(runs, out.runs(), old_keys)
        await self._saved()  # the next merge uses the stored head

    async def remove_orphans(self) -> None:
        """Remove the pages of runs whose merge was interrupted by a crash. Call it before any merge."""
        run_numbers = {(run.space, run.number) for run in self._index.planned.runs}
        for space in (MESSAGES, ATTEMPTS):
            number = 0
            while True:
                first = keys.history_page_key(space, number, 0)
                end = keys.history_page_key(space, self._index.head.run, 0)
                rows = await self._store.scan(first, end, limit=1)
                if not rows:
                    break
                _space, number, _page_number = keys.parse(rows[0][0]).numbers or (0, 0, 0)
                if (space, number) not in run_numbers:
                    pages = await self._store.scan(rows[0][0], keys.history_page_key(space, number + 1, 0))
                    self._index.queue((key, None) for key, _value in pages)
                number += 1


class _Output:
    """A merged run under construction."""

    def __init__(self, space: int, number: int, level: int, bits: int) -> None:
        self._space, self._number, self._level, self._bits = space, number, level, bits
        self._rows: list[tuple[bytes, bytes | None]] = []
        self._pages: dict[int, tuple[array[int], array[int]]] = {}
        self._low, self._high, self._entries = 1 << 64, 0, 0
        self.size = 0

    def add(self, hashes: array[int], positions: array[int], living: Set[int]) -> None:
        """Add a page of an input run."""
        shift = 64 - self._bits
        into = self._pages
        for hash, position in zip(hashes, positions, strict=True):
            if position >> SEGMENT_BITS in living:
                columns = into.get(hash >> shift)
                if columns is None:
                    columns = into[hash >> shift] = (array("Q"), array("Q"))
                columns[0].append(hash)
                columns[1].append(position)

    def end_page(self) -> None:
        """Build records, after the page of all runs was added."""
        for number, (hashes, positions) in self._pages.items():
            value = history_index.encode_page(hashes, positions)
            self._rows.append((keys.history_page_key(self._space, self._number, number), value))
            self.size += len(value)
            self._entries += len(hashes)
            self._low, self._high = min(self._low, min(positions)), max(self._high, max(positions))
        self._pages = {}

    def take(self) -> list[tuple[bytes, bytes | None]]:
        """Take the records that were built since the last call."""
        rows, self._rows, self.size = self._rows, [], 0
        return rows

    def runs(self) -> list[PostingRun]:
        """Return the run, unless it is empty."""
        if not self._entries:
            return []
        return [PostingRun(self._space, self._number, self._level, self._bits, self._low, self._high, self._entries)]
