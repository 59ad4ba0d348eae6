"""Searches by id: the history has the time of a message's failure, so that only a part of its failed list is read."""

from __future__ import annotations

from ...records.history_index import MESSAGES
from ...records.history_log import FAILED, MANUAL, REJECTED
from ...records.kinds import MAX_MESSAGE_ID
from ..index import value_hashes
from ..lists.reader import ListReader
from ..lists.sources import values_source, walk
from .query import SEARCHED, FailureFilterValues
from .streams import FailureWindow


async def narrowed(reader: ListReader, filters: FailureFilterValues, window: FailureWindow) -> FailureWindow:
    """Return the part of the window in which the messages of the filters failed; all of it if that is unknown."""
    ids = await _message_ids(reader, filters)
    if ids is None or not 0 < len(ids) <= SEARCHED:
        return window
    by_id = await reader.events(ids)
    if not all(by_id.values()):
        return window  # a message is older than the history
    times = [event.at_ms for events in by_id.values() for event in events if event.what & ~MANUAL in (FAILED, REJECTED)]
    since_ms, until_ms = min(times, default=1), max(times, default=0)
    return window._replace(since_ms=max(window.since_ms, since_ms), until_ms=min(window.until_ms, until_ms))


async def _message_ids(reader: ListReader, filters: FailureFilterValues) -> frozenset[int] | None:
    if filters.ids is not None or filters.task_ids is None or not filters.has_few_task_ids:
        return filters.ids
    hashes = [value_hashes.hash_of(value_hashes.HEADER, "id", id) for id in filters.task_ids]
    source = await values_source(reader.store, reader.view, MESSAGES, hashes, descending=False)
    ids: set[int] = set()
    async for batch in walk(source, 0, MAX_MESSAGE_ID - 1, descending=False):
        ids.update(batch)
    return frozenset(ids)
