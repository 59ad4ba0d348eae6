"""The sources of :mod:`.moves`: a settled list of a queue, or its ready and delayed messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from ..clock import Clock
from ..effects.effect import Effect
from ..effects.message_moves import MoveSettledEffect, MoveWaitingEffect
from ..read.queue_pages import QueuePages, row_of
from ..read.settled_buckets import SettledBuckets
from ..state.queue_buckets import QueueRow
from ..state.settled_list import ListName
from ..state.store_state import Queue
from .archive_and_delete import Selection
from .queue_loader import QueueLoader


class MoveSource(Protocol):
    """Messages of a queue, by bucket. Messages that are added during the move are left out."""

    @property
    def queue(self) -> Queue: ...

    @property
    def selection(self) -> Selection:
        """The conditions of the move. The source checks ids and times; its caller checks the others."""

    def buckets(self) -> Iterable[int]:
        """Return the buckets that may have such messages now."""

    async def ids_in(self, bucket: int) -> list[int]:
        """Return the messages in a bucket that may be moved."""

    def hold(self, bucket: int) -> AbstractAsyncContextManager[Mapping[int, int | None]]:
        """Return the messages that are in the bucket now; until the end of the block the bucket is in memory.

        The values are the times from which the messages are visible, ms since the epoch; None means as published. No
        checkpoint may be running.
        """

    def effect(self, at: int, bucket: int, target: str, rows: list[QueueRow]) -> Effect:
        """Build the effect that makes these messages available in the target."""


@dataclass(frozen=True, slots=True)
class SettledSource:
    """A settled list, or only one of its buckets."""

    queue: Queue
    selection: Selection
    which: ListName
    _buckets: SettledBuckets
    only: int | None = None

    def buckets(self) -> Iterable[int]:
        if self.only is not None:
            return (self.only,)
        log = self.queue.settled_list(self.which)
        return range(log.first, log.tail + 1)

    async def ids_in(self, bucket: int) -> list[int]:
        rows = await self._buckets.read(self.queue, self.which, bucket)
        return [row.message_id for row in rows if self.selection.takes(row)]

    @asynccontextmanager
    async def hold(self, bucket: int) -> AsyncIterator[Mapping[int, int | None]]:
        async with self._buckets.hold(self.queue, self.which, bucket) as rows:
            yield {row.message_id: None for row in rows}

    def effect(self, at: int, bucket: int, target: str, rows: list[QueueRow]) -> Effect:
        return MoveSettledEffect(self.queue.name, at, self.which, bucket, [row.id for row in rows], target, rows)


@dataclass(frozen=True, slots=True)
class WaitingSource:
    """Available and delayed messages with ids below ``end``, which ``copies`` leaves in their queue."""

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
        rows, ids = await self._pages.rows_in(self.queue, bucket, self._clock.now_ms()), self.selection.ids
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
            if row_of(entry, now).state in self.states and not 0 < entry.deadline <= now
        }

    def effect(self, at: int, bucket: int, target: str, rows: list[QueueRow]) -> Effect:
        pairs = [] if self.copies else [part for row in rows for part in (row.id, bucket)]
        return MoveWaitingEffect(self.queue.name, at, pairs, target, rows)
