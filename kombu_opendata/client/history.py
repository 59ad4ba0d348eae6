"""Ask a broker what happened: pages of messages and of attempts, single ones, and counts by time.

Times are milliseconds since the Unix epoch, UTC, or :class:`~datetime.datetime` (one without a zone is UTC). Filters
that are None or empty do not filter; within one filter any value will do, and all filters count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from ..errors import InvalidFilter
from ..protocol.history_messages import (
    AttemptPage,
    CountAttempts,
    CountMessages,
    Counts,
    ListAttempts,
    ListMessages,
    MessagePage,
    RetrieveAttempt,
    RetrieveMessage,
    StoredAttempt,
    StoredMessage,
)
from .requester import Requester

T = TypeVar("T")
Time = int | datetime
Header = str | int | float | bool
Headers = Mapping[str, Header | Iterable[Header]]

_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What a message is in one queue.

    Attributes:
        status: ``available``, ``in_flight``, ``done``, ``failed``; or, where it left without being claimed,
            ``expired``, ``dropped`` (the queue was full) or ``removed``.
        attempts: how often it was claimed.
        at_ms: when it was claimed, settled or left; 0 while it is available.
        consumer: who has it, while it is in flight.
        visible_at_ms: from when on it is delivered, while it is available.
    """

    queue: str
    status: str
    attempts: int
    at_ms: int
    consumer: str
    visible_at_ms: int


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A stored message: its metadata and what it is in each queue that it was routed to."""

    id: int
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    retention_seconds: int
    headers: dict[str, str]
    queues: tuple[QueueStatus, ...]

    def status(self, queue: str) -> str | None:
        """What it is in a queue; None if it was not routed to it."""
        return next((one.status for one in self.queues if one.queue == queue), None)


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """An attempt that ended.

    Attributes:
        consumer: the name of who had claimed the message.
        number: how often the message had been claimed in this queue, this attempt included.
        outcome: ``acked``, ``failed`` (given up: no attempts left), ``rejected``, ``expired`` (the lease ended),
            ``released`` (handed back unstarted) or ``redriven`` (made available again after it had failed).
        requeued: the message went back to its queue.
        manual: it was brought about by hand.
    """

    id: str
    message_id: int
    queue: str
    consumer: str
    claimed_at_ms: int
    ended_at_ms: int
    number: int
    outcome: str
    requeued: bool
    manual: bool


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a list. ``next`` and ``prev`` ask for the pages after and before; None where there is none."""

    items: tuple[T, ...]
    next: str | None
    prev: str | None


@dataclass(frozen=True, slots=True)
class Bucket:
    """A count of one stretch of time."""

    start_ms: int
    count: int


def list_messages(
    connection: Requester,
    *,
    queues: Iterable[str] | None = None,
    statuses: Iterable[str] | None = None,
    headers: Headers | None = None,
    ids: Iterable[int] | None = None,
    gte: Time | None = None,
    lte: Time | None = None,
    gt: Time | None = None,
    lt: Time | None = None,
    order: str = "desc",
    limit: int = 100,
    next: str | None = None,
    prev: str | None = None,
) -> Page[MessageInfo]:
    """A page of the stored messages, ordered by when the broker received them, and their ids.

    Args:
        queues: those that were routed to one of these.
        statuses: of ``available``, ``in_flight``, ``done``, ``failed``; with ``queues``, in one of those.
        headers: names of metadata headers, each with the value or the values that are wanted.
        gte, lte, gt, lt: limits of the time of receipt.
        order: ``desc``, newest first, or ``asc``.
        limit: items of the page, 1 to 1,000. A page ends before it where its headers have more than 4 MiB.
        next, prev: a cursor of a page of this list.

    Raises:
        LimitOutOfRange, InvalidFilter: what is asked for does not exist.
        CursorError: not a cursor for this page; there is a class for each reason.
        OpenDataError: as :meth:`Requester.call`.
    """
    page: MessagePage = connection.call(
        ListMessages(
            rid=0, queues=_texts(queues), statuses=_texts(statuses), headers=_headers(headers), ids=list(ids or ()),
            gte=_ceil(gte), lte=_floor(lte), gt=_floor(gt), lt=_ceil(lt), order=order, limit=_limit(limit),
            next=next, prev=prev,
        )
    )  # fmt: skip
    return Page(tuple(map(_message, page.items)), page.next, page.prev)


def list_attempts(
    connection: Requester,
    *,
    queues: Iterable[str] | None = None,
    outcomes: Iterable[str] | None = None,
    headers: Headers | None = None,
    message_ids: Iterable[int] | None = None,
    consumers: Iterable[str] | None = None,
    manual: bool | None = None,
    gte: Time | None = None,
    lte: Time | None = None,
    gt: Time | None = None,
    lt: Time | None = None,
    order: str = "desc",
    limit: int = 100,
    next: str | None = None,
    prev: str | None = None,
) -> Page[AttemptInfo]:
    """A page of the attempts that ended, ordered by when they ended. They stay when their messages are collected.

    Args:
        outcomes: see :class:`AttemptInfo`.
        headers: of the messages.
        gte, lte, gt, lt: limits of the time at which they ended.

    The rest, and what is raised, is as in :func:`list_messages`.
    """
    page: AttemptPage = connection.call(
        ListAttempts(
            rid=0, queues=_texts(queues), outcomes=_texts(outcomes), headers=_headers(headers),
            ids=list(message_ids or ()), consumers=_texts(consumers), manual=manual, gte=_ceil(gte), lte=_floor(lte),
            gt=_floor(gt), lt=_ceil(lt), order=order, limit=_limit(limit), next=next, prev=prev,
        )
    )  # fmt: skip
    return Page(tuple(map(_attempt, page.items)), page.next, page.prev)


def retrieve_message(connection: Requester, id: int) -> MessageInfo | None:
    """A message; None if it is not stored (any more)."""
    page: MessagePage = connection.call(RetrieveMessage(0, id))
    return _message(page.items[0]) if page.items else None


def retrieve_attempt(connection: Requester, id: str) -> AttemptInfo | None:
    """An attempt by the id that a list shows; None if the log does not have it (any more).

    Raises:
        RequestError: not an attempt's id.
    """
    page: AttemptPage = connection.call(RetrieveAttempt(0, id))
    return _attempt(page.items[0]) if page.items else None


def count_messages(
    connection: Requester,
    *,
    gte: Time,
    lt: Time,
    bucket_seconds: float,
    queues: Iterable[str] | None = None,
    statuses: Iterable[str] | None = None,
    headers: Headers | None = None,
) -> tuple[Bucket, ...]:
    """How many of the stored messages were received in each bucket from ``gte`` up to and without ``lt``.

    Buckets begin at multiples of their length since the epoch; there are at most 1,000, and one without any has 0.

    Raises:
        InvalidFilter: too many buckets, or no time.
    """
    counts: Counts = connection.call(
        CountMessages(
            rid=0, gte=_start(gte), lt=_start(lt), bucket_ms=round(1000 * bucket_seconds),
            queues=_texts(queues), statuses=_texts(statuses), headers=_headers(headers),
        )
    )  # fmt: skip
    return _buckets(counts)


def count_attempts(
    connection: Requester,
    *,
    gte: Time,
    lt: Time,
    bucket_seconds: float,
    queues: Iterable[str] | None = None,
    outcomes: Iterable[str] | None = None,
    headers: Headers | None = None,
    consumers: Iterable[str] | None = None,
    manual: bool | None = None,
) -> tuple[Bucket, ...]:
    """How many attempts ended in each bucket; as :func:`count_messages`."""
    counts: Counts = connection.call(
        CountAttempts(
            rid=0, gte=_start(gte), lt=_start(lt), bucket_ms=round(1000 * bucket_seconds),
            queues=_texts(queues), outcomes=_texts(outcomes), headers=_headers(headers), consumers=_texts(consumers),
            manual=manual,
        )
    )  # fmt: skip
    return _buckets(counts)


# ---------------------------------------------------------------------- between here and the wire
def _texts(given: Iterable[str] | None) -> list[str]:
    if isinstance(given, str):
        raise InvalidFilter(f"{given!r} is one text: give a list of them", value=given)
    return list(given or ())


def _headers(given: Headers | None) -> dict[str, list[str]]:
    found = {}
    for name, value in (given or {}).items():
        several = not isinstance(value, (str, int, float)) and isinstance(value, Iterable)
        found[name] = [_text(one) for one in value] if several else [_text(value)]  # type: ignore[union-attr]
    return found


def _text(value: Any) -> str:
    """A header's value as the metadata has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if type(value) in (int, float) else str(value)


def _limit(limit: Any) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise InvalidFilter(f"a limit of {limit!r}: give a number", value=repr(limit))
    return max(min(limit, 1 << 62), -1 << 62)  # the broker says what is allowed


def _floor(at: Time | None) -> int | None:
    """The last millisecond that is not after this time."""
    return at if at is None or isinstance(at, int) else _since_epoch(at) // _MS


def _ceil(at: Time | None) -> int | None:
    """The first millisecond that is not before this time."""
    return None if at is None else _start(at)


def _start(at: Time) -> int:
    return at if isinstance(at, int) else -(-_since_epoch(at) // _MS)


def _since_epoch(at: datetime) -> timedelta:
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH


def _message(stored: StoredMessage) -> MessageInfo:
    return MessageInfo(
        stored.id,
        stored.created_at_ms,
        stored.received_at_ms,
        stored.visible_at_ms,
        stored.retention_seconds,
        stored.headers,
        tuple(QueueStatus(*one) for one in stored.queues),
    )


def _attempt(stored: StoredAttempt) -> AttemptInfo:
    return AttemptInfo(
        stored.id,
        stored.message_id,
        stored.queue,
        stored.consumer,
        stored.claimed_at_ms,
        stored.ended_at_ms,
        stored.number,
        stored.outcome,
        stored.requeued,
        stored.manual,
    )


def _buckets(counts: Counts) -> tuple[Bucket, ...]:
    starts = range(counts.start_ms, counts.start_ms + len(counts.counts) * counts.bucket_ms, counts.bucket_ms)
    return tuple(Bucket(start, count) for start, count in zip(starts, counts.counts, strict=True))
