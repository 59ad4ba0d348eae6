"""Streams of open failures in the order of time, their merge, and a cache of the history's facts about them.

A later batch of a stream never has a time before (or, descending, after) those of an earlier one. Within a millisecond,
:func:`merged` orders failures by message ids and queues. A search by id needs only a part of a failed list, as the
history has the time of the message's failure.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence, Set
from contextlib import aclosing
from functools import partial
from heapq import heappop, heapreplace
from typing import NamedTuple, TypeVar

from ...protocol.task_reports import STATES as TASK_STATES
from ..clock import TimeSlice
from ..read.settled_buckets import SettledBuckets
from ..records.history_index import MESSAGES
from ..records.history_log import ACKED, DETAILED, MANUAL, REJECTED, Attempt
from ..records.history_log import FAILED as GIVEN_UP
from ..records.kinds import MAX_MESSAGE_ID
from ..state.settled_list import ListName
from ..state.store_state import Queue
from ..state.task_state import HandledFailures
from . import value_hashes
from .candidates import attempt_numbers
from .failure import (
    ACKNOWLEDGED,
    ARCHIVED,
    DELIVERY_LIMIT,
    FAILED,
    SEARCHED,
    STATES,
    Facts,
    Failure,
    FailureFilterValues,
    OpenFailure,
)
from .query import ListFilters as AttemptFilters
from .reader import ListReader
from .sources import NumberRange, walk

#: failures whose facts stay in memory, in about 20 MB
KEPT = 65_536
_SETTLED = (GIVEN_UP, REJECTED)

#: time, message id and queue: the first fields of an :class:`OpenFailure`
_Place = tuple[int, int, str]
_K = TypeVar("_K")
_V = TypeVar("_V")


class FactsCache:
    """The facts of one instance's failures, evicted in the order of insertion."""

    def __init__(self, read_at_once: int) -> None:
        self._read_at_once = read_at_once
        self._facts_by_place: OrderedDict[_Place, Facts] = OrderedDict()  # of messages in lists
        self._acknowledged: OrderedDict[int, Failure] = OrderedDict()  # by the number of the attempt
        self._texts: dict[str, str] = {}  # one copy of each name
        self._read_lock = asyncio.Lock()  # parallel scans read each failure once

    def clear(self) -> None:
        for cache in (self._facts_by_place, self._acknowledged, self._texts):
            cache.clear()

    async def of(self, reader: ListReader, open_failures: Sequence[OpenFailure]) -> list[Failure]:
        """Return these failures with their facts, at most as many as are read together."""
        numbers = [failure.place for failure in open_failures if failure.kind == ACKNOWLEDGED]
        places = [failure[:3] for failure in open_failures if failure.kind != ACKNOWLEDGED]
        failures = {failure.open.place: failure for failure in await self.acknowledged(reader, numbers)}
        facts = await self._read_through(self._facts_by_place, places, partial(self._read_listed, reader))
        known: list[Failure] = []
        for failure in open_failures:
            if failure.kind != ACKNOWLEDGED:
                known.append(Failure(failure, facts[failure[:3]]))
            elif failure.place in failures:
                known.append(Failure(failure, failures[failure.place].facts))
        return known

    async def acknowledged(self, reader: ListReader, numbers: Sequence[int]) -> list[Failure]:
        """Return the attempts with these numbers, in this order, without those that the log does not have.

        An attempt that was not acknowledged is of the kind :data:`.FAILED`.
        """
        failures = await self._read_through(self._acknowledged, numbers, partial(self._read_attempts, reader))
        return [failures[number] for number in numbers if number in failures]

    async def _read_through(
        self, cache: OrderedDict[_K, _V], wanted: Sequence[_K], read: Callable[[list[_K]], Awaitable[dict[_K, _V]]]
    ) -> dict[_K, _V]:
        """Return the values of the keys that have one. Those that are not cached are read in parts."""
        values = {key: cache[key] for key in wanted if key in cache}
        if len(values) < len(wanted):
            async with self._read_lock:
                unknown = [key for key in wanted if key not in values]
                piece = TimeSlice()
                for start in range(0, len(unknown), self._read_at_once):
                    part = unknown[start : start + self._read_at_once]
                    values |= {key: cache[key] for key in part if key in cache}  # read by another scan
                    new = await read([key for key in part if key not in values])
                    values |= new
                    cache.update(new)
                    await piece.pause()
            while len(cache) > KEPT:
                cache.popitem(last=False)
        return values

    async def _read_attempts(self, reader: ListReader, numbers: Sequence[int]) -> dict[int, Failure]:
        results: dict[int, Failure] = {}
        rows = await reader.attempts(numbers)
        headers = await _headers(reader, {row.message_id for row in rows.values()})
        collected = [number for number, row in rows.items() if row.message_id not in headers]
        failures = await reader.failures([number for number in collected if rows[number].state & DETAILED])
        for number, row in rows.items():
            failure = failures.get(number)
            if failure is not None:
                headers[row.message_id] = {"task": failure.task}
            kind = ACKNOWLEDGED if row.outcome & ~MANUAL == ACKED else FAILED
            place = OpenFailure(row.ended_at_ms, row.message_id, row.queue, kind, number, row.number)
            results[number] = Failure(place, self._facts(number, row, headers.get(row.message_id, {})))
        return results

    async def _read_listed(self, reader: ListReader, places: Sequence[_Place]) -> dict[_Place, Facts]:
        numbers = await _numbers(reader, set(places))
        rows = await reader.attempts(set(numbers.values()))
        headers, results = await _headers(reader, {id for _at, id, _queue in places}), {}
        for place in places:
            number = numbers.get(place, -1)
            results[place] = self._facts(number, rows.get(number), headers.get(place[1], {}))
        return results

    def _facts(self, number: int, row: Attempt | None, headers: dict[str, str]) -> Facts:
        if len(self._texts) > KEPT:
            self._texts.clear()
        task = self._same(headers.get("task", ""))
        task_id = headers.get("id", "")
        if row is None:
            return Facts(task=task, task_id=task_id)
        exception = self._same(row.exception)
        worker = self._same(row.consumer)
        is_detailed = bool(row.state & DETAILED)
        return Facts(number, _reason(row), exception, worker, task, task_id, row.runtime_us, is_detailed)

    def _same(self, text: str) -> str:
        return self._texts.setdefault(text, text)


def _reason(row: Attempt) -> str:
    """Return the worker's reason, else the broker's."""
    state = TASK_STATES[row.state & ~DETAILED]
    if state in STATES:
        return state
    return DELIVERY_LIMIT if row.outcome & ~MANUAL == GIVEN_UP else "rejected"


async def _headers(reader: ListReader, ids: Iterable[int]) -> dict[int, dict[str, str]]:
    return {id: message.headers for id, message in (await reader.metadata(ids)).items()}


async def _numbers(reader: ListReader, places: Set[_Place]) -> dict[_Place, int]:
    """Return the number of the attempt that moved each of these messages to the failed list, if the index has it."""
    by_id = await reader.events({id for _at, id, _queue in places})
    numbers: dict[_Place, int] = {}
    for events in by_id.values():
        for event in events:
            place = (event.at_ms, event.message_id, event.queue)
            if place in places and event.what & ~MANUAL in _SETTLED:
                numbers[place] = event.attempt
    return numbers


#: size of the first search for attempts
_FIRST = 128
#: least size of a batch of merged streams; the last batch may be smaller
_LEAST = 100

Stream = AsyncGenerator[list[OpenFailure], None]


class FailureWindow(NamedTuple):
    """The range of times of the failures, both ends included, and the order."""

    since_ms: int
    until_ms: int
    descending: bool

    def has(self, at_ms: int) -> bool:
        return self.since_ms <= at_ms <= self.until_ms


async def in_failed_list(buckets: SettledBuckets, queue: Queue, window: FailureWindow) -> Stream:
    """Yield the messages of a queue's failed list, which is in the order of time."""
    log = queue.failed
    number = await _first_bucket(buckets, queue, window)
    while log.first <= number <= log.tail:
        rows = await buckets.read(queue, "failed", number)
        failures = [
            OpenFailure(row.settled_at_ms, row.message_id, queue.name, FAILED, number, row.attempts)
            for row in rows
            if window.has(row.settled_at_ms)
        ]
        if rows and not failures and _is_past(rows[0].settled_at_ms, window):
            return
        yield failures[::-1] if window.descending else failures
        number += -1 if window.descending else 1
        if not window.descending:
            number = max(number, log.first)


def _is_past(at_ms: int, window: FailureWindow) -> bool:
    return at_ms < window.since_ms if window.descending else at_ms > window.until_ms


async def _first_bucket(buckets: SettledBuckets, queue: Queue, window: FailureWindow) -> int:
    """Find by bisection a bucket before which, in the window's order, no failure is in the window."""
    log = queue.failed
    low, high = log.first, log.tail
    bound = window.until_ms if window.descending else window.since_ms
    while low < high:
        middle = (low + high + window.descending) // 2
        rows = await buckets.read(queue, "failed", middle)
        if not rows:
            break  # emptied by an operator: begin with all remaining buckets
        if window.descending:
            low, high = (middle, high) if rows[0].settled_at_ms <= bound else (low, middle - 1)
        else:
            low, high = (low, middle) if rows[-1].settled_at_ms >= bound else (middle + 1, high)
    return high if window.descending else low


async def in_archive(buckets: SettledBuckets, queue: Queue, window: FailureWindow) -> Stream:
    """Yield the archived failed messages of a queue, which are in the order of archiving: all of them in one batch."""
    which: ListName = "archived_failed"
    log = queue.settled_list(which)
    failures = [
        OpenFailure(row.settled_at_ms, row.message_id, queue.name, ARCHIVED, number, row.attempts)
        for number in range(log.first, log.tail + 1)
        for row in await buckets.read(queue, which, number)
        if window.has(row.settled_at_ms)
    ]
    yield sorted(failures, reverse=window.descending)


async def acknowledged(
    reader: ListReader, facts: FactsCache, handled: HandledFailures, filters: FailureFilterValues, window: FailureWindow
) -> Stream:
    """Yield the acknowledged attempts of failed tasks that the index has for these filters."""
    attempt_filters = _attempt_filters(filters)
    way = NumberRange(*await reader.attempt_range(window.since_ms, window.until_ms), window.descending)
    if way.low > way.high:
        return
    async with aclosing(attempt_numbers(reader, attempt_filters, way, _FIRST)) as portions:
        async for numbers in portions:
            selected = [number for number in numbers if (number in handled) == filters.handled]
            failures = await facts.acknowledged(reader, selected)
            yield [
                failure.open
                for failure in failures
                if failure.open.kind == ACKNOWLEDGED and failure.facts.reason in attempt_filters.states
            ]


def _attempt_filters(filters: FailureFilterValues) -> AttemptFilters:
    """Return the filters that the index of attempts supports; the others are checked later.

    Nearly all attempts are acknowledged, so a search for these would only cost time. The index has no entries for
    attempts without a value.
    """
    headers = [("task", _known(filters.tasks))] if _known(filters.tasks) else []
    if filters.task_ids is not None and filters.has_few_task_ids:
        headers.append(("id", tuple(filters.task_ids)))
    ids = tuple(filters.ids) if filters.ids is not None and len(filters.ids) <= SEARCHED else ()
    return AttemptFilters(
        queues=filters.queues,
        headers=tuple(headers),
        ids=ids,
        consumers=_known(filters.workers),
        states=tuple(state for state in STATES if not filters.reasons or state in filters.reasons),
        exceptions=_known(filters.exceptions),
    )


def _known(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values to look up in the index; none if failures without a value match, too."""
    return () if "" in values else values


async def merged(streams: Sequence[Stream], *, descending: bool) -> Stream:
    """Yield the failures of all streams, in order."""
    sign = -1 if descending else 1
    bounds = [(float("-inf"), number) for number in range(len(streams))]  # a heap of the streams that have not ended
    pending: list[OpenFailure] = []  # in reverse order, as failures are taken from the end
    is_sorted = True
    while bounds:
        bound, number = bounds[0]
        batch = await anext(streams[number], None)
        if batch is None:
            heappop(bounds)
        elif batch:
            pending += batch
            is_sorted = False
            heapreplace(bounds, (sign * batch[-1].at_ms, number))
        least = bounds[0][0] if bounds else float("inf")
        if least == bound and bounds:
            continue
        if not is_sorted:
            pending.sort(reverse=not descending)
            is_sorted = True
        place = bisect_right(pending, -least, key=lambda failure: -sign * failure.at_ms)
        if len(pending) - place >= _LEAST or not bounds:
            yield pending[place:][::-1]
            del pending[place:]


async def close_all(streams: Sequence[Stream]) -> None:
    """Close streams that were not read to their ends."""
    for stream in streams:
        async with aclosing(stream):
            pass


async def narrowed(reader: ListReader, filters: FailureFilterValues, window: FailureWindow) -> FailureWindow:
    """Return the part of the window in which the messages of the filters failed; all of it if that is unknown."""
    ids = await _message_ids(reader, filters)
    if ids is None or not 0 < len(ids) <= SEARCHED:
        return window
    by_id = await reader.events(ids)
    if not all(by_id.values()):
        return window  # a message is older than the history
    times = [
        event.at_ms for events in by_id.values() for event in events if event.what & ~MANUAL in (GIVEN_UP, REJECTED)
    ]
    since_ms, until_ms = min(times, default=1), max(times, default=0)
    return window._replace(since_ms=max(window.since_ms, since_ms), until_ms=min(window.until_ms, until_ms))


async def _message_ids(reader: ListReader, filters: FailureFilterValues) -> frozenset[int] | None:
    if filters.ids is not None or filters.task_ids is None or not filters.has_few_task_ids:
        return filters.ids
    hashes = [value_hashes.hash_of(value_hashes.HEADER, "id", id) for id in filters.task_ids]
    source = await reader.having(MESSAGES, hashes, descending=False)
    ids: set[int] = set()
    async for batch in walk(source, NumberRange(0, MAX_MESSAGE_ID - 1, False)):
        ids.update(batch)
    return frozenset(ids)
