"""The history log in memory: rows of what happens, in chunks that a checkpoint writes.

Rows come from :class:`~kombu_opendata.storage.state.store_state.StoreState`, whose methods recovery calls again: a row
that was not stored yet comes again in the same order and gets the same number. While messages flow, a row costs one
append to a list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Set

from ..records import history_log, keys
from ..records.history_log import MANUAL, REASONS, REDRIVEN, Attempt, Left, Rows
from ..records.history_trail import BLOCK_BITS
from ..slatedb.ffi import Batch
from .queue_buckets import Entry

#: a chunk is closed when it has so many messages or attempts, so that handling one never takes long
CHUNK_ROWS = 4096
#: messages and attempts of chunks that are stored but not indexed and that stay in memory all the same
KEPT_ROWS = 16_384
#: of chunks that left memory: so many blocks of messages that have attempts in them are remembered
MAX_BLOCKS = 65_536

Headers = Mapping[str, str] | None
Place = tuple[int, int]


class Chunk:
    """Rows that become one record. ``headers`` has the new messages; their headers only if they are at hand.

    ``waits``: for some they are not, so it must be in the store, and they with it, before it is indexed.
    """

    __slots__ = (
        "_attempted", "attempts", "first_attempt", "first_row", "headers", "left", "other_rows", "routed", "saved",
        "waits",
    )  # fmt: skip

    def __init__(self, first_attempt: int, first_row: int) -> None:
        self.first_attempt = first_attempt
        self.first_row = first_row
        self.headers: dict[int, Headers] = {}
        self.routed: dict[str, list[int]] = {}
        self.left: list[Left] = []
        self.attempts: list[Attempt] = []
        self.other_rows = -1  # counted when the chunk is closed
        self.saved = False
        self.waits = False
        self._attempted: frozenset[int] | None = None

    @classmethod
    def of(cls, place: Place, rows: Rows) -> Chunk:
        """A chunk that was read from the store."""
        chunk = cls(*place)
        chunk.headers = dict.fromkeys(rows.published)
        chunk.routed, chunk.left, chunk.attempts = rows.routed, rows.left, rows.attempts
        chunk.close()
        chunk.saved = True
        return chunk

    @property
    def place(self) -> Place:
        """Its key's numbers: where it begins."""
        return self.first_attempt, self.first_row

    @property
    def end(self) -> Place:
        """Where the next chunk begins."""
        return self.first_attempt + len(self.attempts), self.first_row + self.other_rows

    @property
    def attempted(self) -> frozenset[int]:
        """The messages whose attempts ended; of a chunk that is closed."""
        if self._attempted is None:
            self._attempted = frozenset([row.message_id for row in self.attempts])
        return self._attempted

    def rows(self) -> Rows:
        return Rows(list(self.headers), self.routed, self.left, self.attempts)

    def close(self) -> None:
        """No row is added any more."""
        self.other_rows = self.rows().others

    def __len__(self) -> int:
        """Messages and attempts, the rows that cost something."""
        return len(self.headers) + len(self.attempts)


class HistoryLog:
    """What happened and is not indexed yet; the numbers of the next rows.

    ``chunks`` are closed, in order, and neither forgotten nor indexed; ``open`` takes the next rows.
    """

    def __init__(self, attempt: int = 0, row: int = 0) -> None:
        self.begin_at((attempt, row))
        self.chunks: deque[Chunk] = deque()
        self._indexed: Place = (0, 0)
        self._forgotten: dict[int, int] = {}  # block of messages → the end of the last chunk with attempts of them
        self._forgotten_upto = 0

    def begin_at(self, place: Place) -> None:
        """The numbers of the next row, before there is any: the stored log ends there."""
        self.open = Chunk(*place)
        self._unknown_upto = place[0]  # attempts before it that are not indexed may be any message's

    # ------------------------------------------------------------------ rows
    def published(self, id: int, places: Iterable[tuple[str, int]], headers: Headers) -> None:
        """A new message in these queues."""
        chunk = self.open
        if len(chunk.headers) >= CHUNK_ROWS:
            chunk = self.close_chunk()
        chunk.headers[id] = headers
        if headers is None:
            chunk.waits = True
        routed = chunk.routed
        for name, _bucket in places:
            ids = routed.get(name)
            if ids is None:
                routed[name] = [id]
            else:
                ids.append(id)

    def routed(self, id: int, queue: str) -> None:
        """A message of before got into one more queue."""
        self.open.routed.setdefault(queue, []).append(id)

    def ended(self, entry: Entry, consumer: str, at: int, outcome: int) -> None:
        """A lease ended; to be called before the entry changes. ``outcome`` with MANUAL if it was done by hand."""
        attempts = self.open.attempts
        if len(attempts) >= CHUNK_ROWS:
            attempts = self.close_chunk().attempts
        claimed = entry.claimed_at if entry.claimed_at < at else at  # a claim may be dated ahead by a millisecond
        attempts.append(Attempt(entry.id, entry.queue, consumer, claimed, at, entry.attempts, outcome))

    def by_hand(self, id: int, queue: str, at: int, number: int, outcome: int, operator: str = "") -> None:
        """A message changed without having been claimed, by somebody's call: an attempt that ended at once."""
        self.open.attempts.append(Attempt(id, queue, operator, at, at, number, outcome | MANUAL))

    def redriven(self, id: int, queue: str, at: int) -> None:
        """A message that was settled in this queue is available again, here or elsewhere."""
        self.by_hand(id, queue, at, 0, REDRIVEN)

    def left(self, id: int, queue: str, at: int, why: str = "") -> None:
        """A message left its queue without an attempt's end; ``at`` is 0 where nobody knows."""
        reason = "dropped" if why == "maxlen" else why
        number = REASONS.index(reason) if reason in REASONS else 0
        self.open.left.append(Left(id, queue, at, number))

    # ------------------------------------------------------------------ chunks
    @property
    def end(self) -> Place:
        """Where the next row will be."""
        self.open.close()
        return self.open.end

    def close_chunk(self) -> Chunk:
        """Close the open chunk, if it has anything; returns the one that is open now."""
        chunk = self.open
        chunk.close()
        if chunk.end != chunk.place:
            self.chunks.append(chunk)
            self.open = Chunk(*chunk.end)
        return self.open

    @property
    def unsaved(self) -> list[Chunk]:
        """The closed chunks that are not in the store yet, in order."""
        return [chunk for chunk in self.chunks if not chunk.saved]

    @property
    def is_dirty(self) -> bool:
        chunk = self.open
        return bool(chunk.attempts or chunk.headers or chunk.left or chunk.routed) or bool(self.unsaved)

    def snapshot(self, batch: Batch) -> list[Chunk]:
        """Put everything that is not stored into a checkpoint's batch; returns which chunks that was."""
        self.close_chunk()
        unsaved = self.unsaved
        for chunk in unsaved:
            batch.put(keys.history_log_key(*chunk.place), history_log.encode(chunk.rows()))
        return unsaved

    def saved(self, chunks: Iterable[Chunk]) -> None:
        """The checkpoint is in the store: forget what does not fit memory, the oldest first."""
        for chunk in chunks:
            chunk.saved = True
        self.indexed(self._indexed)
        kept = sum(map(len, self.chunks))
        while kept > KEPT_ROWS and self.chunks[0].saved:
            chunk = self.chunks.popleft()
            kept -= len(chunk)
            self._forget(chunk)

    def _forget(self, chunk: Chunk) -> None:
        """A chunk that is not indexed leaves memory: only the blocks of its messages are remembered."""
        end = self._forgotten_upto = chunk.end[0]
        self._forgotten.update(dict.fromkeys({id >> BLOCK_BITS for id in chunk.attempted}, end))
        if len(self._forgotten) > MAX_BLOCKS:
            done = self._indexed[0]
            self._forgotten = {block: upto for block, upto in self._forgotten.items() if upto > done}
            if len(self._forgotten) > MAX_BLOCKS // 2:
                self._forgotten, self._unknown_upto = {}, end

    def indexed(self, upto: Place) -> None:
        """Everything before this place is in the index: it is not needed here once it is stored."""
        self._indexed = upto
        while self.chunks and self.chunks[0].saved and self.chunks[0].end <= upto:
            self.chunks.popleft()
        if self._forgotten and self._forgotten_upto <= upto[0]:
            self._forgotten = {}

    def attempted(self, ids: Set[int]) -> set[int]:
        """Those of these messages that may have attempts that are not in the index; of closed chunks."""
        done, forgotten = self._indexed, self._forgotten
        if done[0] < self._unknown_upto:
            return set(ids)
        found = {id for id in ids if forgotten.get(id >> BLOCK_BITS, 0) > done[0]} if forgotten else set()
        for chunk in self.chunks:
            if chunk.end > done:
                found.update(chunk.attempted & ids)
        return found
