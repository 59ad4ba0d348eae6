"""Buckets of settled lists: read as they are now, or brought to hand for a move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from ..commit.commits import Commits
from ..records import settled
from ..slatedb.store_writer import SlateStore
from ..state.queue_buckets import QueueRow
from ..state.settled_list import ListName, bucket_key
from ..state.store_state import Queue, StoreState


def rows_at_hand(queue: Queue, which: ListName, number: int) -> list[settled.Entry]:
    """The entries of a bucket that is in memory."""
    log = queue.settled_list(which)
    rows = log.loaded(number)
    if rows is None:
        rows = log.at_hand.get(number, [])
    return settled.decode(b"", settled.join(rows))


class SettledBuckets:
    """Reads the settled lists of one instance's queues."""

    def __init__(self, store: SlateStore, state: StoreState, commits: Commits) -> None:
        self._store = store
        self._state = state
        self._commits = commits

    async def read(self, queue: Queue, which: ListName, number: int) -> list[settled.Entry]:
        """The rows of one bucket of a list as they are now."""
        log = queue.settled_list(which)
        if log.loaded(number) is None:
            async with self._commits.checkpointing:  # else the store may be behind what memory let go
                if log.loaded(number) is None:
                    key = bucket_key(queue.name, which, number)
                    value = await self._store.get(key)
                    return settled.decode(key, value) if value is not None else []
        return rows_at_hand(queue, which, number)

    async def head(self, queue: Queue, which: ListName) -> list[settled.Entry] | None:
        """The rows of a list's first bucket; None when it can't be changed now. Only under ``checkpointing``."""
        log = queue.settled_list(which)
        while log.first < log.tail:
            key = bucket_key(queue.name, which, log.first)
            value = await self._store.get(key)
            if self._state.queues.get(queue.name) is not queue:
                return None  # deleted in the meantime, and collected with that
            if log.first in log.dirty:
                return None  # not stored yet: next time
            if value is not None:
                return settled.decode(key, value)
            log.drop_first()  # bucket 0 may be long empty
        return rows_at_hand(queue, which, log.tail)

    def take(self, queue: Queue, which: ListName, rows: list[settled.Entry], count: int) -> None:
        """Take the first ``count`` of the ``rows`` of a list's first bucket out of it; their retention is over."""
        log = queue.settled_list(which)
        for row in rows[:count]:
            self._state.collect(queue.name, row.message_id)
        number = log.first
        if count or number < log.tail:
            log.replace(number, settled.pack_entries(rows[count:]))
        if log.first != number:
            self._state.dirty.queues.add(queue.name)

    async def bring(self, queue: Queue, which: ListName, number: int) -> None:
        """Have a bucket at hand, only while no checkpoint is under way. Whoever calls this clears ``at_hand`` then."""
        log = queue.settled_list(which)
        if log.loaded(number) is None:
            key = bucket_key(queue.name, which, number)
            value = await self._store.get(key)
            if value is not None:
                log.at_hand[number] = settled.pack_entries(settled.decode(key, value))

    @asynccontextmanager
    async def hold(self, queue: Queue, which: ListName, number: int) -> AsyncIterator[list[settled.Entry]]:
        """The rows of a bucket, which is at hand until the end of the block. Only while no checkpoint is under way."""
        try:
            await self.bring(queue, which, number)
            yield rows_at_hand(queue, which, number)
        finally:
            queue.settled_list(which).at_hand.clear()

    @asynccontextmanager
    async def settled_down(self, rows: Iterable[QueueRow]) -> AsyncIterator[None]:
        """No checkpoint is under way, and none of these messages is about to be counted out of a queue.

        What retention removes is not in the journal: after a crash it is there again. So a message may come into a
        queue (again) only when it is certain that it left.
        """
        ids = {row.id for row in rows}
        while True:
            async with self._commits.checkpointing:
                if ids.isdisjoint(self._state.dirty.garbage):
                    yield
                    return
            await self._commits.checkpoint()
