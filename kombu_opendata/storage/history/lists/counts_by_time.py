"""Counts messages and attempts by time, by examining all that match a filter, a batch at a time."""

from __future__ import annotations

from contextlib import aclosing

from .candidates import MAX_BATCH, NumberRange, attempts, messages
from .query import ListFilters, TimeBuckets
from .reader import ListReader


async def count_messages(reader: ListReader, filters: ListFilters, buckets: TimeBuckets) -> list[int]:
    """How many messages of each bucket are in the store."""
    counts = [0] * buckets.number
    low = await reader.first_message_since(filters.since_ms)
    way = NumberRange(low, await reader.first_message_since(filters.until_ms + 1) - 1, False)
    if not way.is_empty:
        async with aclosing(messages(reader, filters, way, MAX_BATCH)) as looked_at:
            async for some in looked_at:
                for one in some:
                    counts[buckets.number_of(one.metadata.received_at_ms)] += 1
    return counts


async def count_attempts(reader: ListReader, filters: ListFilters, buckets: TimeBuckets) -> list[int]:
    """How many attempts ended in each bucket."""
    counts = [0] * buckets.number
    low = max(await reader.first_attempt_since(filters.since_ms), reader.first_kept_attempt)
    way = NumberRange(low, await reader.first_attempt_since(filters.until_ms + 1) - 1, False)
    if not way.is_empty:
        async with aclosing(attempts(reader, filters, way, MAX_BATCH)) as looked_at:
            async for some in looked_at:
                for one in some:
                    counts[buckets.number_of(one.ended_at_ms)] += 1
    return counts
