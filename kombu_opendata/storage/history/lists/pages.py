"""Pages of messages and attempts, in either order and direction.

A page searches for one item more than it holds, which shows that there is another page.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from ....errors import CorruptRecord
from ...records.failures import TaskFailure
from ...records.metadata import Metadata
from . import query
from .candidates import MAX_BATCH, AttemptRecord, MessageEvent, MessageRecord, NumberRange, attempts, messages
from .query import ListFilters, Paging, TimeBuckets
from .reader import ListReader

log = logging.getLogger(__name__)

T = TypeVar("T")

#: a page ends before its limit if its headers have more bytes
PAGE_BYTES = 4 << 20


class ListPage(NamedTuple, Generic[T]):
    """Items of a list, and the cursors of the next and the previous page; None if there is none."""

    items: list[T]
    next: str | None
    prev: str | None


async def list_messages(reader: ListReader, filters: ListFilters, paging: Paging) -> ListPage[MessageRecord]:
    """Return a page of the messages in the store, ordered by time of receipt and id."""
    records: list[MessageRecord] = []
    low = await reader.first_message_since(filters.since_ms) if filters.since_ms else 0
    high = await reader.first_message_since(filters.until_ms + 1) if filters.until_ms < _FOREVER else _LAST_ID
    way = _way(paging, low, high - 1)
    if not way.is_empty:
        async with aclosing(messages(reader, filters, way, paging.limit + 1)) as batches:
            size = 0
            async for batch in batches:
                records += batch
                size += sum(map(_size_of, batch))
                if len(records) > paging.limit or size > PAGE_BYTES:
                    break
        if size > PAGE_BYTES:
            paging = paging._replace(limit=min(paging.limit, _fitting(records)))
    return _page(query.MESSAGES, records, filters, paging)


async def list_attempts(
    reader: ListReader, filters: ListFilters, paging: Paging, *, bodies: bool = False, tracebacks: bool = False
) -> ListPage[AttemptRecord]:
    """Return a page of the attempts in the log, ordered by the time of their end and their numbers.

    Args:
        bodies: True adds the envelopes of the messages.
        tracebacks: True adds the tracebacks of failed tasks.
    """
    records: list[AttemptRecord] = []
    end = reader.log.end[0]
    low = await reader.first_attempt_since(filters.since_ms) if filters.since_ms else 0
    high = await reader.first_attempt_since(filters.until_ms + 1) if filters.until_ms < _FOREVER else end
    way = _way(paging, max(low, reader.first_kept_attempt), min(high, end) - 1)
    if not way.is_empty:
        async with aclosing(attempts(reader, filters, way, paging.limit + 1)) as batches:
            async for batch in batches:
                records += batch
                if len(records) > paging.limit:
                    break
    records = await with_events(reader, records[: paging.limit + 1], bodies=bodies, tracebacks=tracebacks)
    if sum(map(_size_of_attempt, records)) > PAGE_BYTES:
        paging = paging._replace(limit=max(len(records) - 1, 1))
    return _page(query.ATTEMPTS, records, filters, paging)


async def with_events(
    reader: ListReader, found: list[AttemptRecord], *, bodies: bool, tracebacks: bool
) -> list[AttemptRecord]:
    """Return the attempts with their messages and failures, up to the first one that does not fit a page."""
    metadata = await reader.metadata({attempt.message_id for attempt in found})
    failures = await reader.failures([attempt.number for attempt in found if attempt.detailed])
    shown: list[AttemptRecord] = []
    size = 0
    for attempt in found:
        message = metadata.get(attempt.message_id)
        if message is not None:
            attempt = attempt._replace(event=await _event(reader, message) if bodies else MessageEvent(message))
        failure = failures.get(attempt.number)
        if failure is not None:
            attempt = attempt._replace(failure=failure if tracebacks else TaskFailure(failure.error, "", failure.task))
        shown.append(attempt)
        size += _size_of_attempt(shown[-1])
        if size > PAGE_BYTES and len(shown) > 1:
            break
    return shown


async def _event(reader: ListReader, about: Metadata) -> MessageEvent:
    """Read the message of an attempt; a damaged one has an error, so that the other attempts can be shown."""
    try:
        return MessageEvent(about, await reader.payloads.read(about.message_id))
    except CorruptRecord as exc:
        log.error("the payload of message %d can't be read: %s", about.message_id, exc)
        return MessageEvent(about, None, exc.text)


def _size_of(one: MessageRecord | MessageEvent) -> int:
    """Return the approximate bytes of a message's headers: their characters."""
    return sum(map(len, chain.from_iterable(one.metadata.header_pairs)))


def _size_of_attempt(one: AttemptRecord) -> int:
    size = 0 if one.failure is None else len(one.failure.error) + len(one.failure.traceback)
    return size if one.event is None else size + _size_of(one.event) + len(one.event.envelope or b"")


def _fitting(found: list[MessageRecord]) -> int:
    """Return the number of these messages that fit a page."""
    size = 0
    for count, record in enumerate(found):
        size += _size_of(record)
        if size > PAGE_BYTES:
            return max(count, 1)
    return len(found)


_FOREVER = ListFilters().until_ms
_LAST_ID = 0x6F << 56


def _way(paging: Paging, low: int, high: int) -> NumberRange:
    """Return the numbers within the time limits from the cursor or the beginning, in the direction of the page."""
    descending = paging.descending != paging.backward
    if paging.start is not None:
        if descending:
            high = min(high, paging.start.number - 1)
        else:
            low = max(low, paging.start.number + 1)
    return NumberRange(high, low, True) if descending else NumberRange(low, high, False)


R = TypeVar("R", MessageRecord, AttemptRecord)


def _page(kind: str, found: list[R], filters: ListFilters, paging: Paging) -> ListPage[R]:
    has_more = len(found) > paging.limit
    items = found[: paging.limit]
    if paging.backward:
        items.reverse()
    if not items:
        return ListPage([], None, None)
    has_next = has_more if not paging.backward else True
    has_prev = paging.start is not None if not paging.backward else has_more

    def cursor(item: R) -> str:
        return query.make_cursor(kind, filters, descending=paging.descending, at=item.position)

    return ListPage(items, cursor(items[-1]) if has_next else None, cursor(items[0]) if has_prev else None)


async def count_messages(reader: ListReader, filters: ListFilters, buckets: TimeBuckets) -> list[int]:
    """Count the messages of each bucket in the store."""
    counts = [0] * buckets.number
    low = await reader.first_message_since(filters.since_ms)
    way = NumberRange(low, await reader.first_message_since(filters.until_ms + 1) - 1, False)
    if not way.is_empty:
        async with aclosing(messages(reader, filters, way, MAX_BATCH)) as batches:
            async for batch in batches:
                for message in batch:
                    counts[buckets.number_of(message.metadata.received_at_ms)] += 1
    return counts


async def count_attempts(reader: ListReader, filters: ListFilters, buckets: TimeBuckets) -> list[int]:
    """Count the attempts that ended in each bucket."""
    counts = [0] * buckets.number
    low = max(await reader.first_attempt_since(filters.since_ms), reader.first_kept_attempt)
    way = NumberRange(low, await reader.first_attempt_since(filters.until_ms + 1) - 1, False)
    if not way.is_empty:
        async with aclosing(attempts(reader, filters, way, MAX_BATCH)) as batches:
            async for batch in batches:
                for attempt in batch:
                    counts[buckets.number_of(attempt.ended_at_ms)] += 1
    return counts
