"""What the history knows of failures, read once and kept while there is room: facts never change."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from ....protocol.task_reports import STATES as TASK_STATES
from ...records.history_log import ACKED, DETAILED, MANUAL, REJECTED, Attempt
from ...records.history_log import FAILED as GIVEN_UP
from ..lists.reader import ListReader
from .failure import ACKNOWLEDGED, DELIVERY_LIMIT, FAILED, STATES, Facts, Failure, OpenFailure

#: failures whose facts stay in memory, which takes up some 20 MB
KEPT = 65_536
#: failures whose facts are read in one turn of the event loop
READ_AT_ONCE = 100
_SETTLED = (GIVEN_UP, REJECTED)

#: time, message id and queue: the first fields of an :class:`OpenFailure`
_Place = tuple[int, int, str]
_K = TypeVar("_K")
_V = TypeVar("_V")


class FactsCache:
    """The facts of one instance's failures, first in, first out."""

    def __init__(self) -> None:
        self._listed: OrderedDict[_Place, Facts] = OrderedDict()  # of messages in lists
        self._acknowledged: OrderedDict[int, Failure] = OrderedDict()  # by the number of the attempt
        self._texts: dict[str, str] = {}  # one copy of each name
        self._reading = asyncio.Lock()  # scans that run together then read each failure once

    def clear(self) -> None:
        """Forget all; they can be read again."""
        for kept in (self._listed, self._acknowledged, self._texts):
            kept.clear()

    async def of(self, reader: ListReader, some: Sequence[OpenFailure]) -> list[Failure]:
        """These failures with their facts, at most :data:`READ_AT_ONCE`."""
        found = {one.open.place: one for one in await self.acknowledged(reader, [
            one.place for one in some if one.kind == ACKNOWLEDGED
        ])}  # fmt: skip
        listed = await self._of_listed(reader, [one for one in some if one.kind != ACKNOWLEDGED])
        return [
            Failure(one, found[one.place].facts if one.kind == ACKNOWLEDGED else listed[one])
            for one in some if one.kind != ACKNOWLEDGED or one.place in found
        ]  # fmt: skip

    async def acknowledged(self, reader: ListReader, numbers: Sequence[int]) -> list[Failure]:
        """The attempts with these numbers, in this order, without those that the log does not have.

        One that was not acknowledged is of the kind :data:`.FAILED`.
        """
        cache = self._acknowledged
        found = {number: cache[number] for number in numbers if number in cache}
        if len(found) < len(numbers):
            async with self._reading:
                unknown = [number for number in numbers if number not in found]
                for start in range(0, len(unknown), READ_AT_ONCE):
                    found |= await self._read_attempts(reader, unknown[start : start + READ_AT_ONCE])
                    await asyncio.sleep(0)
        return [found[number] for number in numbers if number in found]

    async def _read_attempts(self, reader: ListReader, numbers: Sequence[int]) -> dict[int, Failure]:
        cache = self._acknowledged
        found = {number: cache[number] for number in numbers if number in cache}  # read by another scan meanwhile
        rows = await reader.attempts([number for number in numbers if number not in found])
        headers = await _headers(reader, {row.message_id for row in rows.values()})
        collected = [number for number, row in rows.items() if row.message_id not in headers]
        failures = await reader.failures([number for number in collected if rows[number].state & DETAILED])
        for number, row in rows.items():
            known = failures.get(number)
            if known is not None:
                headers[row.message_id] = {"task": known.task}
            kind = ACKNOWLEDGED if row.outcome & ~MANUAL == ACKED else FAILED
            place = OpenFailure(row.ended_at_ms, row.message_id, row.queue, kind, number, row.number)
            cache[number] = found[number] = Failure(place, self._facts(number, row, headers.get(row.message_id, {})))
        _shrink(cache)
        return found

    async def _of_listed(self, reader: ListReader, some: Sequence[OpenFailure]) -> dict[OpenFailure, Facts]:
        cache = self._listed
        found = {one: cache[one[:3]] for one in some if one[:3] in cache}
        if len(found) < len(some):
            async with self._reading:
                found |= await self._read_listed(reader, [one for one in some if one not in found])
        return found

    async def _read_listed(self, reader: ListReader, some: Sequence[OpenFailure]) -> dict[OpenFailure, Facts]:
        cache = self._listed
        found = {one: cache[one[:3]] for one in some if one[:3] in cache}  # read by another scan meanwhile
        unknown = [one for one in some if one not in found]
        numbers = await _numbers(reader, unknown)
        rows = await reader.attempts(set(numbers.values()))
        headers = await _headers(reader, {one.message_id for one in unknown})
        for one in unknown:
            number = numbers.get(one, -1)
            facts = self._facts(number, rows.get(number), headers.get(one.message_id, {}))
            cache[one[:3]] = found[one] = facts
        _shrink(cache)
        return found

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
    """What the worker said, else what the broker did."""
    state = TASK_STATES[row.state & ~DETAILED]
    if state in STATES:
        return state
    return DELIVERY_LIMIT if row.outcome & ~MANUAL == GIVEN_UP else "rejected"


async def _headers(reader: ListReader, ids: Iterable[int]) -> dict[int, dict[str, str]]:
    return {id: message.headers for id, message in (await reader.metadata(ids)).items()}


async def _numbers(reader: ListReader, some: Iterable[OpenFailure]) -> dict[OpenFailure, int]:
    """The number of the attempt that put each of these messages into the failed list, if the index has it."""
    by_place = {one[:3]: one for one in some}
    found: dict[OpenFailure, int] = {}
    for events in (await reader.events({id for _at, id, _queue in by_place})).values():
        for event in events:
            one = by_place.get((event.at_ms, event.message_id, event.queue))
            if one is not None and event.what & ~MANUAL in _SETTLED:
                found[one] = event.attempt
    return found
