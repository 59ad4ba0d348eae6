"""Counts of messages and attempts by time, which examine all matches of a filter in batches."""

from __future__ import annotations

from contextlib import aclosing

from .candidates import MAX_BATCH, NumberRange, attempts, messages
from .query import ListFilters, TimeBuckets
from .reader import ListReader


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
