"""The data that a routing cursor keeps in memory: a block of the metadata log, and the matches in it for the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...selectors import compile_selector
from ..clock import TimeSlice
from ..engine_parts import EngineParts, EngineService
from ..read.membership import Membership
from ..read.metadata_blocks import BlockReader, MetadataBlock
from ..read.stored_messages import PRIORITY, first_received_from, id_of, priority_of, row_of
from ..records import metadata
from ..records.routing_cursor import Cursor
from ..routing.topology import Topology
from ..state.queue_buckets import TTL_HEADER, QueueRow
from ..state.store_state import Queue

#: ids whose membership in a queue is in memory at the same time
_WINDOW_IDS = 1 << 16
#: most messages that one step adds
_STEP_ROWS = 512
#: messages that a step examines between two readings of the clock
_CLOCK_ROWS = 16
#: a larger record may have long texts, which are slow to filter: the clock is read before each
_LONG_BYTES = 1024

#: combinations of headers for which the result of the filter is cached
_VERDICTS_KEPT = 4096
#: the most characters of the headers of one such combination
_VERDICT_TEXT = 256

#: returns True if a queue accepts this many more messages, with this many bytes in total
Accepts = Callable[[int, int], bool]


def accept_all(_messages: int, _bytes: int) -> bool:
    return True


class MatchedRows(NamedTuple):
    """The messages in a part of a block that match a queue.

    Attributes:
        rows: the rows for the queue.
        places: the places of these messages in the block.
        next: the place in the block at which the next part begins.
        position: the cursor's position after this part.
        is_full: True if the queue accepts no more messages.
    """

    rows: list[QueueRow]
    places: list[int]
    next: int
    position: int
    is_full: bool = False

    def cut(self, count: int) -> MatchedRows:
        """Return the first ``count`` rows, for a queue that accepts no more."""
        if count >= len(self.rows):
            return self
        return MatchedRows(self.rows[:count], self.places[:count], self.places[count], self.rows[count].id, True)


class CursorFilter:
    """The filter of a cursor, which matches stored messages to a queue by their metadata headers.

    Attributes:
        decode: decodes metadata, with only the headers that the filter and a row of the queue need.
    """

    def __init__(self, topology: Topology, queue: str, selector: str) -> None:
        base = topology.definition_of(queue).selector
        extra = compile_selector(selector) if selector else None
        names = {PRIORITY, TTL_HEADER, *base.names, *(extra.names if extra is not None else ())}
        self.made_of = (topology.version, selector)
        self.decode = metadata.Decoder(names).decode
        self._own, self._further = base, extra
        self._verdicts: dict[metadata.Pairs, int | None] = {}

    def priority_in(self, pairs: metadata.Pairs) -> int | None:
        """Return the stored priority in the queue of a message with these headers; None if it does not match."""
        cache = self._verdicts
        if pairs in cache:
            return cache[pairs]
        headers = dict(pairs)
        matches = self._own.matches(headers) and (self._further is None or self._further.matches(headers))
        priority = priority_of(headers) if matches else None
        if sum(len(text) for _name, text in pairs) <= _VERDICT_TEXT:
            if len(cache) >= _VERDICTS_KEPT:
                cache.clear()
            cache[pairs] = priority
        return priority


class CursorReader(EngineService):
    """The reader of one cursor.

    ``block.rows[next:]`` are all metadata records from the cursor's position up to ``block.upto``.
    """

    def __init__(self, parts: EngineParts) -> None:
        super().__init__(parts)
        self._blocks = BlockReader(parts)
        self.next = 0
        self.membership: Membership | None = None  # of messages that may already be in the queue
        self._filter: CursorFilter | None = None

    @property
    def block(self) -> MetadataBlock | None:
        return self._blocks.block

    @property
    def next_id(self) -> int | None:
        block = self.block
        return id_of(block.rows[self.next][0]) if block and self.next < len(block.rows) else None

    def close(self) -> None:
        self._blocks.close()
        self._drop_membership()

    def _drop_membership(self) -> None:
        if self.membership is not None:
            self.membership.detach()
            self.membership = None

    async def fill(self, queue: Queue, cursor: Cursor) -> None:
        """Read the next block if needed, and which of its messages are already in the queue."""
        block = self.block
        if block is None or block.is_stale or (self.next_id is None and block.upto < cursor.end):
            start = cursor.position
            if cursor.from_ms and start == cursor.start:
                store = self._store
                start = await first_received_from(store, cursor.from_ms, start, cursor.end)
            await self._blocks.read(start, cursor.end)
            self.next = 0
        first = self.next_id
        if first is None or not (cursor.again or cursor.checks):
            return
        if self.membership is None or first not in self.membership.wanted:
            self._drop_membership()
            self.membership = await Membership.of(self._store, self._commits, queue, range(first, first + _WINDOW_IDS))

    def _filter_of(self, queue: Queue, cursor: Cursor) -> CursorFilter:
        topology = self._state.topology
        if self._filter is None or self._filter.made_of != (topology.version, cursor.selector):
            self._filter = CursorFilter(topology, queue.name, cursor.selector)
        return self._filter

    def select(self, queue: Queue, cursor: Cursor, seconds: float, accepts: Accepts) -> MatchedRows:
        """Examine the block until the time is over or the queue is full."""
        cursor_filter = self._filter_of(queue, cursor)
        priority_in, decode = cursor_filter.priority_in, cursor_filter.decode
        window = self.membership.wanted if self.membership is not None else None
        piece = TimeSlice(seconds)
        at = self._clock.now_ms()
        assert self.block is not None
        block, index = self.block.rows, self.next
        rows: list[QueueRow] = []
        places: list[int] = []
        while index < len(block):
            key, value = block[index]
            checks_clock = index % _CLOCK_ROWS == 0 or len(value) > _LONG_BYTES
            if len(rows) >= _STEP_ROWS or (checks_clock and index > self.next and piece.is_over):
                break
            if window is not None and id_of(key) not in window:
                break
            message = decode(key, value)
            received_at = message.received_at_ms
            if cursor.until_ms and received_at >= cursor.until_ms:
                return MatchedRows(rows, places, len(block), cursor.end)
            row = None
            if received_at >= cursor.from_ms and (priority := priority_in(message.header_pairs)) is not None:
                row = row_of(message, priority, queue, at)
            if row is not None:
                if not accepts(len(rows) + 1, 0):
                    return MatchedRows(rows, places, index, message.message_id, True)
                rows.append(row)
                places.append(index)
            index += 1
        position = self.block.upto if index == len(block) else id_of(block[index][0])
        return MatchedRows(rows, places, index, position)
