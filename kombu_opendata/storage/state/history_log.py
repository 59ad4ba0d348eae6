"""The history log in memory: rows of events, in chunks that a checkpoint writes.

The log is the only complete record of what happened to messages; the index (:mod:`..history.indexer`) is built
from it later. It has four kinds of rows: a new message with its queues (``headers`` and ``routed``), the routing of an
earlier message, the end of an attempt, and the removal of a message without an attempt (``left``).

**Numbers.** Attempts are numbered from 0, and so are the other rows; a chunk's *place* is the pair of the numbers with
which it begins, and the key of its record. A client's id of an attempt contains the number, so it must never change.
Effects add the rows when they are applied, in the live engine and in recovery. The stored log ends at some place;
recovery continues there with :meth:`HistoryLog.begin_at` and applies the journal's effects, which the store lacks, in
their order: a row that was not stored is added again, with the same number. Therefore an effect must add its rows
depending on the state and its own fields only. Adding a row costs one append to a list, as it is on the way of each
message. Without a journal, an effect and its rows are in the same checkpoint. If history is off, ``StoreState.history``
is None, and effects add no rows.

**The states of a chunk.**

=========  ===========================================================  ==============================================
state      meaning                                                      ends with
=========  ===========================================================  ==============================================
open       new rows are added; there is one such chunk                  4,096 messages or attempts, a checkpoint, or a
                                                                        query: :meth:`HistoryLog.close_chunk`
closed     it is in ``chunks``; its rows are final and counted          :meth:`HistoryLog.saved`, after the checkpoint
                                                                        whose batch :meth:`HistoryLog.snapshot` filled.
                                                                        If that fails, the broker ends
saved      its record is in the store                                   :meth:`HistoryLog.indexed`, or an eviction
indexed    the index in memory has its rows                             removed from ``chunks``
evicted    it was saved, and too many rows waited for the indexer       the indexer reads it from the store
=========  ===========================================================  ==============================================

A chunk is only removed from memory once it is saved, whether it is indexed or evicted. So the indexer finds each chunk
in memory or in the store, and memory is bounded by ``log_rows`` and the rows since the last checkpoint. Only messages
and attempts count for ``log_rows``, and only those of publishes, leases and tasks end a chunk at its limit: an
operator's attempts, ``left`` and ``routed`` may make it longer, as far as the work between two checkpoints goes.

**Headers.** The effect of a publish has the headers, that of a staged job's rows has them in columns, which the rows of
a block share (:class:`HeaderColumns`). A chunk that was read from the store has none (``None``), so the indexer reads
the messages' metadata.

**Deleted messages.** A checkpoint that deletes a message's metadata must keep its headers for the indexer if an attempt
of it is not indexed yet (:mod:`..history.kept_headers`). :meth:`HistoryLog.attempted` answers that for the closed
chunks; the open one, begun by the checkpoint's snapshot, has no attempts of messages that it deletes. Scanning
evicted chunks in the store would be too slow during a checkpoint, so for each evicted chunk the blocks of 256 ids with
attempts are recorded, with the end of the chunk. A block counts until the index has passed that end. If there are too
many blocks, the log counts every message as attempted until the index has passed the newest evicted chunk: this keeps
more headers than needed, and never too few. The same applies after a startup to the stored chunks that are not indexed.

**Task outcomes.** A worker's report on a message in flight is in the effect before the one that settles it.
``reports`` holds it between the two, which are in one commit. Texts of failures (``failures``) have separate
records, so they are in memory only until the chunk is saved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from ...protocol.task_reports import TaskReport
from ..engine_sizes import SIZES, EngineSizes
from ..records import failures, history_log, keys
from ..records.failures import TaskFailure
from ..records.history_log import ACKED, DETAILED, MANUAL, REASONS, REDRIVEN, Attempt, ChunkRows, Left
from ..records.history_trail import BLOCK_BITS
from ..records.session_records import RunningTask
from ..slatedb.ffi import WriteBatch
from .queue_buckets import QueueEntry


class HeaderColumns(NamedTuple):
    """The metadata headers of consecutive messages; None in a column for a message without the header."""

    first_id: int
    rows: int
    constants: Mapping[str, str]
    columns: Mapping[str, list[str | None]]


Headers = Mapping[str, str] | HeaderColumns | None
Place = tuple[int, int]


@dataclass(slots=True, eq=False)
class LogChunk:
    """Rows that become one record. ``headers`` has the new messages, with their headers if these are known.

    ``failures`` are those of attempts, by number, until they are in the store.
    """

    first_attempt: int
    first_row: int
    headers: dict[int, Headers] = field(default_factory=dict)
    routed: dict[str, list[int]] = field(default_factory=dict)
    left: list[Left] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    failures: dict[int, TaskFailure] = field(default_factory=dict)
    other_rows: int = -1  # counted when the chunk is closed
    saved: bool = False
    _attempted: frozenset[int] | None = None

    @classmethod
    def of(cls, place: Place, rows: ChunkRows) -> LogChunk:
        chunk = cls(*place, dict.fromkeys(rows.published), rows.routed, rows.left, rows.attempts)
        chunk.close()
        return chunk

    @property
    def place(self) -> Place:
        """The place of the first row, as in the key."""
        return self.first_attempt, self.first_row

    @property
    def end(self) -> Place:
        """The place at which the next chunk begins."""
        return self.first_attempt + len(self.attempts), self.first_row + self.other_rows

    @property
    def attempted(self) -> frozenset[int]:
        """The messages whose attempts ended; of a closed chunk only."""
        if self._attempted is None:
            self._attempted = frozenset([row.message_id for row in self.attempts])
        return self._attempted

    def rows(self) -> ChunkRows:
        return ChunkRows(list(self.headers), self.routed, self.left, self.attempts)

    def close(self) -> None:
        """Count the rows; again if rows were added since."""
        self.other_rows = self.rows().others

    def __len__(self) -> int:
        """Return the number of messages and attempts, the rows that cost memory."""
        return len(self.headers) + len(self.attempts)


class HistoryLog:
    """The rows that are not indexed yet, and the numbers of the next rows.

    ``chunks`` are closed, in order, and neither evicted nor indexed; the next rows are added to ``open``.
    """

    def __init__(self, sizes: EngineSizes = SIZES) -> None:
        self._chunk_rows, self._max_rows, self._max_blocks = sizes.log_chunk_rows, sizes.log_rows, sizes.log_blocks
        self.begin_at((0, 0))
        self.chunks: deque[LogChunk] = deque()
        self._indexed: Place = (0, 0)
        self._forgotten: dict[int, int] = {}  # block of messages → the end of the last chunk with attempts of them
        self._forgotten_upto = 0
        #: reports on messages that the next effects settle, by queue and message id
        self.reports: dict[tuple[str, int], TaskReport] = {}

    def begin_at(self, place: Place) -> None:
        """Set the numbers of the first row: the end of the stored log."""
        self.open = LogChunk(*place)
        self._unknown_upto = place[0]  # attempts before it that are not indexed may be of any message

    # ------------------------------------------------------------------ rows
    def published(self, id: int, places: Iterable[tuple[str, int]], headers: Headers) -> None:
        """Add a new message in these queues."""
        chunk = self.open
        if len(chunk.headers) >= self._chunk_rows:
            chunk = self.close_chunk()
        chunk.headers[id] = headers
        routed = chunk.routed
        for name, _bucket in places:
            ids = routed.get(name)
            if ids is None:
                routed[name] = [id]
            else:
                ids.append(id)

    def routed(self, id: int, queue: str) -> None:
        """Add the routing of an earlier message to one more queue."""
        self.open.routed.setdefault(queue, []).append(id)

    def ended(
        self, entry: QueueEntry, consumer: str, at: int, outcome: int, state: int = 0, runtime_us: int = 0, pid: int = 0
    ) -> None:
        """Add the end of a lease, before the entry changes. ``outcome`` includes MANUAL if an operator caused it.

        The outcome of the task is in the arguments or, if it has texts, in ``reports``.
        """
        attempts = self.open.attempts
        if len(attempts) >= self._chunk_rows:
            attempts = self.close_chunk().attempts
        claimed = entry.claimed_at if entry.claimed_at < at else at  # a claim may be dated ahead by a millisecond
        report = self.reports.pop((entry.queue, entry.id), None) if self.reports else None
        if report is None:
            number = entry.attempts
            attempts.append(
                Attempt(entry.id, entry.queue, consumer, claimed, at, number, outcome, state, runtime_us, pid)
            )
        else:
            self._reported(entry.id, entry.queue, consumer, claimed, at, entry.attempts, outcome, report)

    def finished(self, queue: str, task: RunningTask, consumer: str, at: int, report: TaskReport) -> None:
        """Add the end of a task whose message was acknowledged at its start."""
        if len(self.open.attempts) >= self._chunk_rows:
            self.close_chunk()
        claimed = task.claimed_at_ms if task.claimed_at_ms < at else at
        id, number = task.message_id, task.number
        if report.exception or report.error or report.traceback:
            self._reported(id, queue, consumer, claimed, at, number, ACKED, report)
        else:
            fields = report.state, report.runtime_us, report.pid
            self.open.attempts.append(Attempt(id, queue, consumer, claimed, at, number, ACKED, *fields))

    def _reported(
        self, id: int, queue: str, consumer: str, claimed: int, at: int, number: int, outcome: int, report: TaskReport
    ) -> None:
        chunk, state = self.open, report.state
        if report.error or report.traceback:
            state |= DETAILED
            failure = TaskFailure(report.error, report.traceback, report.task)
            chunk.failures[chunk.first_attempt + len(chunk.attempts)] = failure
        fields = report.runtime_us, report.pid, report.exception
        chunk.attempts.append(Attempt(id, queue, consumer, claimed, at, number, outcome, state, *fields))

    def by_hand(self, id: int, queue: str, at: int, number: int, outcome: int, operator: str = "") -> None:
        """Add an operator's change of a message that was not claimed: an attempt that ended immediately."""
        self.open.attempts.append(Attempt(id, queue, operator, at, at, number, outcome | MANUAL))

    def redriven(self, id: int, queue: str, at: int) -> None:
        """Add the redrive of a message, settled in this queue, to this or another queue."""
        self.by_hand(id, queue, at, 0, REDRIVEN)

    def left(self, id: int, queue: str, at: int, why: str = "") -> None:
        """Add the removal of a message from its queue without the end of an attempt; ``at`` is 0 if unknown."""
        reason = "dropped" if why == "maxlen" else why
        number = REASONS.index(reason) if reason in REASONS else 0
        self.open.left.append(Left(id, queue, at, number))

    # ------------------------------------------------------------------ chunks
    @property
    def end(self) -> Place:
        """The place of the next row. The open chunk stays open."""
        self.open.close()
        return self.open.end

    def close_chunk(self) -> LogChunk:
        """Close the open chunk, unless it is empty; return the chunk that is open now."""
        chunk = self.open
        chunk.close()
        if chunk.end != chunk.place:
            self.chunks.append(chunk)
            self.open = LogChunk(*chunk.end)
        return self.open

    @property
    def unsaved(self) -> list[LogChunk]:
        """The closed chunks that are not in the store yet, in order."""
        return [chunk for chunk in self.chunks if not chunk.saved]

    @property
    def is_dirty(self) -> bool:
        chunk = self.open
        return bool(chunk.attempts or chunk.headers or chunk.left or chunk.routed) or bool(self.unsaved)

    def snapshot(self, batch: WriteBatch) -> list[LogChunk]:
        """Add all chunks that are not stored to a checkpoint's batch; return them."""
        self.close_chunk()
        unsaved = self.unsaved
        for chunk in unsaved:
            batch.put(keys.history_log_key(*chunk.place), history_log.encode(chunk.rows()))
            for number, failure in chunk.failures.items():
                batch.put(keys.task_failure_key(number), failures.encode_task_failure(failure))
        return unsaved

    def saved(self, chunks: Iterable[LogChunk]) -> None:
        """Mark these chunks as stored, and evict the oldest chunks that exceed the memory limit."""
        for chunk in chunks:
            chunk.saved = True
            chunk.failures = {}
        self.indexed(self._indexed)
        row_count = sum(map(len, self.chunks))
        while row_count > self._max_rows and self.chunks[0].saved:
            chunk = self.chunks.popleft()
            row_count -= len(chunk)
            self._forget(chunk)

    def _forget(self, chunk: LogChunk) -> None:
        """Record the blocks of the messages of a chunk that leaves memory before it is indexed."""
        end = self._forgotten_upto = chunk.end[0]
        self._forgotten.update(dict.fromkeys({id >> BLOCK_BITS for id in chunk.attempted}, end))
        if len(self._forgotten) > self._max_blocks:
            indexed_attempts = self._indexed[0]
            self._forgotten = {block: upto for block, upto in self._forgotten.items() if upto > indexed_attempts}
            if len(self._forgotten) > self._max_blocks // 2:
                self._forgotten, self._unknown_upto = {}, end

    def indexed(self, upto: Place) -> None:
        """Mark the rows before this place as indexed, and remove stored chunks of them from memory."""
        self._indexed = upto
        while self.chunks and self.chunks[0].saved and self.chunks[0].end <= upto:
            self.chunks.popleft()
        if self._forgotten and self._forgotten_upto <= upto[0]:
            self._forgotten = {}

    def attempted(self, ids: Set[int]) -> set[int]:
        """Return the messages among these that may have attempts in closed chunks that are not indexed, or more."""
        place, forgotten = self._indexed, self._forgotten
        if place[0] < self._unknown_upto:
            return set(ids)
        matches = {id for id in ids if forgotten.get(id >> BLOCK_BITS, 0) > place[0]} if forgotten else set()
        for chunk in self.chunks:
            if chunk.end > place:
                matches.update(chunk.attempted & ids)
        return matches
