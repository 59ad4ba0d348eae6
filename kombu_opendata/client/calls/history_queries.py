"""Ask a broker what happened: pages of messages and of attempts, single ones, and counts by time.

Times are milliseconds since the Unix epoch, UTC, or :class:`~datetime.datetime` (one without a zone is UTC). Filters
that are None or empty do not filter; within one filter any value will do, and all filters count. An argument that a
call does not have is a TypeError.

Each call has a request, for those who send it themselves (``kombu_opendata/queue_client``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, TypedDict, Unpack

from ...errors import InvalidFilter
from ...protocol.history_messages import (
    CountAttempts,
    CountMessages,
    ListAttempts,
    ListMessages,
    RetrieveAttempt,
    RetrieveMessage,
)
from ..session.broker_connection import BrokerConnection
from .history_items import AttemptInfo, Bucket, MessageInfo, Page, attempts_of, buckets_of, messages_of

__all__ = [
    "AttemptInfo",
    "Bucket",
    "MessageInfo",
    "Page",
    "count_attempts",
    "count_messages",
    "list_attempts",
    "list_messages",
    "retrieve_attempt",
    "retrieve_message",
]

Time = int | datetime
Header = str | int | float | bool
Headers = Mapping[str, Header | Iterable[Header]]

_MS = timedelta(milliseconds=1)
_MAX_BUCKET_SECONDS = 1e13
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Window(TypedDict, total=False):
    """Limits of time: at or after ``gte``, after ``gt``, at or before ``lte``, before ``lt``."""

    gte: Time | None
    lte: Time | None
    gt: Time | None
    lt: Time | None


class PageOf(Window, total=False):
    """Limits of time, and which page.

    ``order`` is ``desc``, newest first, or ``asc``; ``limit`` 1 to 1,000 (100); ``next`` or ``prev`` a cursor of a page
    of the same list.
    """

    order: str
    limit: int
    next: str | None
    prev: str | None


class MessageFilters(TypedDict, total=False):
    """Which messages.

    ``queues``: those that were routed to one of these. ``statuses``: of ``available``, ``in_flight``, ``done``,
    ``failed``; with ``queues``, in one of those. ``headers``: names of metadata headers, each with the value or the
    values that are wanted. ``ids``: of messages.
    """

    queues: Iterable[str] | None
    statuses: Iterable[str] | None
    headers: Headers | None
    ids: Iterable[int] | None


class AttemptFilters(TypedDict, total=False):
    """Which attempts.

    ``outcomes``: see :class:`AttemptInfo`. ``headers`` and ``message_ids``: of the messages. ``consumers``: their
    names. ``manual``: only those that were brought about by hand, or only the others.
    """

    queues: Iterable[str] | None
    outcomes: Iterable[str] | None
    headers: Headers | None
    message_ids: Iterable[int] | None
    consumers: Iterable[str] | None
    manual: bool | None


class MessageQuery(MessageFilters, PageOf, total=False):
    """A page of messages; times are those of receipt."""


class AttemptQuery(AttemptFilters, PageOf, total=False):
    """A page of attempts; times are those of their ends. ``bodies``: with the bodies of their messages."""

    bodies: bool


class Buckets(TypedDict):
    """From when up to and without when, in buckets of which length; at most 1,000, aligned to the epoch."""

    gte: Time
    lt: Time
    bucket_seconds: float


class MessageCount(MessageFilters, Buckets):
    """Counts of messages by their receipt."""


class AttemptCount(AttemptFilters, Buckets):
    """Counts of attempts by their ends."""


# ---------------------------------------------------------------------- calls on a connection
def list_messages(connection: BrokerConnection, **asked: Unpack[MessageQuery]) -> Page[MessageInfo]:
    """A page of the stored messages, ordered by when the broker received them, and their ids.

    A page ends before its limit where its headers have more than 4 MiB.

    Raises:
        LimitOutOfRange, InvalidFilter: what is asked for does not exist.
        CursorError: not a cursor for this page; there is a class for each reason.
        OpenDataError: as :meth:`BrokerConnection.call`.
    """
    return messages_of(connection.call(list_messages_request(asked)))


def list_attempts(connection: BrokerConnection, **asked: Unpack[AttemptQuery]) -> Page[AttemptInfo]:
    """A page of the attempts that ended, ordered by when they ended. They stay when their messages are collected.

    Raises:
        OpenDataError: as :func:`list_messages`.
    """
    return attempts_of(connection.call(list_attempts_request(asked)))


def retrieve_message(connection: BrokerConnection, id: int) -> MessageInfo | None:
    """A message; None if it is not stored (any more)."""
    items = messages_of(connection.call(RetrieveMessage(0, id))).items
    return items[0] if items else None


def retrieve_attempt(connection: BrokerConnection, id: str, *, bodies: bool = False) -> AttemptInfo | None:
    """An attempt by the id that a list shows; None if the log does not have it (any more).

    Raises:
        RequestError: not an attempt's id.
    """
    items = attempts_of(connection.call(RetrieveAttempt(0, id, bodies))).items
    return items[0] if items else None


def count_messages(connection: BrokerConnection, **asked: Unpack[MessageCount]) -> tuple[Bucket, ...]:
    """How many of the stored messages were received in each bucket; one without any has 0.

    Raises:
        InvalidFilter: too many buckets, or no time.
    """
    return buckets_of(connection.call(count_messages_request(asked)))


def count_attempts(connection: BrokerConnection, **asked: Unpack[AttemptCount]) -> tuple[Bucket, ...]:
    """How many attempts ended in each bucket; as :func:`count_messages`."""
    return buckets_of(connection.call(count_attempts_request(asked)))


# ---------------------------------------------------------------------- requests
def list_messages_request(asked: MessageQuery) -> ListMessages:
    _check_names("list_messages", asked, MessageQuery)
    return ListMessages(rid=0, **_message_filters(asked), **_page(asked))


def list_attempts_request(asked: AttemptQuery) -> ListAttempts:
    _check_names("list_attempts", asked, AttemptQuery)
    bodies = _of_type("bodies", asked.get("bodies", False), bool)
    return ListAttempts(rid=0, bodies=bodies, **_attempt_filters(asked), **_page(asked))


def count_messages_request(asked: MessageCount) -> CountMessages:
    _check_names("count_messages", asked, MessageCount)
    return CountMessages(rid=0, **_message_filters(asked), **_buckets(asked))


def count_attempts_request(asked: AttemptCount) -> CountAttempts:
    _check_names("count_attempts", asked, AttemptCount)
    return CountAttempts(rid=0, **_attempt_filters(asked), **_buckets(asked))


def _check_names(call: str, asked: Mapping[str, Any], known: Any) -> None:
    """Refuse arguments that a call does not have, and miss those that it must have, as Python does."""
    for name in asked:
        if name not in known.__required_keys__ | known.__optional_keys__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
    for name in sorted(known.__required_keys__):
        if name not in asked:
            raise TypeError(f"{call}() missing required keyword argument {name!r}")


def _message_filters(asked: MessageFilters) -> dict[str, Any]:
    return {
        "queues": _texts("queues", asked.get("queues")),
        "statuses": _texts("statuses", asked.get("statuses")),
        "headers": _headers(asked.get("headers")),
        "ids": _ids(asked.get("ids")),
    }


def _attempt_filters(asked: AttemptFilters) -> dict[str, Any]:
    return {
        "queues": _texts("queues", asked.get("queues")),
        "outcomes": _texts("outcomes", asked.get("outcomes")),
        "headers": _headers(asked.get("headers")),
        "ids": _ids(asked.get("message_ids")),
        "consumers": _texts("consumers", asked.get("consumers")),
        "manual": _of_type("manual", asked.get("manual"), bool, NoneType),
    }


def _page(asked: PageOf) -> dict[str, Any]:
    return {
        "gte": _ceil(asked.get("gte")),
        "lte": _floor(asked.get("lte")),
        "gt": _floor(asked.get("gt")),
        "lt": _ceil(asked.get("lt")),
        "order": _of_type("order", asked.get("order", "desc"), str),
        "limit": _limit(asked.get("limit", 100)),
        "next": _of_type("next", asked.get("next"), str, NoneType),
        "prev": _of_type("prev", asked.get("prev"), str, NoneType),
    }


def _buckets(asked: Buckets) -> dict[str, Any]:
    return {
        "gte": _start(asked["gte"]),
        "lt": _start(asked["lt"]),
        "bucket_ms": _bucket_ms(asked["bucket_seconds"]),
    }


# ---------------------------------------------------------------------- between here and the wire
def _texts(name: str, given: Iterable[str] | None) -> list[str]:
    if isinstance(given, str):
        raise InvalidFilter(f"{name}: {given!r} is one text: give a list of them", value=given)
    return [_of_type(name, one, str) for one in given or ()]


def _of_type(name: str, value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise InvalidFilter(f"{name}: {value!r} is no {kinds[0].__name__}", value=repr(value))
    return value


def _ids(given: Any) -> list[int]:
    if isinstance(given, int):
        raise InvalidFilter(f"{given!r} is one message id: give a list of them", value=given)
    ids = list(given or ())
    for id in ids:
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < 1 << 63:
            raise InvalidFilter(f"a message id is a number from 0 up, not {id!r}", value=repr(id))
    return ids


def _bucket_ms(seconds: Any) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not abs(seconds) < _MAX_BUCKET_SECONDS:
        raise InvalidFilter(f"a bucket of {seconds!r}: give a number of seconds", value=repr(seconds))
    return round(1000 * seconds)  # the broker says what is allowed


def _headers(given: Headers | None) -> dict[str, list[str]]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidFilter(f"{given!r}: give a mapping of headers' names to values", value=repr(given))
    found = {}
    for name, value in (given or {}).items():
        several = not isinstance(value, (str, int, float)) and isinstance(value, Iterable)
        _of_type("the name of a header", name, str)
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


def _floor(at: Any) -> int | None:
    """The last millisecond that is not after this time."""
    return None if at is None else at if type(at) is int else _since_epoch(at) // _MS


def _ceil(at: Any) -> int | None:
    """The first millisecond that is not before this time."""
    return None if at is None else _start(at)


def _start(at: Any) -> int:
    return at if type(at) is int else -(-_since_epoch(at) // _MS)


def _since_epoch(at: Any) -> timedelta:
    if not isinstance(at, datetime):
        raise InvalidFilter(f"{at!r} is no time: give a datetime, or milliseconds since the epoch", value=repr(at))
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH
