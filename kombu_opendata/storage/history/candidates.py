"""The messages and attempts that match a filter, in order.

The index returns the candidates; without a filter, all items are candidates. Each candidate is then checked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from ...protocol.messages import MessageInfo, QueueStatus
from ...protocol.task_reports import STATES
from ..clock import TimeSlice
from ..records.history_index import ATTEMPTS, MESSAGES
from ..records.history_log import DETAILED, MANUAL, OUTCOMES, Attempt
from ..records.metadata import Metadata
from . import value_hashes
from .query import ListFilters
from .reader import ListReader
from .sources import AVAILABLE, IN_FLIGHT, RUNNING, AllOf, AnyOf, CandidateSource, Fixed, Live, NumberRange, walk

#: number of candidates in the first batch, and the limit for a batch
_FIRST_BATCH = 128


#: an attempt and its number in the log
NumberedAttempt = tuple[int, Attempt]


# ---------------------------------------------------------------------- messages
async def messages(
    reader: ListReader, filters: ListFilters, way: NumberRange, count: int
) -> AsyncGenerator[list[MessageInfo], None]:
    """Yield the messages that match, in batches."""
    if way.low > way.high:
        return
    source = await _message_source(reader, filters, way.descending)
    piece = TimeSlice()
    if source is None:
        async with aclosing(reader.stored_messages(way, min(count, _FIRST_BATCH))) as batches:
            async for batch in batches:
                yield await _matching(reader, filters, batch)
                await piece.pause()
        return
    async with aclosing(_portions(source, way, count, reader.max_batch)) as portions:
        async for ids in portions:
            metadata = await reader.metadata(ids)
            yield await _matching(reader, filters, [metadata[id] for id in ids if id in metadata])
            await piece.pause()


async def _portions(
    source: CandidateSource, way: NumberRange, count: int, max_batch: int
) -> AsyncGenerator[list[int], None]:
    """Yield candidates in batches of growing size; the first has up to ``count``."""
    size = min(count, _FIRST_BATCH)
    pending: list[int] = []
    piece = TimeSlice()
    async with aclosing(walk(source, way)) as positions_iterator:
        async for positions in positions_iterator:
            pending += positions
            while len(pending) >= size:
                yield pending[:size]
                del pending[:size]
                size = min(2 * size, max_batch)
            await piece.pause()
    if pending:
        yield pending


async def _matching(reader: ListReader, filters: ListFilters, batch: list[Metadata]) -> list[MessageInfo]:
    """Return the messages that match, with their statuses."""
    has_headers = filters.header_test()
    candidates = [
        message
        for message in batch
        if filters.has_time(message.received_at_ms) and (not filters.headers or has_headers(message.headers))
    ]
    statuses = await reader.statuses(message.message_id for message in candidates)
    records = [message_info(message, statuses[message.message_id]) for message in candidates]
    if not filters.queues and not filters.statuses:
        return records
    queues = frozenset(filters.queues)
    statuses_filter = frozenset(filters.statuses)

    def is_wanted(status: QueueStatus) -> bool:
        return (not queues or status.queue in queues) and (not statuses_filter or status.status in statuses_filter)

    return [message for message in records if any(map(is_wanted, message.queues))]


def message_info(message: Metadata, queues: tuple[QueueStatus, ...]) -> MessageInfo:
    return MessageInfo(
        id=message.message_id,
        created_at_ms=message.created_at_ms,
        received_at_ms=message.received_at_ms,
        visible_at_ms=message.visible_at_ms,
        retention_seconds=message.retention_seconds,
        headers=message.headers,
        queues=queues,
    )


async def _message_source(reader: ListReader, filters: ListFilters, descending: bool) -> CandidateSource | None:
    """Return candidates, a superset of the matching messages; None means all messages."""
    hash_of = value_hashes.hash_of
    sources: list[CandidateSource] = []
    if filters.ids:
        sources.append(Fixed(filters.ids, descending=descending))
    if filters.statuses:
        sources.append(await _status_source(reader, filters, descending))
    elif filters.queues:
        hashes = [hash_of(value_hashes.QUEUE, name) for name in filters.queues]
        sources.append(await reader.having(MESSAGES, hashes, descending=descending))
    for name, texts in filters.headers:
        hashes = [hash_of(value_hashes.HEADER, name, text) for text in texts]
        sources.append(await reader.having(MESSAGES, hashes, descending=descending))
    return AllOf(sources, descending=descending) if sources else None


async def _status_source(reader: ListReader, filters: ListFilters, descending: bool) -> CandidateSource:
    """Return messages with any of the statuses in any of the queues.

    The index has the settled ones, memory the others.
    """
    hash_of = value_hashes.hash_of
    sources: list[CandidateSource] = []
    now = [status for status in filters.statuses if status in (AVAILABLE, IN_FLIGHT)]
    if now:
        names = filters.queues or list(reader.queues)
        queues = [reader.queues[name] for name in names if name in reader.queues]
        sources.append(await Live.of(queues, now, reader.cold, descending=descending))
    if RUNNING in filters.statuses:
        sources.append(Fixed(reader.running.ids(frozenset(filters.queues)), descending=descending))
    statuses = [status for status in filters.statuses if status not in (*now, RUNNING)]
    hashes = [hash_of(value_hashes.SETTLED, status, name) for status in statuses for name in filters.queues or ("",)]
    if hashes:
        sources.append(await reader.having(MESSAGES, hashes, descending=descending))
    return AnyOf(sources, descending=descending)


# ---------------------------------------------------------------------- attempts
def attempt_dimensions(filters: ListFilters) -> list[list[int]]:
    """Return the hashes by which attempts are searched: an attempt must have one of each inner list."""
    hash_of = value_hashes.hash_of
    dimensions = [
        [hash_of(value_hashes.QUEUE, name) for name in filters.queues],
        [hash_of(value_hashes.OUTCOME, outcome) for outcome in filters.outcomes],
        [hash_of(value_hashes.CONSUMER, name) for name in filters.consumers],
        [value_hashes.message_hash(id) for id in filters.ids],
        [hash_of(value_hashes.OUTCOME, "manual")] if filters.manual else [],
        [hash_of(value_hashes.STATE, state) for state in filters.states],
        [hash_of(value_hashes.EXCEPTION, name) for name in filters.exceptions],
        *([hash_of(value_hashes.HEADER, name, text) for text in texts] for name, texts in filters.headers),
    ]
    return [dimension for dimension in dimensions if dimension]


async def attempts(
    reader: ListReader, filters: ListFilters, way: NumberRange, count: int
) -> AsyncGenerator[list[NumberedAttempt], None]:
    """Yield the attempts that match, in batches."""
    if way.low > way.high:
        return
    matches = _attempt_test(filters)
    piece = TimeSlice()
    if not attempt_dimensions(filters):
        async with aclosing(reader.all_attempts(way)) as batches:
            async for batch in batches:
                yield [attempt for attempt in batch if matches(attempt)]
                await piece.pause()
        return
    async with aclosing(attempt_numbers(reader, filters, way, count)) as portions:
        async for numbers in portions:
            rows = await reader.attempts(numbers)
            numbered = ((number, rows[number]) for number in numbers if number in rows)
            yield await _with_headers(reader, filters, list(filter(matches, numbered)))
            await piece.pause()


async def attempt_numbers(
    reader: ListReader, filters: ListFilters, way: NumberRange, count: int
) -> AsyncGenerator[list[int], None]:
    """Yield the numbers of the attempts in the index for filters with a dimension: a superset of those that match."""
    sources: list[CandidateSource] = []
    for hashes in attempt_dimensions(filters):
        sources.append(await reader.having(ATTEMPTS, hashes, descending=way.descending))
    async with aclosing(_portions(AllOf(sources, descending=way.descending), way, count, reader.max_batch)) as portions:
        async for numbers in portions:
            yield numbers


def _attempt_test(filters: ListFilters) -> Callable[[NumberedAttempt], bool]:
    """Build a function that matches an attempt against all filters but the headers, with a look-up for each field."""
    queues, outcomes, consumers = map(frozenset, (filters.queues, filters.outcomes, filters.consumers))
    ids = frozenset(filters.ids)
    states = frozenset(filters.states)
    exceptions = frozenset(filters.exceptions)

    def matches(attempt: NumberedAttempt) -> bool:
        row = attempt[1]
        return (
            filters.has_time(row.ended_at_ms)
            and (not queues or row.queue in queues)
            and (not outcomes or OUTCOMES[row.outcome & ~MANUAL] in outcomes)
            and (not consumers or row.consumer in consumers)
            and (not ids or row.message_id in ids)
            and (filters.manual is None or bool(row.outcome & MANUAL) == filters.manual)
            and (not states or STATES[row.state & ~DETAILED] in states)
            and (not exceptions or row.exception in exceptions)
        )

    return matches


async def _with_headers(
    reader: ListReader, filters: ListFilters, candidates: list[NumberedAttempt]
) -> list[NumberedAttempt]:
    """Return the attempts whose messages have the headers.

    The index has already matched those of collected messages.
    """
    if not filters.headers or not candidates:
        return candidates
    metadata = await reader.metadata({row.message_id for _, row in candidates})
    has_headers = filters.header_test()
    return [
        attempt
        for attempt in candidates
        if attempt[1].message_id not in metadata or has_headers(metadata[attempt[1].message_id].headers)
    ]
