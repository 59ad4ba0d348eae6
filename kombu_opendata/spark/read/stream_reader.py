"""Streaming source: new rows of the tables ``messages`` and ``attempts``, each once.

``spark.readStream.format("opendata")`` takes the options of ``spark.read`` except bounds, and these:

======================  ==============================================================================================
option                  meaning
======================  ==============================================================================================
``maxRowsPerTrigger``   the most rows of a micro-batch, with PySpark 4.2 or later; 0 means no limit
``failOnDataLoss``      ``true``: rows that retention deleted before they were read are an error; ``false``: a warning
``startingOffsets``     where a new query begins: ``earliest``, or ``latest`` for later rows only
======================  ==============================================================================================

An offset is a position in a log of the store. A batch is all rows between two positions, so a batch that Spark repeats
after a crash has the same rows. A position counts only rows that were visible when it was taken, in the store's tables
or in its journal.

* ``attempts``: the number of the next attempt. Numbers have no gaps and never change.
* ``messages``: the id of the next message, and the ranges of lower ids whose messages are not visible yet. A Spark job
  gets its ids with its commit, and its messages appear while the broker routes them, after later ones of other senders.

**Deleted rows.** Missing attempts are recognized by their numbers. A missing message id may also be unused, as after a
restart of the broker. So missing messages are an error only if the previous position is older than the shortest time
for which a queue keeps its done and failed messages.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader

from ...errors import StoreError
from ...offline import OfflineStore
from ...storage.records import history_index, history_log, keys, staged_jobs, store_records
from ...storage.records.keys import RecordKind
from . import store_scan, table_rows
from .table_reader import LAST_ROW, KeyRange, TableReader, message_range

_MODULE = "pyspark.sql.streaming.datasource"
#: limits of batches, since PySpark 4.2; 4.1 has none, and takes all rows as one batch with ``availableNow``
_LIMITS: Any = import_module(_MODULE) if find_spec(_MODULE) else None
_AVAILABLE_NOW: Any = _LIMITS.SupportsTriggerAvailableNow if _LIMITS else object
HAS_LIMITS = _LIMITS is not None

log = logging.getLogger(__name__)

#: tables that can be read as a stream
STREAMED = ("messages", "attempts")
#: shortest time between two openings of the store for the newest position
POLL_SECONDS = 1.0

Range = tuple[int, int]
Offset = dict[str, Any]


@dataclass(frozen=True)
class Position:
    """Rows that were visible: those with numbers below ``end``, without ``gaps`` (first number → end)."""

    end: int = 0
    gaps: dict[str, int] = field(default_factory=dict)
    at_ms: int = 0

    @property
    def ranges(self) -> list[Range]:
        return sorted((int(first), end) for first, end in self.gaps.items())

    def since(self, start: Position) -> list[Range]:
        """Return the ranges of rows that were not visible at an earlier position."""
        candidates = [*start.ranges, (start.end, self.end)]
        return [part for whole in candidates for part in _without(whole, self.ranges)]

    def until(self, start: Position, number: int) -> Position:
        """Return the position between an earlier one and this one that has no further rows from ``number`` on."""
        low = [part for gap in self.ranges for part in _without(gap, [(number, self.end)])]
        high = [part for gap in start.ranges for part in _without(gap, [(0, number)])]
        return Position(max(start.end, number), {str(first): end for first, end in low + high}, self.at_ms)


def _without(whole: Range, gaps: Iterable[Range]) -> list[Range]:
    """Return the parts of a range outside of the gaps, which ascend."""
    parts, (low, high) = [], whole
    for first, end in gaps:
        if low < min(first, high):
            parts.append((low, min(first, high)))
        low = max(low, end)
    return [*parts, (low, high)] if low < high else parts


class TableStream(DataSourceStreamReader, _AVAILABLE_NOW):
    """Reader of the new rows of a table.

    Args:
        max_rows: the most rows of a batch; 0 for no limit.
        fails_on_data_loss: rows that were deleted before they were read are an error, not a warning.
        from_latest: a new query begins with later rows only.
    """

    def __init__(
        self, table: str, reader: TableReader, *,
        max_rows: int = 0, fails_on_data_loss: bool = True, from_latest: bool = False,
    ) -> None:  # fmt: skip
        self._table, self._reader = table, reader
        self._max_rows, self._fails, self._from_latest = max_rows, fails_on_data_loss, from_latest
        self._newest: Position | None = None
        self._target: Position | None = None
        self._read_at = 0.0
        self._idle = Position()  # of the last poll without new rows

    # ------------------------------------------------------------------ positions
    def initialOffset(self) -> Offset:
        if self._from_latest:
            return asdict(self._target or self._run(self._end))  # Spark prepares the target first
        return asdict(self._run(self._beginning))

    def getDefaultReadLimit(self) -> Any:
        return _LIMITS.ReadMaxRows(self._max_rows) if self._max_rows else _LIMITS.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._run(self._end)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return the newest position within the limit; PySpark 4.1 gives no arguments."""
        earlier = Position(**(start or {}))
        if self._target and self._target.end < earlier.end:
            self._target = self._run(self._end, earlier.end)
        newest = self._target or self._visible(earlier.end)
        if start is None:
            return asdict(newest)
        if newest.end < earlier.end:
            self._lost(f"the store ends at {newest.end}, before the checkpoint's position {earlier.end}: another store")
            return start
        ranges = newest.since(earlier)
        if not ranges:
            self._idle = newest
            return start
        if max_rows := getattr(limit, "max_rows", 0):
            number = self._run(self._limited, ranges, max_rows)
            newest = newest if number is None else newest.until(earlier, number)
        return asdict(newest)

    def _visible(self, least: int) -> Position:
        """Return the position of the newest row, which may be a second old, as :meth:`_end` does."""
        now = time.monotonic()
        if self._newest is None or now >= self._read_at + POLL_SECONDS:
            self._newest, self._read_at = self._run(self._end, least), now
        return self._newest

    def _run(self, function: Any, *arguments: Any) -> Any:
        return self._reader.run(lambda store: function(store, *arguments), holds_files=False)

    async def _beginning(self, store: OfflineStore) -> Position:
        kind = RecordKind.METADATA if self._table == "messages" else RecordKind.HISTORY_LOG
        numbers = await store_scan.number_range(store, kind)
        return Position(numbers[0], {}, store.clock.now_ms()) if numbers else await self._end(store)

    async def _end(self, store: OfflineStore, least: int = 0) -> Position:
        """Return the position of the newest row; from ``least`` on, if the newest messages up to there are deleted."""
        now_ms = store.clock.now_ms()
        if self._table == "attempts":
            return Position(await _next_attempt(store), {}, now_ms)
        gaps: dict[str, int] = {}
        key = await store.last_key(*keys.kind_range(RecordKind.METADATA))
        end = store_scan.number_of(key) + 1 if key is not None else 0
        block = await store.get(keys.SEQ_BLOCK_KEY)
        if block is not None and sum(store_records.decode_seq_block(keys.SEQ_BLOCK_KEY, block)) >= least:
            end = max(end, least)  # the store has used, or may use, all ids below
        async for rows in store.scan_batches(*keys.kind_range(RecordKind.STAGED_JOB)):
            for pair in rows:
                job = staged_jobs.decode_job(*pair)
                first, behind = job.first_id + job.routed, min(job.first_id + job.rows, end)
                if first < behind:
                    gaps[str(first)] = behind
        return Position(end, gaps, now_ms)

    async def _limited(self, store: OfflineStore, ranges: list[Range], limit: int) -> int | None:
        """Return the number after the ``limit`` first rows of these ranges; None if they are all."""
        for first, end in ranges:
            if self._table == "attempts":
                if end - first > limit:
                    return first + limit
                continue
            batch = min(limit, store_scan.ROWS)
            async for rows in store.scan_rows(keys.metadata_key(first), keys.metadata_key(end), batch=batch):
                if len(rows) > limit:
                    return store_scan.number_of(rows.pairs()[limit][0])
                limit -= len(rows)
        return None

    # ------------------------------------------------------------------ batches
    def partitions(self, start: Offset, end: Offset) -> list[KeyRange]:
        earlier, later = Position(**start), Position(**end)
        ranges = later.since(earlier)
        return self._run(self._parts, earlier, later, ranges) if ranges else []

    async def _parts(
        self, store: OfflineStore, earlier: Position, later: Position, ranges: list[Range]
    ) -> list[KeyRange]:
        if self._table == "attempts":
            return await self._attempt_parts(store, ranges)
        kept_seconds = await table_rows.shortest_retention(store)
        seen_at_ms = max(earlier.at_ms, self._idle.at_ms if self._idle.end == earlier.end else 0)
        is_late = later.at_ms - seen_at_ms > 1000 * kept_seconds
        if is_late and not self._fails:
            log.warning("messages may have been deleted before they were read: they are kept for %d s", kept_seconds)
        expects_all = is_late and self._fails
        return [
            message_range(low, high, rows=(high - low + 1) * expects_all)
            for first, behind in ranges
            for low, high in self._reader.numbers((first, behind - 1))
        ]

    async def _attempt_parts(self, store: OfflineStore, ranges: list[Range]) -> list[KeyRange]:
        begin, end = keys.kind_range(RecordKind.HISTORY_LOG)
        first = ranges[0][0]
        oldest = await store_scan.number_range(store, RecordKind.HISTORY_LOG)
        lowest = oldest[0] if oldest else ranges[-1][1]
        if lowest > first:
            self._lost(f"attempts {first} to {lowest - 1} are deleted and were not read; set --history-days higher")
        parts = []
        for low, high in self._reader.numbers((max(first, lowest), ranges[-1][1] - 1)):
            chunk = await store.last_key(begin, keys.history_log_key(low, LAST_ROW))  # its first attempt is not later
            last = keys.history_log_key(high, LAST_ROW) + b"\0"
            parts.append(KeyRange(chunk or begin, min(last, end), numbers=(low, high), rows=high - low + 1))
        return parts

    def _lost(self, text: str) -> None:
        if self._fails:
            raise StoreError(f"{text}. To continue with the rows that are left, set failOnDataLoss to false")
        log.warning("%s", text)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)


async def _next_attempt(store: OfflineStore) -> int:
    """Return the number of the next attempt; if the log is empty, its index has recorded it."""
    key = await store.last_key(*keys.kind_range(RecordKind.HISTORY_LOG))
    if key is not None:
        return store_scan.number_of(key) + history_log.attempts_of(key, await store.get(key) or b"")
    head = await store.get(keys.HISTORY_HEAD_KEY)
    return 0 if head is None else history_index.decode_head(keys.HISTORY_HEAD_KEY, head).attempt
