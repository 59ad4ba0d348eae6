"""Membership of messages in a queue, including cold buckets and settled lists, which are not in memory.

The store is read once; after that the queue reports its changes. So while a membership is attached its results are
exact and cost no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable

from ...errors import CorruptRecord
from ..commit.commits import Commits
from ..records import active, keys, settled
from ..slatedb.store_writer import SlateStore
from ..state.settled_list import LISTS, ListName, bucket_key
from ..state.store_state import Queue

#: buckets of one read, so that no scan blocks the event loop for long
_BUCKETS = 16
_ACTIVE_IDS = struct.Struct(f"<Q{active.ENTRY_BYTES - 8}x")
_SETTLED_IDS = struct.Struct(f"<Q{settled.ENTRY_BYTES - 8}x")


class Membership:
    """The membership of the messages ``wanted`` in one queue.

    Create it with :meth:`of`, and :meth:`detach` it at the end.
    """

    def __init__(self, store: SlateStore, queue: Queue, wanted: Container[int]) -> None:
        self._store = store
        self.queue = queue
        self.wanted = wanted
        self._cold: dict[int, int] = {}  # id → bucket
        self._settled: dict[ListName, dict[int, int]] = {which: {} for which in LISTS}
        self._notes = {which: self._note_to(which) for which in LISTS}

    @classmethod
    async def of(cls, store: SlateStore, commits: Commits, queue: Queue, wanted: Container[int]) -> Membership:
        """Read the membership of the messages ``wanted`` in the queue.

        Raises:
            CorruptRecord: a bucket does not decode.
        """
        membership = cls(store, queue, wanted)
        async with commits.checkpointing:  # so the store has all records that are not dirty now
            membership._attach()
        try:
            await membership._read_cold()
            for which in LISTS:
                await membership._read_settled(which)
        except BaseException:
            membership.detach()
            raise
        return membership

    # ------------------------------------------------------------------ results
    def is_active(self, id: int) -> bool:
        """Return True if the message is available or in flight."""
        messages = self.queue.messages
        return id in messages.available or id in messages.in_flight or self._cold.get(id, -1) in messages.cold

    def settled_in(self, id: int) -> tuple[ListName, int] | None:
        """Return the settled list and the bucket to which the message was added, if any.

        The message may have been removed from the bucket since.
        """
        for which in LISTS:
            bucket = self._settled[which].get(id)
            if bucket is not None:
                return which, bucket
        return None

    def __contains__(self, id: int) -> bool:
        return self.is_active(id) or self.settled_in(id) is not None

    # ------------------------------------------------------------------ changes of the queue
    def _attach(self) -> None:
        self.queue.messages.watchers.append(self._note_cold)
        for which in LISTS:
            log = self.queue.settled_list(which)
            log.watchers.append(self._notes[which])
            for number in {*log.dirty, log.tail}:
                rows = log.loaded(number) or []
                self._note_settled(which, number, (int.from_bytes(row[:8], "little") for row in rows))

    def detach(self) -> None:
        """Stop following the queue."""
        if self._note_cold in self.queue.messages.watchers:
            self.queue.messages.watchers.remove(self._note_cold)
        for which in LISTS:
            watchers = self.queue.settled_list(which).watchers
            if self._notes[which] in watchers:
                watchers.remove(self._notes[which])

    def _note_cold(self, bucket: int, ids: Iterable[int]) -> None:
        wanted = self.wanted
        self._cold.update((id, bucket) for id in ids if id in wanted)

    def _note_settled(self, which: ListName, bucket: int, ids: Iterable[int]) -> None:
        wanted = self.wanted
        self._settled[which].update((id, bucket) for id in ids if id in wanted)

    def _note_to(self, which: ListName) -> Callable[[int, int], None]:
        buckets = self._settled[which]

        def note(id: int, bucket: int) -> None:
            if id in self.wanted:
                self._cold.pop(id, None)
                buckets[id] = bucket

        return note

    # ------------------------------------------------------------------ reading
    async def _read_cold(self) -> None:
        messages = self.queue.messages
        if not messages.cold:
            return
        start, end = keys.prefix_range(keys.active_key(self.queue.name))
        async for rows in self._store.scan_batches(start, end, batch=_BUCKETS):
            for key, value in rows:
                number = keys.parse(key).bucket or 0
                if number in messages.cold:
                    self._note_cold(number, _ids(key, value, _ACTIVE_IDS))

    async def _read_settled(self, which: ListName) -> None:
        log = self.queue.settled_list(which)
        prefix = bucket_key(self.queue.name, which, 0)
        async for rows in self._store.scan_batches(*keys.prefix_range(prefix), batch=_BUCKETS):
            for key, value in rows:
                number = keys.parse(key).bucket or 0
                if log.loaded(number) is None:
                    self._note_settled(which, number, _ids(key, value, _SETTLED_IDS))


def _ids(key: bytes, value: bytes, layout: struct.Struct) -> Iterable[int]:
    """Return the ids in the first list of a bucket's record; a cold bucket has only that list."""
    count = int.from_bytes(value[:2], "little")
    rows = value[2 : 2 + count * layout.size]
    if len(rows) != count * layout.size:
        raise CorruptRecord(f"record {key.hex()}: {count} entries in {len(value)} bytes", key=key, offset=0)
    return (id for (id,) in layout.iter_unpack(rows))
