"""Reads with a condition: messages whose headers match, in the order of delivery, or those of free groups.

A search is bounded and yields to other tasks. A waiting Read searches again only after the queue has changed, and uses
at most a tenth of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

from ....protocol.messages import queue_messages as q
from ....selectors import compile_selector
from ....storage.read import queue_pages
from ....storage.state.queue_buckets import QueueEntry
from ...delivery.outbox import Outbox
from ...delivery.time_slices import TimeSlice
from ...model.queue import BrokerQueue
from ...model.sessions import Session
from . import grouped_read
from .claimed_messages import Claimed, Claiming, ClaimOutcome
from .grouped_read import GroupedReads

#: maximum number of visible messages that one search reads, and of cold buckets that it loads into memory
MAX_SEARCHED = 10_000
_MAX_LOADS = 64
#: messages whose headers are read in one turn of the event loop
_AT_ONCE = 256
#: the minimum interval between two searches
_PACE_SECONDS = 0.1

Condition = Callable[[Mapping[str, str]], bool]


def condition_of(msg: q.Read) -> Condition:
    """Return the condition on the headers of a message.

    Raises:
        SelectorError: the selector is not valid.
    """
    expected = msg.equal
    matches = compile_selector(msg.selector).matches if msg.selector else None

    def fits(headers: Mapping[str, str]) -> bool:
        return all(headers.get(name) == text for name, text in expected.items()) and (
            matches is None or matches(headers)
        )

    return fits


class ConditionalReads:
    """The running conditional reads of one instance."""

    def __init__(self, uses: Claiming, outbox: Outbox) -> None:
        self._uses = uses
        self._outbox = outbox
        self._clock = uses.clock
        self._groups = GroupedReads(uses, outbox)
        self._stops: dict[tuple[bytes, int], asyncio.Event] = {}  # by session and request number

    def stop(self, session: Session, rid: int | None) -> None:
        """End the reads of a session, or the read with this number, after their current search."""
        for (reader, number), stop in self._stops.items():
            if reader == session.id and rid in (None, number):
                stop.set()

    def read(self, session: Session, queue: BrokerQueue, msg: q.Read) -> Coroutine[Any, Any, None]:
        """Search for messages, claim them and reply.

        Raises:
            SelectorError, RequestError: the condition is not valid; raised before the first search.
        """
        if msg.grouped:
            grouped_read.check(msg)
            search = partial(self._groups.search, session, queue, msg)
        else:
            search = partial(self._search, session, queue, msg, condition_of(msg))
        return self._read(session, queue, msg, search)

    async def _read(
        self, session: Session, queue: BrokerQueue, msg: q.Read, search: Callable[[], Awaitable[Claimed]]
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
        """Return whether messages may have become available since this signature."""
        next_visible = queue.messages.next_visible_at()
        return _signature(queue) != before or (next_visible is not None and next_visible <= self._clock.now_ms())

    async def _search(self, session: Session, queue: BrokerQueue, msg: q.Read, condition: Condition) -> Claimed:
        """Search once; claims matching messages during the search."""
        claimed, pace = Claimed(self._uses, session, queue, msg), TimeSlice()
        async for entries in self._candidates(queue):
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

    async def _candidates(self, queue: BrokerQueue) -> AsyncIterator[list[QueueEntry]]:
        """Yield visible messages in the order of delivery, in parts."""
        messages, now = queue.messages, self._clock.now_ms()
        heap: list[tuple[int, int, int]] = [  # priority, id, cold bucket or -1
            (entry.priority, entry.id, -1)
            for entry in messages.available.values()
            if queue_pages.is_visible(entry, now)
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
                    if queue_pages.is_visible(entry, now):
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


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


def _signature(queue: BrokerQueue) -> tuple[int, ...]:
    """Return a value that changes when the queue may have new messages to read."""
    counts = queue.counts
    returned = counts.requeued + counts.released + counts.lease_expired
    ended = counts.acked + counts.rejected + counts.exhausted + counts.deleted
    return counts.published, returned, ended, queue.messages.delays, len(queue.messages), queue.resumed
