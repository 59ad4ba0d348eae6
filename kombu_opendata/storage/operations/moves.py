"""Moves of messages to another queue, or back to available in their own: redrive, and move and copy of the backlog.

A source yields messages by bucket: a settled list of a queue, or its ready and delayed messages. Each step is one
effect, so an interruption leaves every message in exactly one place, or a copy in two.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ...protocol.messages import Moved
from ...protocol.queue_arguments import ALL
from ..clock import Clock
from ..effects import Effect
from ..effects.message_moves import MoveSettledEffect, MoveWaitingEffect
from ..engine_parts import EngineParts, EngineService
from ..read.membership import Membership
from ..read.queue_pages import QueuePages
from ..read.queue_pages import row_of as page_row_of
from ..read.settled_buckets import SettledBuckets
from ..read.stored_messages import after_lease, matching, measure, place, priority_of, read_metadata, row_of
from ..records.metadata import Metadata
from ..state.queue_buckets import QueueRow
from ..state.settled_list import ListName
from ..state.store_state import Queue
from .archive_and_delete import ROW_BYTES, Selection
from .queue_loader import QueueLoader
from .repeated_requests import Call, Idempotency, RepeatedCalls, unique_names


@dataclass(frozen=True, slots=True)
class SettledSource:
    """A settled list, or only one of its buckets. Messages that are added during the move are left out.

    The source checks the ids and times of the selection, its caller the other conditions.
    """

    queue: Queue
    selection: Selection
    which: ListName
    _buckets: SettledBuckets
    only: int | None = None
    copies: ClassVar[bool] = False

    def buckets(self) -> Iterable[int]:
        """Return the buckets that may have such messages now."""
        if self.only is not None:
            return (self.only,)
        log = self.queue.settled_list(self.which)
        return range(log.first, log.tail + 1)

    async def ids_in(self, bucket: int) -> list[int]:
        """Return the messages in a bucket that may be moved."""
        rows = await self._buckets.read(self.queue, self.which, bucket)
        return [row.message_id for row in rows if self.selection.takes(row)]

    @asynccontextmanager
    async def hold(self, bucket: int) -> AsyncIterator[Mapping[int, int | None]]:
        """Return the messages that are in the bucket now; until the end of the block the bucket is in memory.

        The values are the times from which the messages are visible, ms since the epoch; None means as published. No
        checkpoint may be running.
        """
        async with self._buckets.hold(self.queue, self.which, bucket) as rows:
            yield {row.message_id: None for row in rows}

    def effect(self, at: int, bucket: int, target: str, rows: list[QueueRow]) -> Effect:
        """Build the effect that makes these messages available in the target."""
        return MoveSettledEffect(self.queue.name, at, self.which, bucket, [row.id for row in rows], target, rows)


@dataclass(frozen=True, slots=True)
class WaitingSource:
    """Available and delayed messages with ids below ``end``. If ``copies`` is True, they also remain in their queue.

    The methods are those of :class:`SettledSource`.
    """

    queue: Queue
    selection: Selection
    states: Sequence[str]
    copies: bool
    end: int
    _pages: QueuePages
    _loader: QueueLoader
    _clock: Clock

    def buckets(self) -> Iterable[int]:
        messages, ids = self.queue.messages, self.selection.ids
        return sorted([*messages.buckets, *(messages.cold if ids is None else messages.cold_buckets_of(ids))])

    async def ids_in(self, bucket: int) -> list[int]:
        rows = await self._pages.rows_in(self.queue, bucket, self._clock.now_ms())
        ids = self.selection.ids
        candidates = (row.id for row in rows if row.id < self.end and row.state in self.states)
        return sorted(id for id in candidates if ids is None or id in ids)

    @asynccontextmanager
    async def hold(self, bucket: int) -> AsyncIterator[Mapping[int, int | None]]:
        messages, now = self.queue.messages, self._clock.now_ms()
        if bucket in messages.cold:
            await self._loader.load_bucket(self.queue, bucket)
        loaded_bucket = messages.buckets.get(bucket)
        yield {
            entry.id: entry.visible_at
            for entry in (loaded_bucket.available.values() if loaded_bucket is not None else ())
            if page_row_of(entry, now).state in self.states and not 0 < entry.deadline <= now
        }

    def effect(self, at: int, bucket: int, target: str, rows: list[QueueRow]) -> Effect:
        pairs = [] if self.copies else [part for row in rows for part in (row.id, bucket)]
        return MoveWaitingEffect(self.queue.name, at, pairs, target, rows)


MoveSource = SettledSource | WaitingSource

#: messages whose membership in the target is read together
_WINDOW = 65_536


class MoveTarget(NamedTuple):
    """The target of a move.

    Attributes:
        target: the queue that receives the messages.
        accepts: returns True if it accepts this number of messages with this number of bytes in total.
        on_step: called after each step with the messages that the target received; returns False to stop.
        call: the client's call. If the broker ended during the same call before, this continues its count.
    """

    target: Queue
    accepts: Callable[[int, int], bool]
    on_step: Callable[[list[int]], bool]
    call: Call | None = None


class _Move(NamedTuple):
    """One call, and its outcome so far."""

    source: MoveSource
    way: MoveTarget
    done: Moved

    @property
    def is_at_limit(self) -> bool:
        return 0 < self.source.selection.limit <= self.done.count


class Moves(EngineService):
    """Moves and copies of messages in one instance's queues."""

    def __init__(
        self,
        parts: EngineParts,
        buckets: SettledBuckets,
        pages: QueuePages,
        loader: QueueLoader,
        idempotency: Idempotency,
        repeats: RepeatedCalls,
    ) -> None:
        super().__init__(parts)
        self._idempotency = idempotency
        self._buckets = buckets
        self._pages = pages
        self._loader = loader
        self._repeats = repeats

    async def redrive(
        self,
        source: Queue,
        selection: Selection,
        way: MoveTarget,
        which: ListName = "failed",
        bucket: int | None = None,
    ) -> Moved:
        """Make messages of a settled list available in a queue, which may be their own.

        ``bucket``: only search this bucket.
        """
        return await self._run(SettledSource(source, selection, which, self._buckets, bucket), way)

    async def waiting(
        self, source: Queue, selection: Selection, way: MoveTarget, states: Sequence[str], *, copies: bool
    ) -> Moved:
        """Move, or copy, available or delayed messages to another queue."""
        end = self._state.next_id
        return await self._run(
            WaitingSource(source, selection, states, copies, end, self._pages, self._loader, self._clock), way
        )

    async def _run(self, source: MoveSource, way: MoveTarget) -> Moved:
        count = self._repeats.before(way.call).messages
        done = Moved(rid=0, count=count, already=0, expired=0, waiting=0, unmatched=0, is_full=False)
        move = _Move(source, way, done)
        buckets = list(source.buckets())
        if self._commits.is_dirty:
            # the store has the metadata and size of new messages only after a checkpoint
            await self._commits.checkpoint()
        while buckets and self._is_alive(move) and not move.is_at_limit:
            ids_by_bucket: list[tuple[int, list[int]]] = []
            ids: set[int] = set()
            while buckets and len(ids) < _WINDOW:
                bucket = buckets.pop(0)
                bucket_ids = await source.ids_in(bucket)
                ids_by_bucket.append((bucket, bucket_ids))
                ids.update(bucket_ids)
            if not await self._window(move, ids_by_bucket, ids):
                break
        return move.done

    def _is_alive(self, move: _Move) -> bool:
        return all(self._state.queues.get(queue.name) is queue for queue in (move.source.queue, move.way.target))

    async def _window(self, move: _Move, ids_by_bucket: list[tuple[int, list[int]]], ids: set[int]) -> bool:
        """Move the messages of some buckets; return True to continue."""
        membership, size = None, self._sizes.move_messages
        if move.source.queue is not move.way.target and ids:
            membership = await Membership.of(self._store, self._commits, move.way.target, ids)
        try:
            for bucket, bucket_ids in ids_by_bucket:
                for start in range(0, len(bucket_ids), size):
                    if not await self._step(move, bucket, bucket_ids[start : start + size], membership):
                        return False
            return True
        finally:
            if membership is not None:
                membership.detach()

    async def _step(self, move: _Move, bucket: int, ids: list[int], membership: Membership | None) -> bool:
        metadata = await read_metadata(self._store, self._payloads, ids)
        selector = move.source.selection.selector
        matching_ids = metadata.keys() if selector is None else await matching(selector, metadata.values())
        queue_filter = self._state.topology.filters.get(move.way.target.name) if membership is not None else None
        fitting = matching_ids
        if queue_filter is not None and queue_filter.mode == ALL:
            fitting = await matching(queue_filter.selector, [metadata[id] for id in matching_ids])
        rows = self._rows(move, [metadata[id] for id in sorted(matching_ids)], fitting, membership)
        await measure(self._store, move.way.target, rows)
        unique_keys = unique_names([metadata[row.id] for row in rows])
        with self._idempotency.held(unique_keys.values()):
            if unique_keys:
                await self._idempotency.load(unique_keys.values())
            async with self._buckets.settled_down(rows), move.source.hold(bucket) as source_times:
                if not self._is_alive(move):
                    return False
                rows = [row for row in rows if row.id in source_times and not (membership and row.id in membership)]
                moved = self._apply(move, bucket, self._as_of_now(move, rows, metadata, source_times), unique_keys)
        return move.way.on_step(moved) and not move.done.is_full and not move.is_at_limit

    def _rows(
        self, move: _Move, messages: list[Metadata], fitting: Collection[int], membership: Membership | None
    ) -> list[QueueRow]:
        """Return the target's rows for the messages that can be moved; its filter allows only ``fitting`` ones."""
        source, target = move.source.queue, move.way.target
        at = self._clock.now_ms()
        letters = self._state.dead_letters
        counts = move.done
        rows = []
        for message in messages:
            id = message.message_id
            if membership is not None and id in membership:
                counts.already += 1
            elif (source.name, id) in letters or (target.name, id) in letters:
                counts.waiting += 1
            elif id not in fitting:
                counts.unmatched += 1
            elif (row := row_of(message, priority_of(message.headers), target, at)) is None:
                counts.expired += 1
            else:
                rows.append(row)
        return rows

    def _as_of_now(
        self, move: _Move, rows: list[QueueRow], metadata: dict[int, Metadata], source_times: Mapping[int, int | None]
    ) -> list[QueueRow]:
        """Return the rows for the current time, with the times at which the messages become visible in the source."""
        at, current = self._clock.now_ms(), []
        for row in rows:
            new_row = row_of(metadata[row.id], row.priority, move.way.target, at, source_times[row.id])
            if new_row is not None:
                new_row.size = row.size
                after_lease(new_row, at)
                current.append(new_row)
        return current

    def _apply(self, move: _Move, bucket: int, rows: list[QueueRow], unique_keys: Mapping[int, bytes]) -> list[int]:
        """Apply one effect that moves rows out of the source, into the target, where they hold no unique keys.

        Return the ids of the messages for which the target has room.
        """
        counts, limit = move.done, move.source.selection.limit
        if move.way.call is not None:  # the client may have repeated the call during the step
            counts.count = max(counts.count, self._repeats.before(move.way.call).messages)
        size, fitting = 0, 0
        for row in rows:
            size += row.size
            if 0 < limit <= counts.count + fitting:
                break
            if not move.way.accepts(fitting + 1, size):
                counts.is_full = True
                break
            fitting += 1
        rows = rows[:fitting]
        ids = [row.id for row in rows]
        if not rows:
            return ids
        self._commits.check_room(ROW_BYTES * (len(rows) + 4))
        place(move.way.target, rows)
        self._commits.apply(move.source.effect(self._clock.now_ms(), bucket, move.way.target.name, rows))
        left = {move.way.target.name} if move.source.copies else {move.source.queue.name, move.way.target.name}
        for id in unique_keys.keys() & set(ids):
            self._idempotency.release(unique_keys[id], id, left)
        counts.count += len(rows)
        self._repeats.note(move.way.call, counts.count)
        self._commits.needs_sync = True
        return ids
