"""The view of one instance's failures: pages, groups, and an ordered scan for bulk operations."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from operator import attrgetter

from ..clock import TimeSlice
from ..read.settled_buckets import SettledBuckets
from ..read.stored_messages import matching
from ..records.failures import NO_FAILURE
from ..state.store_state import StoreState
from . import failure_streams
from .failure import (
    ACKNOWLEDGED,
    ARCHIVED,
    DIMENSIONS,
    FAILED,
    STATES,
    Failure,
    FailureFilterValues,
    FailurePosition,
    OpenFailure,
    make_cursor,
)
from .failure_streams import FactsCache, FailureWindow, Stream, narrowed
from .reader import ListReader
from .service import PAGE_BYTES, History, ListPage

#: limit for the failures that are examined for a page, which then ends early
_MOST_FOR_PAGE = 50_000
#: limit for the failures that are counted; the count is then marked as incomplete
_MOST_FOR_GROUPS = 500_000
#: limit for the groups of a count
_MOST_GROUPS = 1000
#: attribute of a failure for each dimension
_PLACES = {name: "open.queue" if name == "queue" else f"facts.{name}" for name in DIMENSIONS}

#: returns True if a queue is shown
Shows = Callable[[str], bool]


class GroupCount:
    """Failures with the same ``values``; ``over_time`` has their number by the start of the bucket of time."""

    __slots__ = ("acknowledged", "count", "first_at_ms", "last_at_ms", "over_time", "values")

    def __init__(self, values: tuple[str, ...], at_ms: int) -> None:
        self.values = values
        self.count = self.acknowledged = 0
        self.first_at_ms = self.last_at_ms = at_ms
        self.over_time: dict[int, int] = {}

    def add(self, failure: OpenFailure, bucket_ms: int) -> None:
        self.count += 1
        if bucket_ms:
            start = failure.at_ms // bucket_ms * bucket_ms
            self.over_time[start] = self.over_time.get(start, 0) + 1
        self.acknowledged += failure.kind == ACKNOWLEDGED
        self.first_at_ms = failure.at_ms  # failures are added in the order of time, newest first


class FailureView:
    """The failures of one instance."""

    def __init__(self, state: StoreState, history: History, buckets: SettledBuckets) -> None:
        self._read_at_once = state.sizes.failure_reads
        self._state = state
        self._history = history
        self._buckets = buckets
        self._facts = FactsCache(self._read_at_once)

    def free_memory(self) -> None:
        """Clear the cache of facts, which can be read again from the store."""
        self._facts.clear()

    async def page(
        self, filters: FailureFilterValues, shows: Shows, limit: int, after: FailurePosition | None, *, descending: bool
    ) -> ListPage[Failure]:
        """Return a page of the failures that match, in queues that are shown; it has no cursor of the previous page."""
        failures: list[Failure] = []
        examined, following = 0, None
        async with aclosing(self.scan(filters, shows, after, descending=descending)) as batches:
            async for matching, last, count in batches:
                examined += count
                failures += matching
                if len(failures) > limit:
                    failures = failures[:limit]
                    following = failures[-1].open.position
                    break
                if examined >= _MOST_FOR_PAGE:
                    following = last
                    break
        items = await self._with_texts(failures)
        if len(items) < len(failures):
            following = items[-1].open.position
        cursor = None if following is None else make_cursor(filters, following, descending=descending)
        return ListPage(items, cursor, None)

    async def _with_texts(self, failures: list[Failure]) -> list[Failure]:
        """Return the failures with their texts, up to the first one that does not fit a page."""
        items: list[Failure] = []
        size = 0
        async with self._history.reading(indexed=False) as reader:
            for start in range(0, len(failures), self._read_at_once):
                batch = failures[start : start + self._read_at_once]
                texts = await reader.failures([failure.facts.number for failure in batch if failure.facts.detailed])
                for failure in batch:
                    text = texts.get(failure.facts.number, NO_FAILURE)
                    size += len(text.error) + len(text.traceback)
                    if size > PAGE_BYTES and items:
                        return items
                    items.append(failure._replace(text=text))
        return items

    async def groups(
        self, filters: FailureFilterValues, shows: Shows, by: tuple[str, ...], bucket_ms: int = 0
    ) -> tuple[list[GroupCount], bool]:
        """Count the failures that match by the values of these dimensions, and by time if ``bucket_ms`` is not 0.

        Return the groups, the largest first, and True if all failures were counted and no group is left out.
        """
        groups: dict[tuple[str, ...], GroupCount] = {}
        values_of = attrgetter(*(_PLACES[name] for name in by))
        examined = 0
        async with aclosing(self.scan(filters, shows, None, descending=True)) as batches:
            async for matching, _last, count in batches:
                for failure in matching:
                    values = values_of(failure) if len(by) > 1 else (values_of(failure),)
                    group = groups.get(values)
                    if group is None:
                        group = groups[values] = GroupCount(values, failure.open.at_ms)
                    group.add(failure.open, bucket_ms)
                examined += count
                if examined >= _MOST_FOR_GROUPS:
                    break
        largest = sorted(groups.values(), key=lambda group: (-group.count, group.values))
        return largest[:_MOST_GROUPS], examined < _MOST_FOR_GROUPS and len(largest) <= _MOST_GROUPS

    async def scan(
        self, filters: FailureFilterValues, shows: Shows, after: FailurePosition | None, *, descending: bool
    ) -> AsyncGenerator[tuple[list[Failure], FailurePosition, int], None]:
        """Yield all failures that match, in ordered batches with the last position and the number of examined ones."""
        window = FailureWindow(filters.since_ms, filters.until_ms, descending)
        if after is not None:
            at = after.at_ms
            window = window._replace(until_ms=at) if descending else window._replace(since_ms=at)
        async with self._history.reading(indexed=self._history.enabled) as reader:
            list_window = await narrowed(reader, filters, window) if self._history.enabled else window
            piece = TimeSlice()
            sources = self._streams(reader, filters, shows, window, list_window)
            try:
                async for batch in failure_streams.merged(sources, descending=descending):
                    rest = [failure for failure in batch if after is None or _is_after(failure, after, descending)]
                    for start in range(0, len(rest), self._read_at_once):
                        chunk = rest[start : start + self._read_at_once]
                        yield await self._matching(reader, filters, shows, chunk), chunk[-1].position, len(chunk)
                        await piece.pause()
            finally:
                await failure_streams.close_all(sources)

    def _streams(
        self,
        reader: ListReader,
        filters: FailureFilterValues,
        shows: Shows,
        window: FailureWindow,
        list_window: FailureWindow,
    ) -> list[Stream]:
        names = [name for name in filters.queues or list(self._state.queues) if shows(name)]
        queues = [self._state.queues[name] for name in names if name in self._state.queues]
        sources: list[Stream] = []
        if FAILED in filters.kinds:
            sources += [
                failure_streams.in_failed_list(self._buckets, queue, list_window)
                for queue in queues
                if queue.failed.may_have_since(list_window.since_ms)
            ]
        if ARCHIVED in filters.kinds:
            sources += [failure_streams.in_archive(self._buckets, queue, list_window) for queue in queues]
        is_possible = not filters.reasons or set(STATES) & set(filters.reasons)
        if ACKNOWLEDGED in filters.kinds and self._history.enabled and is_possible:
            handled = self._state.handled
            sources.append(failure_streams.acknowledged(reader, self._facts, handled, filters, window))
        return sources

    async def _matching(
        self, reader: ListReader, filters: FailureFilterValues, shows: Shows, candidates: list[OpenFailure]
    ) -> list[Failure]:
        if filters.ids is not None:
            candidates = [failure for failure in candidates if failure.message_id in filters.ids]
        if filters.job:
            ended = self._state.staged.ended_in(filters.job, [failure.message_id for failure in candidates])
            candidates = [failure for failure in candidates if failure.message_id in ended]
        candidates = [failure for failure in candidates if failure.kind != ACKNOWLEDGED or shows(failure.queue)]
        failures = [failure for failure in await self._facts.of(reader, candidates) if filters.match(failure)]
        selector = filters.selector
        if selector is None or not failures:
            return failures
        metadata = await reader.metadata({failure.open.message_id for failure in failures})
        ids = await matching(selector, metadata.values())
        return [failure for failure in failures if failure.open.message_id in ids]


def _is_after(failure: OpenFailure, after: FailurePosition, descending: bool) -> bool:
    return failure.position < after if descending else failure.position > after
