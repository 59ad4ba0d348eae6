"""Requests for history, and the contents of their replies: messages and attempts in pages, and counts over time.

Times are milliseconds since the Unix epoch, UTC, or :class:`~datetime.datetime` (UTC if it has no time zone). Filters
that are None or empty do not filter. An item must match all filters, and any one of the values of each. An unknown
argument is a TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, TypedDict, TypeVar

from msgspec.structs import replace

from ...protocol.messages.history_messages import (
    AttemptInfo,
    AttemptPage,
    CountAttempts,
    CountMessages,
    Counts,
    ListAttempts,
    ListMessages,
    MessageInfo,
    MessagePage,
)
from .query_values import (
    Headers,
    Time,
    bucket_ms,
    ceil_ms,
    floor_ms,
    header_values,
    ids_of,
    of_type,
    page_limit,
    start_ms,
    texts,
)

T = TypeVar("T")


class Window(TypedDict, total=False):
    """Time range.

    Attributes:
        gte: at this time or later.
        lte: at this time or earlier.
        gt: later than this time.
        lt: earlier than this time.
    """

    gte: Time | None
    lte: Time | None
    gt: Time | None
    lt: Time | None


class PageOf(Window, total=False):
    """Time range and page.

    Attributes:
        order: ``desc`` (newest first, the default) or ``asc``.
        limit: 1 to 1,000, by default 100.
        next: the cursor of a page of the same list, for the page after it.
        prev: the cursor of a page of the same list, for the page before it.
    """

    order: str
    limit: int
    next: str | None
    prev: str | None


class MessageFilters(TypedDict, total=False):
    """Filters for messages.

    Attributes:
        queues: messages that were routed to one of these queues.
        statuses: ``available``, ``in_flight``, ``running``, ``done`` or ``failed``, in one of ``queues`` if they are
            given.
        headers: names of metadata headers, each with the value or values to match.
        ids: ids of messages.
    """

    queues: Iterable[str] | None
    statuses: Iterable[str] | None
    headers: Headers | None
    ids: Iterable[int] | None


class AttemptFilters(TypedDict, total=False):
    """Filters for attempts.

    Attributes:
        queues: attempts in one of these queues.
        outcomes: see :class:`AttemptInfo`.
        headers: metadata headers of their messages, each with the value or values to match.
        message_ids: ids of their messages.
        consumers: names of consumers.
        manual: True for attempts that a user ended manually, False for all others.
        states: states of their tasks; see :class:`AttemptInfo`.
        exceptions: types of exceptions.
    """

    queues: Iterable[str] | None
    outcomes: Iterable[str] | None
    headers: Headers | None
    message_ids: Iterable[int] | None
    consumers: Iterable[str] | None
    manual: bool | None
    states: Iterable[str] | None
    exceptions: Iterable[str] | None


class MessageQuery(MessageFilters, PageOf, total=False):
    """Query for a page of messages, by the time of their receipt."""


class AttemptQuery(AttemptFilters, PageOf, total=False):
    """Query for a page of attempts, by the time of their ends.

    ``bodies``: include the bodies of their messages. ``tracebacks``: include those of failed tasks.
    """

    bodies: bool
    tracebacks: bool


class Buckets(TypedDict):
    """Time range from ``gte`` to ``lt`` (exclusive), in at most 1,000 buckets that are aligned to the epoch."""

    gte: Time
    lt: Time
    bucket_seconds: float


class MessageCount(MessageFilters, Buckets):
    """Counts of messages by the time of their receipt."""


class AttemptCount(AttemptFilters, Buckets):
    """Counts of attempts by the time of their ends."""


# ---------------------------------------------------------------------- requests
def list_messages_request(asked: MessageQuery) -> ListMessages:
    _check_names("list_messages", asked, MessageQuery)
    return ListMessages(rid=0, **_message_filters(asked), **_page(asked))


def list_attempts_request(asked: AttemptQuery) -> ListAttempts:
    _check_names("list_attempts", asked, AttemptQuery)
    bodies = of_type("bodies", asked.get("bodies", False), bool)
    tracebacks = of_type("tracebacks", asked.get("tracebacks", False), bool)
    return ListAttempts(rid=0, bodies=bodies, tracebacks=tracebacks, **_attempt_filters(asked), **_page(asked))


def count_messages_request(asked: MessageCount) -> CountMessages:
    _check_names("count_messages", asked, MessageCount)
    return CountMessages(rid=0, **_message_filters(asked), **_buckets(asked))


def count_attempts_request(asked: AttemptCount) -> CountAttempts:
    _check_names("count_attempts", asked, AttemptCount)
    return CountAttempts(rid=0, **_attempt_filters(asked), **_buckets(asked))


def _check_names(call: str, asked: Mapping[str, Any], known: Any) -> None:
    """Raise TypeError for an unknown or a missing argument, as Python does."""
    for name in asked:
        if name not in known.__required_keys__ | known.__optional_keys__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
    for name in sorted(known.__required_keys__):
        if name not in asked:
            raise TypeError(f"{call}() missing required keyword argument {name!r}")


def _message_filters(asked: MessageFilters) -> dict[str, Any]:
    return {
        "queues": texts("queues", asked.get("queues")),
        "statuses": texts("statuses", asked.get("statuses")),
        "headers": header_values(asked.get("headers")),
        "ids": ids_of(asked.get("ids")),
    }


def _attempt_filters(asked: AttemptFilters) -> dict[str, Any]:
    return {
        "queues": texts("queues", asked.get("queues")),
        "outcomes": texts("outcomes", asked.get("outcomes")),
        "headers": header_values(asked.get("headers")),
        "ids": ids_of(asked.get("message_ids")),
        "consumers": texts("consumers", asked.get("consumers")),
        "manual": of_type("manual", asked.get("manual"), bool, NoneType),
        "states": texts("states", asked.get("states")),
        "exceptions": texts("exceptions", asked.get("exceptions")),
    }


def _page(asked: PageOf) -> dict[str, Any]:
    return {
        "gte": ceil_ms(asked.get("gte")),
        "lte": floor_ms(asked.get("lte")),
        "gt": floor_ms(asked.get("gt")),
        "lt": ceil_ms(asked.get("lt")),
        "order": of_type("order", asked.get("order", "desc"), str),
        "limit": page_limit(asked.get("limit", 100)),
        "next": of_type("next", asked.get("next"), str, NoneType),
        "prev": of_type("prev", asked.get("prev"), str, NoneType),
    }


def _buckets(asked: Buckets) -> dict[str, Any]:
    return {
        "gte": start_ms(asked["gte"]),
        "lt": start_ms(asked["lt"]),
        "bucket_ms": bucket_ms(asked["bucket_seconds"]),
    }


# ---------------------------------------------------------------------- replies
@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Page of a list. ``next`` and ``prev`` are the cursors of the next and the previous page, or None."""

    items: tuple[T, ...]
    next: str | None
    prev: str | None


@dataclass(frozen=True, slots=True)
class Bucket:
    """Count of one period."""

    start_ms: int
    count: int


def messages_of(page: MessagePage) -> Page[MessageInfo]:
    """Return the page of a reply."""
    return Page(page.items, page.next, page.prev)


def attempts_of(page: AttemptPage, body_of: Callable[[bytes], Any]) -> Page[AttemptInfo]:
    """Return the page of a reply; ``body_of`` decodes an envelope to a body."""

    def opened(attempt: AttemptInfo) -> AttemptInfo:
        event = attempt.event
        if event is None or event.body is None:
            return attempt
        return replace(attempt, event=replace(event, body=body_of(event.body)))

    return Page(tuple(map(opened, page.items)), page.next, page.prev)


def buckets_of(counts: Counts) -> tuple[Bucket, ...]:
    """Return the buckets of a reply."""
    starts = range(counts.start_ms, counts.start_ms + len(counts.counts) * counts.bucket_ms, counts.bucket_ms)
    return tuple(Bucket(start, count) for start, count in zip(starts, counts.counts, strict=True))
