"""Buckets of settled lists, read in their current state, or loaded into memory for a move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from ..engine_parts import EngineService
from ..records import settled
from ..state.queue_buckets import QueueRow
from ..state.settled_list import ListName, bucket_key
from ..state.store_state import Queue


def rows_at_hand(queue: Queue, which: ListName, number: int) -> list[settled.SettledEntry]:
    log = queue.settled_list(which)
    rows = log.loaded(number)
    if rows is None:
        rows = log.at_hand.get(number, [])
    return settled.decode(b"", settled.join(rows))


class SettledBuckets(EngineService):
    """The settled lists of one instance's queues."""

    async def read(self, queue: Queue, which: ListName, number: int) -> list[settled.SettledEntry]:
        """Return the current rows of one bucket of a list."""
        log = queue.settled_list(which)
        if log.loaded(number) is None:
            async with self._commits.checkpointing:  # memory may have evicted rows that the store does not have yet
                if log.loaded(number) is None:
                    key = bucket_key(queue.name, which, number)
                    value = await self._store.get(key)
                    return settled.decode(key, value) if value is not None else []
        return rows_at_hand(queue, which, number)

    async def head(self, queue: Queue, which: ListName) -> list[settled.SettledEntry] | None:
        """Return the rows of a list's first bucket; None if it can't be changed now.

        The caller holds ``checkpointing``.
        """
        log = queue.settled_list(which)
        while log.first < log.tail:
            key = bucket_key(queue.name, which, log.first)
            value = await self._store.get(key)
            if self._state.queues.get(queue.name) is not queue:
                return None  # deleted during the read, with its lists
            if log.first in log.dirty:
                return None  # not stored yet: wait for the next sweep
            if value is not None:
                return settled.decode(key, value)
            log.drop_first()  # bucket 0 remains when it is empty
        return rows_at_hand(queue, which, log.tail)

    def take(self, queue: Queue, which: ListName, rows: list[settled.SettledEntry], count: int) -> None:
        """Remove the first ``count`` of the ``rows`` of a list's first bucket, as their retention is over."""
        log = queue.settled_list(which)
        for row in rows[:count]:
            self._state.collect(queue.name, row.message_id)
        number = log.first
        if count or number < log.tail:
            log.replace(number, settled.pack_entries(rows[count:]))
        if log.first != number:
            self._state.dirty.queues.add(queue.name)

    async def bring(self, queue: Queue, which: ListName, number: int) -> None:
        """Load a bucket into ``at_hand``, which the caller clears afterwards. No checkpoint may be running."""
        log = queue.settled_list(which)
        if log.loaded(number) is None:
            key = bucket_key(queue.name, which, number)
            value = await self._store.get(key)
            if value is not None:
                log.at_hand[number] = settled.pack_entries(settled.decode(key, value))

    @asynccontextmanager
    async def hold(self, queue: Queue, which: ListName, number: int) -> AsyncIterator[list[settled.SettledEntry]]:
        """Return the rows of a bucket, which is in memory until the end of the block. No checkpoint may be running."""
        try:
            await self.bring(queue, which, number)
            yield rows_at_hand(queue, which, number)
        finally:
            queue.settled_list(which).at_hand.clear()

    @asynccontextmanager
    async def settled_down(self, rows: Iterable[QueueRow]) -> AsyncIterator[None]:
        """Wait until no checkpoint is running and none of these messages has a removal that is not stored yet.

        The journal does not have the removals of retention: after a crash the messages are there again. So a message
        may be added to a queue (again) only after its removal is stored.
        """
        ids = {row.id for row in rows}
        while True:
            async with self._commits.checkpointing:
                if ids.isdisjoint(self._state.dirty.garbage):
                    yield
                    return
            await self._commits.checkpoint()
