"""Background routing: the cursors that bring stored messages into a queue (docs/rfcs/0006-replay.md).

A cursor goes through the metadata log in order of ids. A step reads and filters without holding anything up, then
applies what it found in one go while no checkpoint is under way: so nothing that it adds can have been collected in
between, and its position and its rows are in one commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ..errors import PreconditionFailed
from ..selectors import compile_selector
from . import moves, settled_moves, stored_messages
from .effects.moved import Route
from .limits import TTL_HEADER
from .membership import Membership
from .metadata_blocks import Block, BlockReader
from .moves import Which
from .queue_buckets import QueueRow
from .records import metadata
from .records.cursor import Cursor

if TYPE_CHECKING:
    from .engine import Engine
    from .state import Queue
    from .topology import Topology

#: ids whose membership in a queue is in memory at a time
_WINDOW_IDS = 1 << 16
#: messages that one step adds at most, and after how many that it looked at it looks at the time
_STEP_ROWS = 512
_LOOK_ROWS = 16
#: combinations of headers of which is remembered whether they match, and how long their texts are together at most
_VERDICTS_KEPT = 4096
_VERDICT_TEXT = 256
#: journal bytes of one row, about
_ROW_BYTES = 40
#: how long after its start a cursor begins anew when its queue is bound
LATE_BINDING_MS = 30_000


class Step(NamedTuple):
    """What one step did.

    ``ids`` were added. ``is_full``: the queue takes no more now. ``is_over``: there is nothing left to do.
    """

    ids: list[int]
    seen: int
    is_over: bool
    is_full: bool = False


#: whether a queue takes so many more messages with so many bytes together
Accepts = Callable[[int, int], bool]


def accept_all(_messages: int, _bytes: int) -> bool:
    """No limit."""
    return True


class _Reader:
    """What a cursor has at hand.

    ``block.rows[next:]`` are all metadata records from the cursor's position to ``block.upto``.
    """

    def __init__(self, engine: Engine) -> None:
        self.blocks = BlockReader(engine.store, engine.commits)
        self.next = 0
        self.membership: Membership | None = None  # of the messages that may be in the queue already
        self.filter: _Filter | None = None

    @property
    def block(self) -> Block | None:
        """The block at hand."""
        return self.blocks.block

    @property
    def next_id(self) -> int | None:
        """The next message of the block."""
        block = self.block
        return stored_messages.id_of(block.rows[self.next][0]) if block and self.next < len(block.rows) else None

    def close(self) -> None:
        self.blocks.close()
        self.drop_membership()

    def drop_membership(self) -> None:
        if self.membership is not None:
            self.membership.detach()
            self.membership = None


class _Found(NamedTuple):
    """What a part of a block has for a queue: rows, their places in the block, and where to go on."""

    rows: list[QueueRow]
    places: list[int]
    next: int
    position: int
    is_full: bool = False

    def cut(self, count: int) -> _Found:
        """As if the queue had taken so many rows and no more."""
        if count >= len(self.rows):
            return self
        return _Found(self.rows[:count], self.places[:count], self.places[count], self.rows[count].id, True)


class Router:
    """Moves the cursors of one engine on. Steps of one cursor must not overlap."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._readers: dict[str, _Reader] = {}

    # ------------------------------------------------------------------ cursors begin and end
    def start(self, queue: Queue, cursor: Cursor) -> None:
        """Give a queue a cursor, instead of one that is done.

        Raises:
            PreconditionFailed: one is under way.
        """
        old = self._engine.state.cursors.get(queue.name)
        if old is not None and not old.is_done:
            raise PreconditionFailed(
                f"queue {queue.name!r} is being filled already, at message {old.position} of {old.end}: wait for its "
                "end, or stop it",
                queue=queue.name,
            )
        if any(self._engine.state.staged.unrouted()):  # they come into the queue by themselves, maybe before the cursor
            cursor = cursor._replace(checks=True)
        self._set(queue, cursor)

    def stop(self, queue: Queue) -> bool:
        """End a queue's cursor where it stands; returns whether one was under way."""
        cursor = self._engine.state.cursors.get(queue.name)
        if cursor is None or cursor.is_done:
            return False
        self._set(queue, cursor._replace(end=cursor.position))
        return True

    def bound(self, name: str) -> None:
        """The queue's filter grew. What it did not let in until now is looked at again, up to the newest message.

        That is only for a queue that was declared with a start, while its cursor is under way or shortly after: clients
        bind after they declare, and others publish in between. Messages that are in the queue are not added again.
        """
        cursor, end = self._engine.state.cursors.get(name), self._engine.state.next_id
        if cursor is None or cursor.again or (cursor.position, cursor.end) == (cursor.start, end):
            return
        if cursor.is_done and self._engine.clock.now_ms() - cursor.started_at_ms > LATE_BINDING_MS:
            return
        queue = self._engine.state.queues[name]
        self._set(queue, cursor._replace(position=cursor.start, end=end, seen=0, checks=True))

    def _set(self, queue: Queue, cursor: Cursor) -> None:
        self.forget(queue.name)
        self._apply(queue, cursor, [], [])
        self._engine.commits.needs_sync = True

    def _apply(self, queue: Queue, cursor: Cursor, rows: list[QueueRow], taken: list[moves.Taken]) -> None:
        engine = self._engine
        at = engine.clock.now_ms()
        engine.commits.apply(Route(queue.name, cursor._replace(changed_at_ms=at), at, rows, taken))
        engine.commits.sync_soon = True

    # ------------------------------------------------------------------ steps
    async def step(self, name: str, seconds: float, accepts: Accepts = accept_all) -> Step:
        """Move a queue's cursor on; it keeps the event loop for about ``seconds`` at a time.

        Raises:
            StoreFull: the journal takes no more now; try later.
            CorruptRecord, StoreError: the store can't be read.
        """
        engine = self._engine
        cursor, queue = engine.state.cursors.get(name), engine.state.queues.get(name)
        if cursor is None or queue is None or cursor.is_done:
            self.forget(name)
            return Step([], 0, True)
        if engine.commits.stored_upto < cursor.end:
            await engine.commits.checkpoint()  # what was published just now is in the store only after it
        reader = self._readers.get(name)
        if reader is None:
            reader = self._readers[name] = _Reader(engine)
        await self._fill(reader, queue, cursor)
        if not self._is_current(reader, queue, cursor):
            if self._readers.get(name) is not reader:
                reader.close()  # it was forgotten while this was being looked up
            return Step([], 0, False)
        found = self._select(reader, queue, cursor, seconds, accepts)
        await stored_messages.measure(engine.store, queue, found.rows)
        if queue.limits.counts_bytes:
            found = found.cut(_fitting(found.rows, accepts))
        async with settled_moves.settled_down(engine, found.rows):
            return await self._take_over(reader, queue, cursor, found)

    def forget(self, name: str) -> None:
        """Let go of what the cursor of this queue has at hand."""
        reader = self._readers.pop(name, None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        """Let go of everything that cursors have at hand."""
        for name in list(self._readers):
            self.forget(name)

    def prune(self) -> None:
        """Let go of what belongs to cursors that are done, or whose queues are gone."""
        for name in list(self._readers):
            cursor = self._engine.state.cursors.get(name)
            if cursor is None or cursor.is_done:
                self.forget(name)

    def _is_current(self, reader: _Reader, queue: Queue, cursor: Cursor) -> bool:
        """Whether nothing happened to the cursor while the store was read."""
        state, name = self._engine.state, queue.name
        return (
            self._readers.get(name) is reader
            and state.queues.get(name) is queue
            and state.cursors.get(name) == cursor
        )  # fmt: skip

    async def _fill(self, reader: _Reader, queue: Queue, cursor: Cursor) -> None:
        """Have a block at hand, and who of it is in the queue."""
        block = reader.block
        if block is None or block.is_stale or (reader.next_id is None and block.upto < cursor.end):
            start = cursor.position
            if cursor.from_ms and start == cursor.start:
                store = self._engine.store
                start = await stored_messages.first_received_from(store, cursor.from_ms, start, cursor.end)
            await reader.blocks.read(start, cursor.end)
            reader.next = 0
        first = reader.next_id
        if first is None or not (cursor.again or cursor.checks):
            return
        if reader.membership is None or first not in reader.membership.wanted:
            reader.drop_membership()
            reader.membership = await Membership.of(
                self._engine.store, self._engine.commits, queue, range(first, first + _WINDOW_IDS)
            )

    def _filter(self, reader: _Reader, queue: Queue, cursor: Cursor) -> _Filter:
        topology = self._engine.state.topology
        if reader.filter is None or reader.filter.made_of != (topology.version, cursor.selector):
            reader.filter = _Filter(topology, queue.name, cursor.selector)
        return reader.filter

    def _select(self, reader: _Reader, queue: Queue, cursor: Cursor, seconds: float, accepts: Accepts) -> _Found:
        """Go through the block until the time is over, or the queue takes no more."""
        chosen = self._filter(reader, queue, cursor)
        priority_in, decode = chosen.priority_in, chosen.decode
        wanted = reader.membership.wanted if reader.membership is not None else None
        loop, at = asyncio.get_running_loop(), self._engine.clock.now_ms()
        ends_at = loop.time() + seconds
        assert reader.block is not None
        block, index = reader.block.rows, reader.next
        rows: list[QueueRow] = []
        places: list[int] = []
        while index < len(block):
            if len(rows) >= _STEP_ROWS or (index % _LOOK_ROWS == 0 and index > reader.next and loop.time() > ends_at):
                break
            key, value = block[index]
            if wanted is not None and stored_messages.id_of(key) not in wanted:
                break
            message = decode(key, value)
            received_at = message.received_at_ms
            if cursor.until_ms and received_at >= cursor.until_ms:
                return _Found(rows, places, len(block), cursor.end)
            row = None
            if received_at >= cursor.from_ms and (priority := priority_in(message.header_pairs)) is not None:
                row = stored_messages.row_of(message, priority, queue, at)
            if row is not None:
                if not accepts(len(rows) + 1, 0):
                    return _Found(rows, places, index, message.message_id, True)
                rows.append(row)
                places.append(index)
            index += 1
        position = reader.block.upto if index == len(block) else stored_messages.id_of(block[index][0])
        return _Found(rows, places, index, position)

    async def _take_over(self, reader: _Reader, queue: Queue, cursor: Cursor, found: _Found) -> Step:
        """Put what was found into the queue. No checkpoint is under way: what the store has is what is not dirty."""
        engine, membership = self._engine, reader.membership
        try:
            if membership is not None and cursor.again:
                for which, number in {membership.settled_in(row.id) for row in found.rows} - {None}:  # type: ignore[misc]
                    await settled_moves.bring(engine, queue, which, number)
            if not self._is_current(reader, queue, cursor):
                return Step([], 0, False)
            rows, taken = self._sort_out(reader, queue, cursor, found.rows)
            engine.commits.check_room(_ROW_BYTES * (len(rows) + 4))
            seen = found.next - reader.next
            stored_messages.place(queue, rows)
            new = cursor._replace(
                position=found.position, seen=cursor.seen + seen, routed=cursor.routed + len(rows)
            )  # fmt: skip
            if new != cursor:
                self._apply(queue, new, rows, taken)
            reader.next = found.next
            if new.is_done:
                self.forget(queue.name)
            return Step([row.id for row in rows], seen, new.is_done, found.is_full)
        finally:
            moves.forget_at_hand(queue)

    def _sort_out(
        self, reader: _Reader, queue: Queue, cursor: Cursor, rows: list[QueueRow]
    ) -> tuple[list[QueueRow], list[moves.Taken]]:
        """Those rows that the queue gets, and what of its settled lists they are."""
        assert reader.block is not None
        letters, membership, collected = self._engine.state.dead_letters, reader.membership, reader.block.collected
        at = self._engine.clock.now_ms()
        kept: list[QueueRow] = []
        taken: dict[tuple[Which, int], list[int]] = {}
        present: dict[tuple[Which, int], set[int]] = {}
        for row in rows:
            id = row.id
            # A dead letter of this queue that waits counts on the message as it was there.
            if id in collected or (queue.name, id) in letters:
                continue
            if membership is not None:
                if membership.is_active(id):
                    continue
                place = membership.settled_in(id)
                if place is not None and not cursor.again:
                    continue
                if place is not None and id in _ids_at(queue, place, present):
                    taken.setdefault(place, []).append(id)
                    stored_messages.after_lease(row, at)
            kept.append(row)
        return kept, [moves.Taken(which, number, ids) for (which, number), ids in taken.items()]


class _Filter:
    """Whether a stored message belongs into a queue.

    Attributes:
        decode: reads the metadata of a message, with the headers that matter for that and for a row of the queue.
    """

    def __init__(self, topology: Topology, queue: str, selector: str) -> None:
        own = topology.definition_of(queue).selector
        further = compile_selector(selector) if selector else None
        names = {stored_messages.PRIORITY, TTL_HEADER, *own.names, *(further.names if further is not None else ())}
        self.made_of = (topology.version, selector)
        self.decode = metadata.Decoder(names).decode
        self._own, self._further = own, further
        self._known: dict[metadata.Pairs, int | None] = {}

    def priority_in(self, pairs: metadata.Pairs) -> int | None:
        """The stored priority that a message with such headers has in the queue; None if it does not belong there.

        Few headers matter, so the same ones come again and again.
        """
        known = self._known
        if pairs in known:
            return known[pairs]
        headers = dict(pairs)
        matches = self._own.matches(headers) and (self._further is None or self._further.matches(headers))
        found = stored_messages.priority_of(headers) if matches else None
        if sum(len(text) for _name, text in pairs) <= _VERDICT_TEXT:
            if len(known) >= _VERDICTS_KEPT:
                known.clear()
            known[pairs] = found
        return found


def _fitting(rows: list[QueueRow], accepts: Accepts) -> int:
    """How many of the first rows a queue takes that counts bytes."""
    size = 0
    for number, row in enumerate(rows):
        size += row.size
        if not accepts(number + 1, size):
            return number
    return len(rows)


def _ids_at(queue: Queue, place: tuple[Which, int], known: dict[tuple[Which, int], set[int]]) -> set[int]:
    """The messages in a bucket of a settled list, which is in memory."""
    if place not in known:
        known[place] = {row[0] for row in settled_moves.rows_at_hand(queue, *place)}
    return known[place]
