"""Repartitioner: moves waiting messages of a queue to the partitions where its rules place them.

Messages are in the wrong partition after an alteration of ``x-partition-by``, and if they came by a move or a replay,
which do not know their headers. Which these are follows from the state, as the expression of each partition is stored,
so that a restart only has to begin again.

A run takes one bucket after the other, in the order of their numbers, thus of ids within a partition. A bucket's
messages are moved within one step of the event loop, so none is delivered from two places. Deliveries continue in
between: of an altered queue, new messages may precede older ones with the same key that were not moved yet. In the end
the emptied partitions are deleted. Messages in flight stay where they are; if they return, the next run moves them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from ...errors import CorruptRecord, StoreError
from ..clock import TimeSlice
from ..effects.definitions import ClosePartitionsEffect
from ..effects.message_moves import RelocateEffect
from ..engine_parts import EngineParts, EngineService
from ..read.queue_pages import QueuePages
from ..state.cold_summaries import PARTITION_BITS
from ..state.partitions import Partitions
from ..state.queue_buckets import QueueEntry
from ..state.store_state import Queue
from .message_operations import Operations
from .queue_loader import QueueLoader
from .repeated_requests import Idempotency, unique_names

log = logging.getLogger(__name__)

#: seconds after which a run that could not read the store is repeated
_RETRY_SECONDS = 1.0


class Repartitioner(EngineService):
    """The runs of one instance, at most one for each queue."""

    def __init__(
        self,
        parts: EngineParts,
        operations: Operations,
        loader: QueueLoader,
        pages: QueuePages,
        idempotency: Idempotency,
    ) -> None:
        super().__init__(parts)
        self._operations, self._loader, self._pages, self._idempotency = operations, loader, pages, idempotency
        self._runs: dict[str, asyncio.Task[None]] = {}

    def start(self, queue: Queue, wake: Callable[[str], None]) -> None:
        """Start a run in the background, unless there is one; ``wake`` is called after each step."""
        if queue.messages.partitions is None or queue.name in self._runs:
            return
        run = self._runs[queue.name] = asyncio.get_running_loop().create_task(self._run(queue, wake))
        run.add_done_callback(lambda ended: self._ended(queue, ended, wake))

    def _ended(self, queue: Queue, run: asyncio.Task[None], wake: Callable[[str], None]) -> None:
        self._runs.pop(queue.name, None)
        exc = None if run.cancelled() else run.exception()
        if exc is not None:
            log.error("messages of queue %r can't be moved to their partitions: %s", queue.name, exc)
            if isinstance(exc, StoreError) and not isinstance(exc, CorruptRecord):
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self.start, queue, wake)

    def close(self) -> None:
        """Cancel all runs."""
        for run in self._runs.values():
            run.cancel()

    async def _run(self, queue: Queue, wake: Callable[[str], None]) -> None:
        messages = queue.messages
        while (partitions := messages.partitions) is not None and self._state.queues.get(queue.name) is queue:
            numbers = sorted(
                number
                for number in (*messages.buckets, *messages.cold)
                if not partitions.fits(partitions.of_bucket(number))
                and (number in messages.cold or messages.buckets[number].available)
            )
            if not numbers:
                self._finish(queue, partitions)
                break
            rules, piece = partitions.rules, TimeSlice()
            for number in numbers:
                await self._move(queue, number)
                wake(queue.name)
                if messages.partitions is None or messages.partitions.rules is not rules:
                    break
                await piece.rest()
        wake(queue.name)

    async def _move(self, queue: Queue, number: int) -> None:
        """Move the waiting messages of a bucket."""
        messages = queue.messages
        if number in messages.cold:
            await self._loader.load_bucket(queue, number)
        bucket = messages.buckets.get(number)
        ids = list(bucket.available) if bucket is not None else []
        known = await self._pages.metadata(ids)
        unique_keys = unique_names(known.values())
        with self._idempotency.held(unique_keys.values()):
            if unique_keys:
                await self._idempotency.load(unique_keys.values())
            partitions, bucket = messages.partitions, messages.buckets.get(number)
            if self._state.queues.get(queue.name) is not queue or partitions is None or bucket is None:
                return
            if partitions.fits(partitions.of_bucket(number)):
                return
            for id in ids:
                entry = bucket.available.get(id)
                if entry is not None:
                    target = self._relocate(queue, entry, known[id].headers if id in known else {})
                    if id in unique_keys:
                        self._idempotency.relocate(unique_keys[id], id, queue.name, number, target)
            partitions.forget((number >> PARTITION_BITS,))
        self._commits.sync_soon = True

    def _relocate(self, queue: Queue, entry: QueueEntry, headers: Mapping[str, str]) -> int:
        """Move a message; return its new bucket."""
        pair, target = [entry.id, entry.bucket], self._operations.place(queue, headers)
        effect = RelocateEffect(queue.name, self._clock.now_ms(), pair, [target])
        effect.apply(self._state)
        last = self._commits.effects[-1] if self._commits.effects else None
        if type(last) is RelocateEffect and last.queue == queue.name:
            last.pairs += pair
            last.targets.append(target)
        else:
            self._commits.effects.append(effect)
        return target

    def _finish(self, queue: Queue, partitions: Partitions) -> None:
        """Delete the partitions that were emptied; let the others deliver that received messages during the run."""
        numbers = [number for number, each in partitions.empty.items() if not (each.running or partitions.fits(each))]
        if numbers:
            self._commits.apply(ClosePartitionsEffect(queue.name, numbers))
        for number in partitions.misplaced & partitions.keys():
            partitions.unblock(partitions[number])
        partitions.misplaced.clear()
