"""Read: leases messages for a time, or pops them, immediately or when messages arrive.

A read with a condition leases messages whose headers match, in the order of delivery, or messages of free groups. Its
search is bounded and yields to other calls. A waiting read searches again only after the queue has changed, and spends
at most a tenth of its waiting time with searches.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle, get_running_loop
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from heapq import heapify, heappop, heappush

from ....errors import PreconditionFailed
from ....protocol import messages as m
from ....selectors import compile_selector
from ....storage.clock import TimeSlice
from ....storage.state.queue_buckets import QueueEntry
from ...delivery.outbox import Outbox
from ...delivery.queue_registry import Queues
from ...model.queue import BrokerQueue
from ...model.sessions import ConsumedQueue, Session
from ..dispatch import BrokerCalls, Context, check_range, handles
from . import partition_read
from .claimed_messages import MAX_MS, MAX_QUANTITY, MAX_WAIT_MS, Claimed, Claiming, ClaimOutcome
from .partition_read import PartitionReads

#: maximum number of visible messages that one search reads, and of cold buckets that it loads into memory
MAX_SEARCHED = 10_000
_MAX_LOADS = 64
#: number of messages whose headers are read in one turn of the event loop
_AT_ONCE = 256
#: the minimum interval between two searches
_PACE_SECONDS = 0.1

Condition = Callable[[Mapping[str, str]], bool]


class PendingRead:
    """Read that leases ready messages, or waits for messages."""

    def __init__(self, session: Session, queue: BrokerQueue, msg: m.Read, claimed: Claimed) -> None:
        self.session = session
        self.rid = msg.rid
        self._queue, self._claimed = queue, claimed
        self._waits = msg.wait_ms > 0
        self._timer: TimerHandle | None = None
        if self._waits:
            self._timer = get_running_loop().call_later(msg.wait_ms / 1000, self.stop)

    def take(self, _queue: ConsumedQueue, entry: QueueEntry, now: int) -> bool:
        self._claimed.add(entry)
        if not self._claimed.is_enough:
            return False
        self._answer()
        return True

    def nothing(self) -> bool:
        if self._waits and not self._claimed:
            return False
        self._answer()
        return True

    def end(self) -> None:
        self._claimed.clear()
        self._answer()

    def drop(self) -> None:
        """Cancel the wait of a lost connection, and retain the claimed messages for the client's repeated call.

        If the client does not repeat the call, the leases end after their visibility timeout.
        """
        self._cancel()
        if self._claimed:
            self._answer()

    def stop(self) -> None:
        if self in self._queue.getters:
            self._queue.getters.remove(self)
            self._answer()

    def _answer(self) -> None:
        self._cancel()
        self._claimed.answer()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def condition_of(msg: m.Read) -> Condition:
    """Return the condition on the headers of a message; raise SelectorError if the selector is not valid."""
    expected = msg.equal
    matches = compile_selector(msg.selector).matches if msg.selector else None

    def fits(headers: Mapping[str, str]) -> bool:
        return all(headers.get(name) == text for name, text in expected.items()) and (
            matches is None or matches(headers)
        )

    return fits


class ReadCalls(BrokerCalls):
    """Reads with and without a condition."""

    _claiming: Claiming
    _queues: Queues
    _outbox: Outbox
    _groups: PartitionReads
    _stops: dict[tuple[bytes, int], asyncio.Event] = field(default_factory=dict)  # by session and request number

    @handles(m.Read)
    def read(self, call: Context, msg: m.Read) -> None:
        check_range("the quantity", msg.quantity, 1, MAX_QUANTITY)
        check_range("the visibility timeout in ms", msg.vt_ms, 1, MAX_MS)
        check_range("the longest wait in ms", msg.wait_ms, 0, MAX_WAIT_MS)
        queue, session = call.queue(msg.queue), call.session
        if session.suspended:
            raise PreconditionFailed(f"the worker {session.name!r} is suspended: resume it", worker=session.name)
        queue.used_at_ms = self._claiming.clock.now_ms()
        if msg.grouped:
            partition_read.check(queue, msg)
            search = partial(self._groups.search, session, queue, msg)
        elif msg.selector or msg.equal:
            search = partial(self._search, session, queue, msg, condition_of(msg))
        else:
            queue.getters.append(PendingRead(session, queue, msg, Claimed(self._claiming, session, queue, msg)))
            self._queues.wake(queue)
            return
        call.run(msg.rid, self._read(session, queue, msg, search), once=True)

    @handles(m.StopReading)
    def stop_reading(self, call: Context, msg: m.StopReading) -> None:
        self.stop(call.session, msg.read_rid)

    def stop(self, session: Session, rid: int | None = None) -> None:
        """End the waiting reads of a session, or the read with this number; a running search is not interrupted."""
        for (reader, number), stop in self._stops.items():
            if reader == session.id and rid in (None, number):
                stop.set()
        for queue in self._queues.values():
            for getter in list(queue.getters):
                if isinstance(getter, PendingRead) and getter.session is session and rid in (None, getter.rid):
                    getter.stop()

    async def _read(
        self, session: Session, queue: BrokerQueue, msg: m.Read, search: Callable[[], Awaitable[Claimed]]
    ) -> None:
        time = asyncio.get_running_loop().time
        deadline = time() + msg.wait_ms / 1000
        stop = self._stops[session.id, msg.rid] = asyncio.Event()

        def is_over() -> bool:
            return stop.is_set() or queue.deleting or time() >= deadline or not session.rights.read[queue.name]

        try:
            while True:
                before, began = _signature(queue), time()
                claimed = await search()
                if claimed or is_over():
                    break
                pause = max(_PACE_SECONDS, 10 * (time() - began))
                await _wait(stop, min(pause, max(deadline - time(), 0)))
                while (queue.is_paused or not self._has_news(queue, before)) and not is_over():
                    await _wait(stop, min(_PACE_SECONDS, max(deadline - time(), 0)))
        finally:
            self._stops.pop((session.id, msg.rid), None)
        await claimed.look_up_and_answer()

    def _has_news(self, queue: BrokerQueue, before: tuple[int, ...]) -> bool:
        """Return True if messages may have become ready since this signature."""
        next_visible, now = queue.messages.next_visible_at(), self._claiming.clock.now_ms()
        if queue.flow is not None or queue.messages.partitions is not None:
            return queue.room(now) > 0
        return _signature(queue) != before or (next_visible is not None and next_visible <= now)

    async def _search(self, session: Session, queue: BrokerQueue, msg: m.Read, condition: Condition) -> Claimed:
        """Search once; claims matching messages during the search."""
        claimed, pace = Claimed(self._claiming, session, queue, msg), TimeSlice()
        async for entries in candidates(queue, self._claiming.clock.now_ms()):
            places = [(entry.id, entry.priority) for entry in entries]
            for (id, _priority), headers in zip(places, await queue.headers(places), strict=True):
                if pace.is_over:
                    await pace.rest()
                if headers is None or not condition(headers):
                    continue
                if await claimed.claim(id) is ClaimOutcome.OVER or claimed.is_enough:
                    return claimed
            self._outbox.schedule()
        return claimed


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


def _signature(queue: BrokerQueue) -> tuple[int, ...]:
    """Return a value that changes when the queue may have new messages to read."""
    counts = queue.counts
    returned = counts.requeued + counts.released + counts.lease_expired
    ended = counts.acked + counts.rejected + counts.exhausted + counts.deleted
    return counts.published, returned, ended, queue.messages.delays, len(queue.messages), queue.resumed


async def candidates(queue: BrokerQueue, now: int) -> AsyncIterator[list[QueueEntry]]:
    """Yield visible messages in the order of delivery, in parts."""
    messages = queue.messages
    heap: list[tuple[int, int, int]] = [  # priority, id, cold bucket or -1
        (entry.priority, entry.id, -1) for entry in messages.available.values() if entry.is_visible(now)
    ]
    bests = ((summary.best_at(now), number) for number, summary in messages.cold.items())
    heap += [(*best, number) for best, number in bests if best is not None]
    heapify(heap)
    part: list[QueueEntry] = []
    searched = loads = 0
    while heap and searched < MAX_SEARCHED:
        _priority, id, number = heappop(heap)
        if number >= 0:
            if number in messages.cold and loads < _MAX_LOADS:
                loads += 1
                await queue.load_bucket(number)
            bucket = messages.buckets.get(number)
            for entry in bucket.available.values() if bucket is not None else ():
                if entry.is_visible(now):
                    heappush(heap, (entry.priority, entry.id, -1))
            continue
        candidate = messages.available.get(id)
        if candidate is not None:
            part.append(candidate)
            searched += 1
        if len(part) >= _AT_ONCE:
            yield part
            await asyncio.sleep(0)
            part = []
    if part:
        yield part
