"""Read of messages that are looked for: those whose headers fit, in the order of delivery, or those of free groups.

The work of one look is bounded, it lets others in between, and a Read that waits looks again only when the queue has
changed, and never for more than a tenth of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ..protocol import queue_messages as q
from ..selectors import compile_selector
from ..storage import looking
from ..storage.queue_buckets import Entry
from . import grouping
from .model.queue import BrokerQueue
from .reading import Claimed

if TYPE_CHECKING:
    from .handlers import Handlers

#: visible messages that one look goes through, and cold buckets that it brings into memory
MAX_LOOKED_AT = 10_000
_MAX_LOADS = 64
#: messages whose headers are read before others get their turn
_AT_ONCE = 256
#: seconds from one look to the next, at least
_PACE_SECONDS = 0.1

Condition = Callable[[Mapping[str, str]], bool]


def condition_of(msg: q.Read) -> Condition:
    """What the headers of a message must be.

    Raises:
        SelectorError: the selector is none.
    """
    wanted = msg.equal
    matches = compile_selector(msg.selector).matches if msg.selector else None

    def fits(headers: Mapping[str, str]) -> bool:
        return all(headers.get(name) == text for name, text in wanted.items()) and (matches is None or matches(headers))

    return fits


def looker(self: Handlers, msg: q.Read, queue: BrokerQueue) -> Callable[[], Awaitable[Claimed]]:
    """What looks for messages once and claims them.

    Raises:
        SelectorError, RequestError: the Read can't be.
    """
    if msg.grouped:
        grouping.check(msg)
        return partial(grouping.look, self, msg, queue)
    return partial(_look, self, msg, queue, condition_of(msg))


async def choose(self: Handlers, msg: q.Read, queue: BrokerQueue, look: Callable[[], Awaitable[Claimed]]) -> None:
    """Answer a Read that looks for messages."""
    loop, stops = self.instance.loop, self.instance.stops
    deadline = loop.time() + msg.wait_ms / 1000
    stop = stops[self.session.id, msg.rid] = asyncio.Event()

    def is_over() -> bool:
        return stop.is_set() or queue.deleting or loop.time() >= deadline

    try:
        while True:
            before, began = _signature(queue), loop.time()
            claimed = await look()
            if claimed or is_over():
                break
            pause = max(_PACE_SECONDS, 10 * (loop.time() - began))
            await _wait(stop, min(pause, max(deadline - loop.time(), 0)))
            while _signature(queue) == before and not is_over():
                next_visible = queue.messages.next_visible_at()
                if next_visible is not None and next_visible <= self.engine.clock.now_ms():
                    break
                await _wait(stop, min(_PACE_SECONDS, max(deadline - loop.time(), 0)))
    finally:
        stops.pop((self.session.id, msg.rid), None)
    await claimed.look_up_and_answer(self.instance)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


def _signature(queue: BrokerQueue) -> tuple[int, ...]:
    """Changes whenever the queue may have something new to read."""
    counts = queue.counts
    returned = counts.requeued + counts.released + counts.lease_expired
    ended = counts.acked + counts.rejected + counts.exhausted + counts.deleted
    return counts.published, returned, ended, queue.messages.delays, len(queue.messages)


async def _look(self: Handlers, msg: q.Read, queue: BrokerQueue, condition: Condition) -> Claimed:
    """One pass; claims what fits as soon as it is found."""
    claimed = Claimed(self.session, queue, msg)
    async for entries in _candidates(self, queue):
        places = [(entry.id, entry.priority) for entry in entries]
        for entry, headers in zip(entries, await queue.headers(places), strict=True):
            if headers is None or not condition(headers):
                continue
            envelope = await queue.fetch(entry.id)
            session = self.instance.sessions.get(self.session.id)
            if session is None or session.connection is None or session.suspended or queue.deleting:
                return claimed
            now = self.engine.clock.now_ms()
            waits = queue.messages.available.get(entry.id) is entry and looking.is_visible(entry, now)
            if envelope is None or not waits or 0 < entry.deadline <= now:
                continue
            claimed.add(self.instance, entry, envelope)
            self.instance.traffic.delivered += 1
            if claimed.is_enough:
                return claimed
        self.instance.outbox.schedule()
    return claimed


async def _candidates(self: Handlers, queue: BrokerQueue) -> AsyncIterator[list[Entry]]:
    """Visible messages in the order of delivery, some at a time."""
    messages, now = queue.messages, self.engine.clock.now_ms()
    heap: list[tuple[int, int, int]] = [  # priority, id, cold bucket or -1
        (entry.priority, entry.id, -1) for entry in messages.available.values() if looking.is_visible(entry, now)
    ]
    heap += [(*summary.best, number) for number, summary in messages.cold.items() if summary.best is not None]
    heapify(heap)
    part: list[Entry] = []
    looked = loads = 0
    while heap and looked < MAX_LOOKED_AT:
        _priority, id, number = heappop(heap)
        if number >= 0:
            if number in messages.cold and loads < _MAX_LOADS:
                loads += 1
                await queue.load_bucket(number)
            bucket = messages.buckets.get(number)
            for entry in bucket.available.values() if bucket is not None else ():
                if looking.is_visible(entry, now):
                    heappush(heap, (entry.priority, entry.id, -1))
            continue
        found = messages.available.get(id)
        if found is not None:
            part.append(found)
            looked += 1
        if len(part) >= _AT_ONCE:
            yield part
            await asyncio.sleep(0)
            part = []
    if part:
        yield part
