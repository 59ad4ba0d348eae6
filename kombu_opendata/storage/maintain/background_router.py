"""Background routing: the cursors that route stored messages to a queue (docs/rfcs/0006-replay.md).

A cursor reads the metadata log in order of message ids. A step reads and filters without blocking other calls, and then
applies its rows in one turn of the event loop while no checkpoint is running: so no message that it adds can have been
collected in between, and its position and its rows are in one commit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...errors import PreconditionFailed, RequestError
from ...protocol.log_position import LogPosition
from ..effects.message_moves import RouteEffect
from ..engine_parts import EngineParts, EngineService
from ..read import stored_messages
from ..read.settled_buckets import SettledBuckets, rows_at_hand
from ..records.routing_cursor import Cursor
from ..state.queue_buckets import QueueRow
from ..state.settled_list import ListName, Taken
from ..state.store_state import Queue
from .routing_reader import Accepts, CursorReader, MatchedRows, accept_all

#: approximate journal bytes of one row
_ROW_BYTES = 40
#: time after the start of a cursor within which a binding of its queue restarts it, if it has finished
LATE_BINDING_MS = 30_000


def replay_cursor(
    start: Any, until: Any, *, next_id: int, now_ms: int, again: bool = False, selector: str = ""
) -> Cursor:
    """Return a cursor from one position in the log to another one.

    Raises:
        RequestError: one of them is not valid, they are not in order, or the start is in the future.
    """
    first, last = LogPosition.parse(start), LogPosition.parse(until)
    low = next_id
    if first.id is not None:
        low = first.id
    elif first.at_ms is not None:
        low = 0
    if low > next_id or (first.at_ms or 0) > now_ms:
        text = f"a start of {start!r:.100} is in the future: the next message id is {next_id}"
        raise RequestError(text, start=start)
    high = min(last.id, next_id) if last.id is not None else next_id
    if (last.id is not None and last.id < low) or (last.at_ms is not None and last.at_ms < (first.at_ms or 0)):
        text = f"the end, {until!r:.100}, is before the start, {start!r:.100}"
        raise RequestError(text, start=start, until=until)
    return Cursor(
        start=low,
        position=low,
        end=max(low, high),
        from_ms=first.at_ms or 0,
        until_ms=last.at_ms or 0,
        started_at_ms=now_ms,
        changed_at_ms=now_ms,
        again=again,
        selector=selector,
    )


class Step(NamedTuple):
    """The outcome of a step.

    Attributes:
        ids: the messages that it added to the queue.
        seen: the number of messages that it examined.
        is_over: True if the cursor has finished.
        is_full: True if the queue accepts no more messages.
    """

    ids: list[int]
    seen: int
    is_over: bool
    is_full: bool = False


class Router(EngineService):
    """The routing cursors of one instance. Steps of one cursor must not overlap."""

    def __init__(self, parts: EngineParts, buckets: SettledBuckets) -> None:
        super().__init__(parts)
        self._buckets = buckets
        self._readers: dict[str, CursorReader] = {}

    # ------------------------------------------------------------------ start and end of cursors
    def start(self, queue: Queue, cursor: Cursor) -> None:
        """Start a cursor for a queue; a finished one is replaced.

        Raises:
            PreconditionFailed: the queue has an unfinished cursor.
        """
        old = self._state.cursors.get(queue.name)
        if old is not None and not old.is_done:
            raise PreconditionFailed(
                f"queue {queue.name!r} is being filled already, at message {old.position} of {old.end}: wait for its "
                "end, or stop it",
                queue=queue.name,
            )
        if any(self._state.staged.unrouted()):  # the routing of staged jobs adds these messages, too
            cursor = cursor._replace(checks=True)
        self._set(queue, cursor)

    def stop(self, queue: Queue) -> bool:
        """End a queue's cursor at its position; return True if there was an unfinished one."""
        cursor = self._state.cursors.get(queue.name)
        if cursor is None or cursor.is_done:
            return False
        self._set(queue, cursor._replace(end=cursor.position))
        return True

    def bound(self, name: str) -> None:
        """Restart a queue's cursor after a binding was added, so that it examines all messages up to the newest again.

        This applies only to a queue that was declared with a start, until shortly after its cursor has finished:
        clients bind after they declare, and others publish in between. Messages in the queue are not added again.
        """
        cursor, end = self._state.cursors.get(name), self._state.next_id
        if cursor is None or cursor.again or (cursor.position, cursor.end) == (cursor.start, end):
            return
        if cursor.is_done and self._clock.now_ms() - cursor.started_at_ms > LATE_BINDING_MS:
            return
        queue = self._state.queues[name]
        self._set(queue, cursor._replace(position=cursor.start, end=end, seen=0, checks=True))

    def _set(self, queue: Queue, cursor: Cursor) -> None:
        self.forget(queue.name)
        self._apply(queue, cursor, [], [])
        self._commits.needs_sync = True

    def _apply(self, queue: Queue, cursor: Cursor, rows: list[QueueRow], taken: list[Taken]) -> None:
        at = self._clock.now_ms()
        self._commits.apply(RouteEffect(queue.name, cursor._replace(changed_at_ms=at), at, rows, taken))
        self._commits.sync_soon = True

    # ------------------------------------------------------------------ steps
    async def step(self, name: str, seconds: float, accepts: Accepts = accept_all) -> Step:
        """Advance a queue's cursor; this blocks the event loop for about ``seconds`` at a time."""
        cursor = self._state.cursors.get(name)
        queue = self._state.queues.get(name)
        if cursor is None or queue is None or cursor.is_done:
            self.forget(name)
            return Step([], 0, True)
        reader = self._readers.get(name)
        if reader is None:
            # The store lacks the newest messages and the rows of staged jobs that were routed last.
            await self._commits.catch_up()
            if self._state.cursors.get(name) != cursor or self._state.queues.get(name) is not queue:
                return Step([], 0, False)
            reader = self._readers[name] = CursorReader(self._parts)
        await reader.fill(queue, cursor)
        if not self._is_current(reader, queue, cursor):
            if self._readers.get(name) is not reader:
                reader.close()  # it was removed during the read
            return Step([], 0, False)
        selection = reader.select(queue, cursor, seconds, accepts)
        await stored_messages.measure(self._store, queue, selection.rows)
        if queue.limits.counts_bytes:
            selection = selection.cut(_fitting(selection.rows, accepts))
        async with self._buckets.settled_down(selection.rows):
            return await self._take_over(reader, queue, cursor, selection)

    def forget(self, name: str) -> None:
        """Remove the reader of this queue's cursor."""
        reader = self._readers.pop(name, None)
        if reader is not None:
            reader.close()

    def close(self) -> None:
        for name in list(self._readers):
            self.forget(name)

    def prune(self) -> None:
        """Remove the readers of cursors that are done or whose queues were deleted."""
        for name in list(self._readers):
            cursor = self._state.cursors.get(name)
            if cursor is None or cursor.is_done:
                self.forget(name)

    def _is_current(self, reader: CursorReader, queue: Queue, cursor: Cursor) -> bool:
        """Return True if the cursor did not change while the store was read."""
        current = self._readers.get(queue.name), self._state.queues.get(queue.name)
        return current == (reader, queue) and self._state.cursors.get(queue.name) == cursor

    async def _take_over(self, reader: CursorReader, queue: Queue, cursor: Cursor, selection: MatchedRows) -> Step:
        """Add the messages to the queue. No checkpoint is running, so the store has all records that are not dirty."""
        membership = reader.membership
        try:
            if membership is not None and cursor.again:
                for which, number in {membership.settled_in(row.id) for row in selection.rows} - {None}:  # type: ignore[misc]
                    await self._buckets.bring(queue, which, number)
            if not self._is_current(reader, queue, cursor):
                return Step([], 0, False)
            rows, taken_messages = self._sort_out(reader, queue, cursor, selection.rows)
            self._commits.check_room(_ROW_BYTES * (len(rows) + 4))
            examined = selection.next - reader.next
            stored_messages.place(queue, rows)
            new = cursor._replace(
                position=selection.position, seen=cursor.seen + examined, routed=cursor.routed + len(rows)
            )
            if new != cursor:
                self._apply(queue, new, rows, taken_messages)
            reader.next = selection.next
            if new.is_done:
                self.forget(queue.name)
            return Step([row.id for row in rows], examined, new.is_done, selection.is_full)
        finally:
            queue.forget_at_hand()

    def _sort_out(
        self, reader: CursorReader, queue: Queue, cursor: Cursor, rows: list[QueueRow]
    ) -> tuple[list[QueueRow], list[Taken]]:
        """Return the rows that are added to the queue, and those of them that are taken from its settled lists."""
        assert reader.block is not None
        letters = self._state.dead_letters
        membership = reader.membership
        collected = reader.block.collected
        at = self._clock.now_ms()
        accepted: list[QueueRow] = []
        taken_ids: dict[tuple[ListName, int], list[int]] = {}
        present: dict[tuple[ListName, int], set[int]] = {}
        for row in rows:
            id = row.id
            # A pending dead letter of this queue relies on the unchanged message.
            if id in collected or (queue.name, id) in letters:
                continue
            if membership is not None:
                if membership.is_active(id):
                    continue
                place = membership.settled_in(id)
                if place is not None and not cursor.again:
                    continue
                if place is not None:
                    if place not in present:
                        present[place] = {row.message_id for row in rows_at_hand(queue, *place)}
                    if id in present[place]:
                        taken_ids.setdefault(place, []).append(id)
                        stored_messages.after_lease(row, at)
            accepted.append(row)
        return accepted, [Taken(which, number, ids) for (which, number), ids in taken_ids.items()]


def _fitting(rows: list[QueueRow], accepts: Accepts) -> int:
    """Return the number of the first rows that fit a queue that counts bytes."""
    size = 0
    for number, row in enumerate(rows):
        size += row.size
        if not accepts(number + 1, size):
            return number
    return len(rows)
