"""The loader of cold buckets of durable queues, and of payloads ahead of their delivery.

A delivery needs the entry of the message, which may be in a cold bucket (:mod:`..state.cold_summaries`), and its
payload, which is in memory only for recent messages. Both reads take a millisecond or more, and a bucket of an object
store answers after 20 ms or more: a delivery turn must never wait for them. So :meth:`QueueLoader.next_entry` is
synchronous. It returns the next message if it is complete in memory; otherwise it begins a load, returns ``(None,
True)``, and the queue is skipped until the load calls ``wake``.

**Loading on demand is not enough.** A consumer of a long backlog would wait for each bucket. So the loader reads ahead:
``Queue.at_hand`` estimates the messages whose payloads were loaded and that were not delivered yet. Each call counts
one down; below ``load_below`` (512) with cold buckets left, a load of ``load_messages`` (2,048) messages begins, while
deliveries continue with the loaded ones. If there are none (``at_hand <= 0``), a delivery waits for this load, so a
first part of ``load_first`` (256) messages is loaded and announced before the rest. ``StoredQueue`` also counts down,
for messages that it delivers without :meth:`~QueueLoader.next_entry`. The estimate may be wrong, for example after a
purge; that costs a read too early or a wait, never a wrong message.

**What a load contains** (:meth:`QueueLoader._load_some`).

1. The bucket that ``wanted`` demands, and its probable successors, until enough messages are available. Consecutive
   buckets are read by one scan.
2. The payloads of the upcoming messages, in the order of delivery. If these are fewer than requested although cold
   buckets remain, further buckets are loaded; the loop ends when a load adds no upcoming message, as then the other
   cold buckets are for later.

A load adds about the requested messages and at most the rest of twelve buckets to memory. ``QueueState.evict`` makes
buckets cold again, and the cache of payloads has its own limit; a payload that it dropped is loaded again.

**Invariants.**

* At most one load runs per queue (``_loading``); others that need a bucket (:meth:`QueueLoader.load_bucket`: purge,
  expiry, moves, look-ups by id) read it independently.
* During a read anything may change: the queue may be deleted and declared again, the bucket loaded by another task and
  even evicted again. So after each read the record is applied only if the queue is the same object and its summary of
  the bucket is the one from before the read (:meth:`QueueLoader._restore`).
* A cold bucket is clean, so its record in the store is current: no checkpoint has to be waited for.

**Errors.** If the store can't be read, the error is logged, and the queue is woken after a second, which begins the
next load. A corrupt bucket would fail again each time, so there is no such retry, and none after an unforeseen error:
only a later wake-up of the queue tries again, and the operator has to repair the store. If only the payload of a
message is lost, the message fails: it is claimed for the broker's own session and failed without a dead letter, so that
the others are delivered. Only :meth:`QueueLoader.close` cancels a load; a bucket is loaded completely or not at all.

**Expired messages** are removed when they would be next. Those in ``QueueState.fresh`` were published in this turn with
a TTL of 0: they may be delivered immediately, or never.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from ...errors import CorruptRecord, StoreError
from ..clock import TimeSlice
from ..engine_parts import EngineParts, EngineService
from ..records import active, keys
from ..state.cold_summaries import Summary
from ..state.queue_buckets import QueueEntry
from ..state.store_state import Queue
from .message_operations import Operations

log = logging.getLogger(__name__)

#: seconds after which the read of a queue is retried
_RETRY_SECONDS = 1.0
_READ_AHEAD_BYTES = 256 << 10
#: buckets of different partitions that are read together
_BUCKETS_OF_A_READ = 64
#: the session that fails messages whose payloads are lost
_BROKER_SESSION = bytes(16)

#: called with the name of a queue that has messages to deliver
Wake = Callable[[str], None]


class QueueLoader(EngineService):
    """The loader of cold buckets and payloads of one instance's queues."""

    def __init__(self, parts: EngineParts, operations: Operations) -> None:
        super().__init__(parts)
        self._operations, self.load_below = operations, self._sizes.load_below
        self._loading: dict[str, asyncio.Task[None]] = {}

    def next_entry(self, queue: Queue, now: int, wake: Wake = lambda _queue: None) -> tuple[QueueEntry | None, bool]:
        """Return the next message to deliver, whose payload is in memory, or (None, True if one is being loaded).

        Removes expired messages that would be next.

        ``wake``: called with the queue's name after a load that this call begins.
        """
        messages = queue.messages
        queue.at_hand -= 1
        if queue.at_hand < self.load_below and queue.name not in self._loading and messages.has_cold_ready:
            self._load(queue, wake)  # ahead of need
        while True:
            entry, cold_bucket = messages.next(now)
            if cold_bucket is not None or (entry is not None and self._payloads.find(entry.id) is None):
                self._load(queue, wake)
                return None, True
            if entry is None or not entry.deadline or entry.deadline > now or entry.id in messages.fresh:
                return entry, False
            self._operations.remove(queue, [entry], "expired")

    async def load_bucket(self, queue: Queue, number: int) -> None:
        """Load a cold bucket. Do nothing if it is not cold, or if it changes during the read.

        Raises:
            StoreError: the store can't be read, or (CorruptRecord) the record does not decode. The bucket stays cold.
        """
        key = keys.active_key(queue.name, number)
        summary = queue.messages.cold.get(number)
        value = await self._store.get(key)
        self._restore(queue, number, summary, value)

    def _restore(self, queue: Queue, number: int, summary: Summary | None, value: bytes | None) -> None:
        """Load the record of a bucket that was read, if the bucket and its queue have not changed since."""
        current = summary is not None and queue.messages.cold.get(number) is summary
        if current and self._state.queues.get(queue.name) is queue:
            available, in_flight = active.decode(keys.active_key(queue.name, number), value or b"")
            queue.messages.restore(number, available, in_flight, self._clock.now_ms())

    async def _load_buckets(self, queue: Queue, numbers: list[int]) -> None:
        """Load consecutive cold buckets into memory, unless they or the queue have changed."""
        if len(numbers) == 1:
            await self.load_bucket(queue, numbers[0])
            return
        summaries = [queue.messages.cold[number] for number in numbers]
        first, last = keys.active_key(queue.name, numbers[0]), keys.active_key(queue.name, numbers[-1]) + b"\0"
        rows = dict(await self._store.scan(first, last, read_ahead_bytes=_READ_AHEAD_BYTES, in_thread=True))
        piece = TimeSlice()
        for number, summary in zip(numbers, summaries, strict=True):
            self._restore(queue, number, summary, rows.get(keys.active_key(queue.name, number)))
            await piece.pause()  # decoding the rows of a bucket takes half a millisecond

    async def find_entries(self, queue: Queue, ids: Iterable[int]) -> None:
        """Load the cold buckets that may have these messages, usually one for each message: ids ascend with buckets."""
        for number in queue.messages.cold_buckets_of(ids):
            if number in queue.messages.cold and self._state.queues.get(queue.name) is queue:
                await self.load_bucket(queue, number)

    def close(self) -> None:
        """Cancel all current loads."""
        for task in self._loading.values():
            task.cancel()

    # ------------------------------------------------------------------ loading ahead
    def _load(self, queue: Queue, wake: Wake) -> None:
        if queue.name not in self._loading:
            task = asyncio.get_running_loop().create_task(self._load_next(queue, wake))
            self._loading[queue.name] = task
            task.add_done_callback(lambda ended_task: self._load_done(queue, ended_task, wake))

    def _load_done(self, queue: Queue, task: asyncio.Task[None], wake: Wake) -> None:
        del self._loading[queue.name]
        if not task.cancelled():
            exc = task.exception()
            if exc is not None:
                log.error("queue %r can't be read: %s", queue.name, exc)
                if isinstance(exc, StoreError) and not isinstance(exc, CorruptRecord):
                    asyncio.get_running_loop().call_later(_RETRY_SECONDS, wake, queue.name)
                return
            wake(queue.name)

    async def _load_next(self, queue: Queue, wake: Wake) -> None:
        if queue.at_hand <= 0:  # a delivery waits
            if await self._load_some(queue, self._sizes.load_first) < self._sizes.load_first:
                return
            wake(queue.name)
        await self._load_some(queue, self._sizes.load_messages)

    async def _load_some(self, queue: Queue, count: int) -> int:
        """Load about ``count`` of the next messages, and their payloads; return the number of messages."""
        now = self._clock.now_ms()
        messages = queue.messages
        if messages.partitions is not None:
            return await self._load_partitions(queue, count)
        number = messages.cold.wanted(now, messages.peek(now))
        enough, upcoming_count = 0, -1
        while True:
            while number is not None:
                await self._load_buckets(queue, messages.cold.following(number, enough - len(messages.available)))
                if number in messages.cold:
                    return 0  # the queue was deleted, or the bucket changed during the read
                messages.promote(now)
                number = messages.cold.next() if len(messages.available) < enough else None
            upcoming = messages.upcoming(count)
            if not upcoming_count < len(upcoming) < count:
                break  # enough, or the loads added no upcoming message, so that the other cold buckets are for later
            upcoming_count = len(upcoming)
            enough = len(messages.available) + count - upcoming_count
            number = messages.cold.next()
        return await self._load_payloads(queue, upcoming)

    async def _load_partitions(self, queue: Queue, count: int) -> int:
        """Load the next messages of a queue with partitions, as :meth:`_load_some`."""
        messages = queue.messages
        upcoming, buckets = messages.upcoming_in_partitions(count)
        piece = TimeSlice()
        for at in range(0, len(buckets), _BUCKETS_OF_A_READ):
            part = buckets[at : at + _BUCKETS_OF_A_READ]
            summaries = [messages.cold.get(number) for number in part]
            values = await self._store.get_many([keys.active_key(queue.name, number) for number in part])
            for number, summary, value in zip(part, summaries, values, strict=True):
                self._restore(queue, number, summary, value)
            await piece.pause()
        for number in buckets:
            loaded = messages.buckets.get(number)
            if loaded is not None and len(upcoming) < count:
                upcoming += loaded.available.values()
        return await self._load_payloads(queue, upcoming)

    async def _load_payloads(self, queue: Queue, upcoming: list[QueueEntry]) -> int:
        """Load the payloads of these messages; return their number."""
        errors = await self._payloads.load([entry.id for entry in upcoming])
        queue.at_hand = len(upcoming) - len(errors)
        for id, exc in errors.items():
            self._give_up(queue, id, exc)
        return len(upcoming)

    def _give_up(self, queue: Queue, id: int, reason: CorruptRecord) -> None:
        """Fail a message whose payload is lost, so that the others are delivered."""
        entry = queue.messages.available.get(id)
        if entry is not None and self._state.queues.get(queue.name) is queue:
            log.error("message %d of queue %r can't be delivered and has failed: %s", id, queue.name, reason)
            self._operations.claim(queue, (entry,), _BROKER_SESSION, is_due=False)
            self._operations.fail(queue, (entry,), "opendata-queue broker", "")
