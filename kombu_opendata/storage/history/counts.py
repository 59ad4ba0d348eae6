"""Counts of messages and attempts by time. Everything that passes is gone through, a little at a time."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from .candidates import MAX_LOOK, Way, attempt_dimensions, attempts, messages
from .query import Buckets, Filters
from .reader import Reader

if TYPE_CHECKING:
    from .service import History


async def count_messages(history: History, filters: Filters, buckets: Buckets) -> list[int]:
    """How many messages of each bucket are in the store."""
    await history.indexer.catch_up()
    counts = [0] * buckets.number
    with history.index.reading() as view:
        reader = Reader(history, view)
        low = await reader.first_message_since(filters.since_ms)
        way = Way(low, await reader.first_message_since(filters.until_ms + 1) - 1, False)
        if not way.is_empty:
            async with aclosing(messages(history, reader, view, filters, way, MAX_LOOK)) as looked_at:
                async for some in looked_at:
                    for one in some:
                        counts[buckets.number_of(one.metadata.received_at_ms)] += 1
    return counts


async def count_attempts(history: History, filters: Filters, buckets: Buckets) -> list[int]:
    """How many attempts ended in each bucket."""
    if attempt_dimensions(filters):
        await history.indexer.catch_up()
    history.log.close_chunk()
    counts = [0] * buckets.number
    with history.index.reading() as view:
        reader = Reader(history, view)
        low = max(await reader.first_attempt_since(filters.since_ms), history.index.planned.kept)
        way = Way(low, await reader.first_attempt_since(filters.until_ms + 1) - 1, False)
        if not way.is_empty:
            async with aclosing(attempts(history, reader, view, filters, way, MAX_LOOK)) as looked_at:
                async for some in looked_at:
                    for one in some:
                        counts[buckets.number_of(one.ended_at_ms)] += 1
    return counts
