"""The index of an instance: its parts in memory, its head, and the records for the next checkpoint.

Records become visible at the end of their checkpoint. So a reader first takes the parts in memory and then reads the
store; an entry in both counts once. Replaced records are removed after the end of the last read that began before.
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
        self._written.append(part)
        planned = self.planned
        self.planned = planned._replace(
            part=planned.part + 1, attempt=place[0], row=place[1], runs=planned.runs + tuple(runs)
        )

    def replace_runs(self, old: Iterable[PostingRun], new: Iterable[PostingRun], gone: list[bytes]) -> None:
        """Replace merged runs, whose keys are ``gone``."""
        remaining_runs = [run for run in self.planned.runs if run not in set(old)]
        self.planned = self.planned._replace(runs=(*remaining_runs, *new))
        self._retiring += gone

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
        written = self._flushing[1] if self._flushing else []
        return [*(part for part in self.frozen if part not in written), self.open]

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
        for key, value in queued:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(keys.HISTORY_HEAD_KEY, history_index.encode_head(self.planned))
        self._flushing = self.planned, self._written, self._retiring
        self._written, self._retiring = [], []

    def end_flush(self) -> None:
        """Publish the records of the completed checkpoint to readers."""
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
        """Queue the removal of obsolete records that no reader uses, a limited number with each checkpoint."""
        oldest = min(self._readers.values(), default=self._era)
        room = _DELETES_PER_CHECKPOINT - len(self._queued)
        while room > 0 and self._obsolete and self._obsolete[0].era < oldest:
            obsolete_keys = self._obsolete[0].keys
            self._queued += ((key, None) for key in obsolete_keys[:room])
            del obsolete_keys[:room]
            room = _DELETES_PER_CHECKPOINT - len(self._queued)
            if not obsolete_keys:
                del self._obsolete[0]
