"""Size limit of a store: above it, the oldest settled messages are removed before their retention is over.

Messages that still wait are never removed: if they alone exceed the limit, the store is ``is_stuck``, which the status
reports. Objects of staged batches count, too.

**Why deleting until the size is right does not work.** A deletion in SlateDB is one more record. The size of the tables
is only an upper bound of the live data, as overwritten and deleted records remain until a compaction merges them. A
limit that deleted and measured again would see no effect, and delete everything. So a store above the limit is
compacted completely before it is measured, and the effect of a removal is measured only after another compaction.

**A round** has four states, in which :meth:`SizeLimit.step`, called with each pass of retention, continues:

==========  ==============================  ============================================================================
state       fields                          step
==========  ==============================  ============================================================================
watching    no compaction, none to remove   if the size is above the limit and above ``_next_bytes``: begin a compaction
                                            of all tables (minutes for many GB), or decide if the disk has no room
compacting  ``_compaction`` is its id       nothing until it ends. If it conflicted with another compaction: watching;
                                            otherwise read the size and decide
deciding    (within a step)                 if the live data is more than 90 % of the limit, remove messages of the size
                                            of the excess, by the average size of all messages; set ``_next_bytes``
removing    ``_to_remove`` remain           remove at most 200,000, in checkpoints of about 10,000; at zero: watching
==========  ==============================  ============================================================================

Maintenance runs one step at a time. A store error while compacting means a retry at the next step. While removing it
is raised: what was removed remains removed, and the next step continues with the rest.

Messages are removed in this order: those that only the log keeps, then the oldest done ones of all queues, then failed
ones; of the archived ones none. Their history is removed with them. The removals become part of checkpoints like those
of retention. The state of a round is only in memory: after a restart the next step measures again. Until the first
reading of the disk use, only staged objects count.

**The next round** begins when the store has grown by 5 % of the limit, so that a store near the limit is not compacted
all the time. It begins immediately (``_next_bytes`` is 0) if the store was above the limit and enough settled messages
could be removed, because then the removal is to be confirmed by another compaction.

**Conditions of a compaction.** It needs disk space for a second copy of all tables (1.5 times their size is required).
Without it, the current size of the tables counts, and again only after they have grown. The deletions must be in
tables, so a tidy comes first. SlateDB compacts a single table only together with others, so a lone unsorted table gets
a second one. The manifest must be at rest between reading it and requesting the compaction, so no flush may run: both
locks are held, and a step tries five times. An idle store is not compacted, because its compactor rarely polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import shutil
from collections.abc import Awaitable, Callable
from typing import Any

from ...errors import StoreError
from ..engine_parts import EngineParts, EngineService
from ..history.service import History
from ..read.settled_buckets import SettledBuckets
from ..records import keys
from ..slatedb.slate_settings import SlateSettings
from ..state.settled_list import ListName
from ..state.store_state import Queue
from .retention import LogSweep
from .upkeep import DiskSpace

_TARGET = 0.9
_GROWTH = 0.05
_ROOM = 1.5
#: most messages that one step removes, and most that one checkpoint removes
_PER_STEP, _PER_CHECKPOINT = 200_000, 10_000

#: the lists that are cut, in this order
_LISTS: tuple[ListName, ...] = ("done", "failed")
#: attempts of a step to find the compactor idle
_TRIES = 5


class SizeLimit(EngineService):
    """The limit of one engine's store.

    Args:
        tidy: writes all deletions into tables; returns False if the disk is full.
        settings: the settings of the store while it is in use, not idle.

    Attributes:
        limit_bytes: 0 means no limit.
        removed: the number of messages that were removed early, since startup.
        removed_at_ms: the time of the last early removal; 0 means never.
        is_stuck: the store is too large, and removing all settled messages would not be enough.
    """

    def __init__(
        self,
        parts: EngineParts,
        buckets: SettledBuckets,
        log_sweep: LogSweep,
        history: History,
        disk_space: DiskSpace,
        *,
        tidy: Callable[[], Awaitable[bool]],
        settings: SlateSettings,
        limit_bytes: int,
    ) -> None:
        super().__init__(parts)
        self._buckets, self._log_sweep, self._history = buckets, log_sweep, history
        self._disk_space, self._tidy, self._settings = disk_space, tidy, settings
        self.limit_bytes, self.is_stuck = limit_bytes, False
        self.removed = self.removed_at_ms = self._next_bytes = self._to_remove = 0
        self._compaction = ""  # the id of the last compaction

    @property
    def size_bytes(self) -> int:
        """The size of the tables, of the objects of staged batches, and of the messages in payload segments."""
        use = self._disk_space.use
        staged_bytes = sum(batch.bytes for batch in self._state.staged.objects.values())
        return staged_bytes + self._state.segments.bytes + (use.live_bytes if use is not None else 0)

    async def step(self) -> int:
        """Continue the round, or begin one; return the number of removed messages."""
        if not self.limit_bytes:
            return 0
        if not self._to_remove:
            if not self._compaction:
                if self.size_bytes <= max(self.limit_bytes, self._next_bytes):
                    self.is_stuck = self.is_stuck and self.size_bytes > self.limit_bytes
                    return 0
                if self._has_room():
                    await self._begin_compaction()
                    return 0
            elif not await self._is_compacted():
                return 0
            self._decide()
        return await self._remove_some()

    # ------------------------------------------------------------------ measuring
    def _has_room(self) -> bool:
        """Return True if the disk can hold all tables twice, and new writes."""
        folder = self._store.location.folder
        return folder is None or shutil.disk_usage(folder).free > _ROOM * self.size_bytes

    async def _begin_compaction(self) -> None:
        store = self._store
        if store.settings != self._settings:
            return  # the store is idle, and the compactor rarely polls
        poll_seconds = store.settings.compactor_poll_ms / 1000
        if not await self._tidy():  # now the deletions are in tables
            return
        for _ in range(_TRIES):
            with contextlib.suppress(StoreError):  # for example, a compaction that just began: retry
                async with self._commits.tidying, self._commits.checkpointing:  # no other flush is running
                    manifest = await store.admin.manifest_at_rest()
                    if manifest is not None and len(manifest.unsorted) == 1:
                        await store.flush_memtable(keys.STORE_HEADER_KEY)  # a single table is not compacted, two are
                    else:
                        self._compaction = await store.admin.compact_all(poll_seconds)
            if self._compaction:
                return
            await asyncio.sleep(poll_seconds)

    async def _is_compacted(self) -> bool:
        try:
            outcome = await self._store.admin.is_compacted(self._compaction)
        except StoreError:  # a temporary failure of the store
            return False
        if outcome is None:
            return False
        self._compaction = ""
        if outcome:
            await self._disk_space.read()
        return outcome  # False: it conflicted with another compaction; retry at the next step

    def _decide(self) -> None:
        """Decide how many messages to remove, and when the next round begins."""
        size, target = self.size_bytes, int(_TARGET * self.limit_bytes)
        queues = self._state.queues.values()
        settled_count = sum(queue.done.length + queue.failed.length for queue in queues)
        settled_count += self._state.log.kept
        messages = settled_count + sum(len(queue.messages) + len(queue.messages.in_flight) for queue in queues)
        excess_count = math.ceil(messages * max(size - target, 0) / size) if size else 0
        self._to_remove = min(settled_count, excess_count)
        # The excess consists of waiting messages: another compaction after each done message would free no space.
        self.is_stuck = size > self.limit_bytes and settled_count < excess_count
        continues = size > self.limit_bytes and not self.is_stuck and self._has_room()
        self._next_bytes = 0 if continues else size + int(_GROWTH * self.limit_bytes)

    # ------------------------------------------------------------------ removing
    async def _remove_some(self) -> int:
        newest_at_ms, removed_before = 0, self.removed
        rest_count = max(0, self._to_remove - _PER_STEP)  # for the next steps
        async for count in self._log_sweep.drop_oldest(self._to_remove - rest_count):
            self._count_removed(count)
        for which in _LISTS:
            heap = await self._by_age(which)
            while heap and self._to_remove > rest_count:
                _, _, queue = heapq.heappop(heap)
                settled_list = queue.settled_list(which)
                async with self._commits.checkpointing:  # no checkpoint may write the lists during the read
                    rows = await self._buckets.head(queue, which)
                    if not rows:
                        continue
                    oldest = rows[: self._to_remove]
                    self._buckets.take(queue, which, rows, len(oldest))
                    # the log does not keep them either
                    self._state.dirty.outdated.update(row.message_id for row in oldest)
                self._count_removed(len(oldest))
                newest_at_ms = max(newest_at_ms, oldest[-1].settled_at_ms)
                if len(self._state.dirty.garbage) >= _PER_CHECKPOINT:
                    await self._commits.checkpoint()
                if settled_list.length:
                    heapq.heappush(heap, (settled_list.oldest_at_ms or oldest[-1].settled_at_ms, queue.name, queue))
        removed_count = self.removed - removed_before
        if not removed_count:
            self._to_remove = 0  # the rest was removed otherwise, or its buckets are not stored yet: measure again
        else:
            # Their history is removed with them.
            await self._history.sweep(newest_at_ms + self._history.retention_ms)
            await self._commits.checkpoint()
        return removed_count

    def _count_removed(self, count: int) -> None:
        self._to_remove -= count
        if count:
            self.removed += count
            self.removed_at_ms = self._clock.now_ms()

    async def _by_age(self, which: ListName) -> list[tuple[int, str, Queue]]:
        """Return the queues that have settled messages, as a heap ordered by the time of their oldest."""
        heap: list[tuple[int, str, Queue]] = []
        for queue in list(self._state.queues.values()):
            settled_list = queue.settled_list(which)
            if not settled_list.length:
                continue
            oldest_at_ms = settled_list.oldest_at_ms
            if oldest_at_ms is None:
                async with self._commits.checkpointing:
                    rows = await self._buckets.head(queue, which)
                if not rows:
                    continue
                oldest_at_ms = settled_list.oldest_at_ms = rows[0].settled_at_ms
            heap.append((oldest_at_ms, queue.name, queue))
        heapq.heapify(heap)
        return heap

    def report(self) -> dict[str, Any]:
        """Return the size and the limit for the status call; a time of 0 means never."""
        return {
            "limit_bytes": self.limit_bytes, "size_bytes": self.size_bytes, "removed_early": self.removed,
            "removed_at_ms": self.removed_at_ms, "is_stuck": self.is_stuck,
        }  # fmt: skip
