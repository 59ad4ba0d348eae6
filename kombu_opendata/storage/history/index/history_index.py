"""The index of an instance: its parts in memory, its head, and the records that the next checkpoint writes.

Records become visible at the end of their checkpoint. So a reader first takes the parts in memory and then reads the
store; an entry found in both counts once. Replaced records are removed after the last read that began before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ...records import history_index, keys
from ...records.history_index import IndexHead, PostingRun
from ...slatedb.ffi import WriteBatch
from ...slatedb.store_reads import Reads
from .index_part import Part, Row

_DELETES_PER_CHECKPOINT = 500


class View(NamedTuple):
    """The parts and runs that a reader uses."""

    parts: tuple[Part, ...]
    runs: tuple[PostingRun, ...]


class _Obsolete(NamedTuple):
    era: int
    keys: list[bytes]


class Index:
    """The index of one instance.

    Attributes:
        open: the part that new rows go to.
        frozen: complete parts, whose records are being made or written.
        head: the stored head.
        planned: the head after everything that is queued is written.
    """

    def __init__(self) -> None:
        self.open = Part()
        self.frozen: list[Part] = []
        self.head = self.planned = IndexHead()
        self._queued: list[Row] = []
        self._retiring: list[bytes] = []  # keys that become obsolete when the queued records are written
        self._flushing: tuple[IndexHead, list[Part], list[bytes]] | None = None
        self._written: list[Part] = []  # frozen parts whose records are queued
        self._obsolete: list[_Obsolete] = []
        self._readers: dict[int, int] = {}  # token → era
        self._era = 0
        self._tokens = itertools.count()

    async def load(self, store: Reads) -> None:
        """Load the stored head."""
        value = await store.get(keys.HISTORY_HEAD_KEY)
        if value is not None:
            self.head = self.planned = history_index.decode_head(keys.HISTORY_HEAD_KEY, value)

    # ------------------------------------------------------------------ reading
    @contextmanager
    def reading(self) -> Iterator[View]:
        """A view of the index as it is now; its records stay until the end of the block."""
        token = next(self._tokens)
        self._readers[token] = self._era
        try:
            yield View((*self.frozen, self.open), self.head.runs)
        finally:
            del self._readers[token]

    # ------------------------------------------------------------------ writing
    def queue(self, rows: Iterable[Row]) -> None:
        """Write records that no reader knows yet, or remove ones that no reader needs, with the next checkpoint."""
        self._queued += rows

    def take_runs(self, count: int) -> int:
        """Reserve numbers for new runs; returns the first."""
        first = self.planned.run
        self.planned = self.planned._replace(run=first + count)
        return first

    def wrote(self, part: Part, rows: list[Row], runs: list[PostingRun], place: tuple[int, int]) -> None:
        """Queue the records of a frozen part; with them the log is indexed up to ``place``."""
        self.queue(rows)
        self._written.append(part)
        planned = self.planned
        self.planned = planned._replace(
            part=planned.part + 1, attempt=place[0], row=place[1], runs=planned.runs + tuple(runs)
        )

    def replace_runs(self, old: Iterable[PostingRun], new: Iterable[PostingRun], gone: list[bytes]) -> None:
        """Replace merged runs, whose keys are ``gone``."""
        left = [run for run in self.planned.runs if run not in set(old)]
        self.planned = self.planned._replace(runs=(*left, *new))
        self._retiring += gone

    def keep_from(self, attempt: int) -> None:
        """Note that older attempts are no longer in the log."""
        self.planned = self.planned._replace(kept=max(self.planned.kept, attempt))

    @property
    def stored_head(self) -> IndexHead:
        """The stored head after the checkpoint under way, if there is one."""
        return self._flushing[0] if self._flushing else self.head

    @property
    def unstored(self) -> list[Part]:
        """The parts that are still only in memory then."""
        written = self._flushing[1] if self._flushing else []
        return [*(part for part in self.frozen if part not in written), self.open]

    @property
    def is_dirty(self) -> bool:
        """Whether a checkpoint has anything to write."""
        return bool(self._queued or self._obsolete) or self.planned != self.stored_head

    def snapshot(self, batch: WriteBatch) -> None:
        """Put the queued records and the head into a checkpoint's batch."""
        self._retire()
        if not self.is_dirty:
            self._flushing = None
            return
        queued, self._queued = self._queued, []
        for key, value in queued:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(keys.HISTORY_HEAD_KEY, history_index.encode_head(self.planned))
        self._flushing = self.planned, self._written, self._retiring
        self._written, self._retiring = [], []

    def end_flush(self) -> None:
        """The checkpoint is in the store."""
        if self._flushing is None:
            return
        self.head, written, retiring = self._flushing
        self._flushing = None
        self.frozen = [part for part in self.frozen if part not in written]
        if retiring:
            self._obsolete.append(_Obsolete(self._era, retiring))
            self._era += 1
        self._retire()

    def _retire(self) -> None:
        """Queue the removal of obsolete records that no reader uses, some with each checkpoint."""
        oldest = min(self._readers.values(), default=self._era)
        room = _DELETES_PER_CHECKPOINT - len(self._queued)
        while room > 0 and self._obsolete and self._obsolete[0].era < oldest:
            gone = self._obsolete[0].keys
            self._queued += ((key, None) for key in gone[:room])
            del gone[:room]
            room = _DELETES_PER_CHECKPOINT - len(self._queued)
            if not gone:
                del self._obsolete[0]
