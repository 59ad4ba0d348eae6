"""Cache of the history's facts of failures, which never change."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ....protocol.task_reports import STATES as TASK_STATES
from ...records.history_log import ACKED, DETAILED, MANUAL, REJECTED, Attempt
from ...records.history_log import FAILED as GIVEN_UP
from ...time_slice import TimeSlice
from ..lists.reader import ListReader
from .failure import ACKNOWLEDGED, DELIVERY_LIMIT, FAILED, STATES, Facts, Failure, OpenFailure

#: failures whose facts stay in memory, in about 20 MB
KEPT = 65_536
#: failures whose facts are read together
READ_AT_ONCE = 100
_SETTLED = (GIVEN_UP, REJECTED)

#: time, message id and queue: the first fields of an :class:`OpenFailure`
_Place = tuple[int, int, str]
_K = TypeVar("_K")
_V = TypeVar("_V")


class FactsCache:
    """The facts of one instance's failures, evicted in the order of insertion."""

    def __init__(self) -> None:
        self._listed: OrderedDict[_Place, Facts] = OrderedDict()  # of messages in lists
        self._acknowledged: OrderedDict[int, Failure] = OrderedDict()  # by the number of the attempt
        self._texts: dict[str, str] = {}  # one copy of each name
        self._reading = asyncio.Lock()  # parallel scans read each failure once

    def clear(self) -> None:
        """Clear the cache; the facts can be read again."""
        for cache in (self._listed, self._acknowledged, self._texts):
            cache.clear()

    async def of(self, reader: ListReader, some: Sequence[OpenFailure]) -> list[Failure]:
        """Return these failures with their facts, at most :data:`READ_AT_ONCE`."""
        failures = {failure.open.place: failure for failure in await self.acknowledged(reader, [
            failure.place for failure in some if failure.kind == ACKNOWLEDGED
        ])}  # fmt: skip
        listed = await self._of_listed(reader, [failure for failure in some if failure.kind != ACKNOWLEDGED])
        return [
            Failure(failure, failures[failure.place].facts if failure.kind == ACKNOWLEDGED else listed[failure])
            for failure in some if failure.kind != ACKNOWLEDGED or failure.place in failures
        ]  # fmt: skip

    async def acknowledged(self, reader: ListReader, numbers: Sequence[int]) -> list[Failure]:
        """Return the attempts with these numbers, in this order, without those that the log does not have.

        An attempt that was not acknowledged is of the kind :data:`.FAILED`.
        """
        cache = self._acknowledged
        failures = {number: cache[number] for number in numbers if number in cache}
        if len(failures) < len(numbers):
            async with self._reading:
                unknown = [number for number in numbers if number not in failures]
                piece = TimeSlice()
                for start in range(0, len(unknown), READ_AT_ONCE):
                    failures |= await self._read_attempts(reader, unknown[start : start + READ_AT_ONCE])
                    await piece.pause()
        return [failures[number] for number in numbers if number in failures]

    async def _read_attempts(self, reader: ListReader, numbers: Sequence[int]) -> dict[int, Failure]:
        cache = self._acknowledged
        results = {number: cache[number] for number in numbers if number in cache}  # maybe read by another scan
        rows = await reader.attempts([number for number in numbers if number not in results])
        headers = await _headers(reader, {row.message_id for row in rows.values()})
        collected = [number for number, row in rows.items() if row.message_id not in headers]
        failures = await reader.failures([number for number in collected if rows[number].state & DETAILED])
        for number, row in rows.items():
            failure = failures.get(number)
            if failure is not None:
                headers[row.message_id] = {"task": failure.task}
            kind = ACKNOWLEDGED if row.outcome & ~MANUAL == ACKED else FAILED
            place = OpenFailure(row.ended_at_ms, row.message_id, row.queue, kind, number, row.number)
            cache[number] = results[number] = Failure(place, self._facts(number, row, headers.get(row.message_id, {})))
        _shrink(cache)
        return results

    async def _of_listed(self, reader: ListReader, some: Sequence[OpenFailure]) -> dict[OpenFailure, Facts]:
        cache = self._listed
        facts = {failure: cache[failure[:3]] for failure in some if failure[:3] in cache}
        if len(facts) < len(some):
            async with self._reading:
                facts |= await self._read_listed(reader, [failure for failure in some if failure not in facts])
        return facts

    async def _read_listed(self, reader: ListReader, some: Sequence[OpenFailure]) -> dict[OpenFailure, Facts]:
        cache = self._listed
        results = {
            failure: cache[failure[:3]] for failure in some if failure[:3] in cache
        }  # maybe read by another scan
        unknown = [failure for failure in some if failure not in results]
        numbers = await _numbers(reader, unknown)
        rows = await reader.attempts(set(numbers.values()))
        headers = await _headers(reader, {failure.message_id for failure in unknown})
        for failure in unknown:
            number = numbers.get(failure, -1)
            facts = self._facts(number, rows.get(number), headers.get(failure.message_id, {}))
            cache[failure[:3]] = results[failure] = facts
        _shrink(cache)
        return results

    def _facts(self, number: int, row: Attempt | None, headers: dict[str, str]) -> Facts:
        if len(self._texts) > KEPT:
            self._texts.clear()
        task, task_id = self._same(headers.get("task", "")), headers.get("id", "")
        if row is None:
            return Facts(task=task, task_id=task_id)
        exception, worker, is_detailed = self._same(row.exception), self._same(row.consumer), bool(row.state & DETAILED)
        return Facts(number, _reason(row), exception, worker, task, task_id, row.runtime_us, is_detailed)

    def _same(self, text: str) -> str:
        return self._texts.setdefault(text, text)


def _shrink(cache: OrderedDict[_K, _V]) -> None:
    while len(cache) > KEPT:
        cache.popitem(last=False)


def _reason(row: Attempt) -> str:
    """Return the worker's reason, else the broker's."""
    state = TASK_STATES[row.state & ~DETAILED]
    if state in STATES:
        return state
    return DELIVERY_LIMIT if row.outcome & ~MANUAL == GIVEN_UP else "rejected"


async def _headers(reader: ListReader, ids: Iterable[int]) -> dict[int, dict[str, str]]:
    return {id: message.headers for id, message in (await reader.metadata(ids)).items()}


async def _numbers(reader: ListReader, some: Iterable[OpenFailure]) -> dict[OpenFailure, int]:
    """Return the number of the attempt that moved each of these messages to the failed list, if the index has it."""
    by_place = {failure[:3]: failure for failure in some}
    numbers: dict[OpenFailure, int] = {}
    for events in (await reader.events({id for _at, id, _queue in by_place})).values():
        for event in events:
            failure = by_place.get((event.at_ms, event.message_id, event.queue))
            if failure is not None and event.what & ~MANUAL in _SETTLED:
                numbers[failure] = event.attempt
    return numbers
