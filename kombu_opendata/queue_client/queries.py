"""Queries of the history and of failures: the filters that users give, and their conversion to requests.

Times are milliseconds since the Unix epoch, or :class:`~datetime.datetime` (UTC if it has no time zone). Filters that
are None or empty do not filter. An item must match all filters, each by one of its values. An unknown argument is a
TypeError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, TypedDict, TypeVar

from ..errors import InvalidFilter
from ..protocol.envelope import header_text
from ..protocol.messages.message_base import Numbered
from .checks import wire_state

R = TypeVar("R", bound=Numbered)
Time = int | datetime
Header = str | int | float | bool
Headers = Mapping[str, Header | Iterable[Header]]

_MS = timedelta(milliseconds=1)
_MAX_BUCKET_SECONDS = 1e13
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PageOf(TypedDict, total=False):
    """Time range and page.

    Attributes:
        gte, lte: times at or later, at or earlier.
        gt, lt: times later, earlier.
        order: ``desc`` (newest first, the default) or ``asc``.
        limit: 1 to 1,000, by default 100.
        next: a page's cursor ``next``, to get the page after it.
        prev: a page's cursor ``prev``, to get the page before it.
    """

    gte: Time | None
    lte: Time | None
    gt: Time | None
    lt: Time | None
    order: str
    limit: int
    next: str | None
    prev: str | None


class MessageFilters(TypedDict, total=False):
    """Filters for messages.

    Attributes:
        queues: messages that were routed to one of these queues.
        statuses: messages with the status ``ready``, ``in_flight``, ``running``, ``done`` or ``failed`` in a queue; in
            one of ``queues`` if these are set.
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


class FailureFilters(TypedDict, total=False):
    """Filters for failures.

    An empty text among tasks, exceptions, reasons or workers selects failures without such a value.

    Attributes:
        kinds: ``failed``, ``acknowledged`` (these two by default) or ``archived``.
        tasks: names of Celery tasks.
        exceptions: types of exceptions.
        reasons: ``raised``, ``timed_out``, ``lost``, ``rejected`` or ``delivery_limit``.
        workers: names of consumers.
        ids: ids of messages.
        task_ids: Celery's ids.
        where: a filter that the message's headers must match.
        gte: failed at this time or later.
        lte: failed at this time or earlier.
    """

    queues: Iterable[str] | None
    kinds: Iterable[str] | None
    tasks: Iterable[str] | None
    exceptions: Iterable[str] | None
    reasons: Iterable[str] | None
    workers: Iterable[str] | None
    ids: Iterable[int] | None
    task_ids: Iterable[str] | None
    where: str
    gte: Time | None
    lte: Time | None


class FailureList(FailureFilters, total=False):
    """Query for a page of failures.

    Attributes:
        order: ``desc`` (newest first, the default) or ``asc``.
        limit: 1 to 1,000, by default 100.
        next: the cursor of an earlier page.
        tracebacks: include them.
        handled: list the acknowledged failures that were retried or deleted, not the unhandled ones.
    """

    order: str
    limit: int
    next: str | None
    tracebacks: bool
    handled: bool


def request(call: str, kind: type[R], query: Mapping[str, Any], arguments: Any, **fields: Any) -> R:
    """Return the request of a query.

    Args:
        call: the name of the call, for errors.
        kind: the type of the request, whose defaults stand for missing arguments.
        arguments: the TypedDict of the arguments.
        fields: further fields of the request.

    Raises:
        TypeError: an argument is unknown or missing.
        InvalidFilter: a value is not valid.
    """
    required = arguments.__required_keys__
    for name in query:
        if name not in required | arguments.__optional_keys__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
    for name in sorted(required - query.keys()):
        raise TypeError(f"{call}() missing required keyword argument {name!r}")
    for name, value in query.items():
        if value is None and name in _OPTIONAL and name not in required:
            continue
        fields[_FIELDS.get(name, name)] = _CONVERSIONS[name](name, value)
    return kind(rid=0, **fields)


def texts(name: str, values: Iterable[str] | None) -> list[str]:
    """Return texts; raise InvalidFilter for anything else."""
    if isinstance(values, str):
        raise InvalidFilter(f"{name}: {values!r} is a single text: give a list of texts", value=values)
    return [of_type(name, value, str) for value in values or ()]


def of_type(name: str, value: Any, *kinds: type) -> Any:
    """Return a value of one of these types; raise InvalidFilter for any other one."""
    if not isinstance(value, kinds):
        raise InvalidFilter(f"{name}: {value!r} is not of type {kinds[0].__name__}", value=repr(value))
    return value


def bucket_ms(_name: str, seconds: Any) -> int:
    """Return the length of a bucket; the broker checks the range."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not abs(seconds) < _MAX_BUCKET_SECONDS:
        raise InvalidFilter(f"{seconds!r} is not a length for a bucket: give a number of seconds", value=repr(seconds))
    return round(1000 * seconds)


def page_limit(_name: str, limit: Any) -> int:
    """Return a limit; the broker checks the range."""
    if not isinstance(limit, int) or isinstance(limit, bool):
        raise InvalidFilter(f"limit: {limit!r} is not a number", value=repr(limit))
    return max(min(limit, 1 << 62), -1 << 62)


def _ids(_name: str, values: Any) -> list[int]:
    if isinstance(values, int):
        raise InvalidFilter(f"{values!r} is a single message id: give a list of ids", value=values)
    ids = list(values or ())
    for id in ids:
        if not isinstance(id, int) or isinstance(id, bool) or not 0 <= id < 1 << 63:
            raise InvalidFilter(f"{id!r} is not a message id: an id is a number from 0 up", value=repr(id))
    return ids


def _headers(_name: str, headers: Any) -> dict[str, list[str]]:
    if not isinstance(headers, Mapping):
        raise InvalidFilter(f"headers: {headers!r} is not a mapping of names to values", value=repr(headers))
    texts_by_name = {}
    for name, value in headers.items():
        several = not isinstance(value, (str, int, float)) and isinstance(value, Iterable)
        of_type("name of a header", name, str)
        texts_by_name[name] = [header_text(item) or str(item) for item in (value if several else [value])]
    return texts_by_name


def _floor_ms(_name: str, at: Any) -> int:
    """Return the last millisecond that is not after this time."""
    return at if type(at) is int else _since_epoch(at) // _MS


def _ceil_ms(_name: str, at: Any) -> int:
    """Return the first millisecond that is not before this time."""
    return at if type(at) is int else -(-_since_epoch(at) // _MS)


def _since_epoch(at: Any) -> timedelta:
    if not isinstance(at, datetime):
        raise InvalidFilter(f"{at!r} is not a time: give a datetime, or milliseconds since the epoch", value=repr(at))
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)) - _EPOCH


def _value(*kinds: type) -> Callable[[str, Any], Any]:
    return lambda name, value: of_type(name, value, *kinds)


_LISTS = (
    "queues", "outcomes", "consumers", "states", "exceptions", "kinds", "tasks", "reasons", "workers",
    "task_ids",
)  # fmt: skip
_CONVERSIONS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(_LISTS, texts),
    **dict.fromkeys(("ids", "message_ids"), _ids),
    **dict.fromkeys(("gte", "lt"), _ceil_ms),
    **dict.fromkeys(("gt", "lte"), _floor_ms),
    **dict.fromkeys(("next", "prev"), _value(str, NoneType)),
    **dict.fromkeys(("order", "where"), _value(str)),
    **dict.fromkeys(("bodies", "tracebacks", "handled"), _value(bool)),
    "statuses": lambda name, values: list(map(wire_state, texts(name, values))),
    "headers": _headers,
    "manual": _value(bool, NoneType),
    "limit": page_limit,
    "bucket_seconds": bucket_ms,
}
#: arguments that may be None
_OPTIONAL = frozenset(
    (*_LISTS, "statuses", "ids", "message_ids", "headers", "manual", "gte", "lte", "gt", "lt", "next", "prev")
)
#: fields of requests with another name than the argument
_FIELDS = {"message_ids": "ids", "where": "selector", "bucket_seconds": "bucket_ms"}
