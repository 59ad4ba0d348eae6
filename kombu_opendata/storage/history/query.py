"""The arguments of queries (filters, times, orders, limits), with their checks, and the cursors of pages."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ... import errors
from ...protocol.task_reports import STATES
from ..records.history_log import OUTCOMES
from .sources import AVAILABLE, IN_FLIGHT, RUNNING

MAX_LIMIT = 1000
#: values of all filters together
MAX_VALUES = 1000
MAX_BUCKETS = 1000
MESSAGE_STATUSES = (AVAILABLE, IN_FLIGHT, RUNNING, "done", "failed")
ATTEMPT_OUTCOMES = tuple(dict.fromkeys(OUTCOMES))
TASK_STATES = STATES[1:]
ORDERS = ("desc", "asc")
MESSAGES, ATTEMPTS = "messages", "attempts"

#: above all times that are stored
FOREVER = 1 << 62
_ATTEMPT = "attempt-"
_ATTEMPT_ID = re.compile(f"{_ATTEMPT}([0-9a-f]{{1,15}})")
_KINDS = {MESSAGES: 1, ATTEMPTS: 2}
_CURSOR_VERSION = 1
#: kind, version, digest of the filters, time, number
_CURSOR = struct.Struct(">BB8sqQ")
_KIND_AND_VERSION = 2


class ListFilters(NamedTuple):
    """The filters of a list: an item must match one value of each field that is not empty.

    ``since_ms`` and ``until_ms`` are both included.
    """

    queues: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()  # of messages
    outcomes: tuple[str, ...] = ()  # of attempts
    headers: tuple[tuple[str, tuple[str, ...]], ...] = ()
    ids: tuple[int, ...] = ()  # of messages
    consumers: tuple[str, ...] = ()
    manual: bool | None = None
    since_ms: int = 0
    until_ms: int = FOREVER
    states: tuple[str, ...] = ()  # of attempts' tasks
    exceptions: tuple[str, ...] = ()

    def has_time(self, at_ms: int) -> bool:
        return self.since_ms <= at_ms <= self.until_ms

    def header_test(self) -> Callable[[Mapping[str, str]], bool]:
        """Build a function that matches a message's headers, with a look-up for each header, not for each value."""
        conditions = [(name, frozenset(texts)) for name, texts in self.headers]
        return lambda headers: all(headers.get(name) in texts for name, texts in conditions)


class ListPosition(NamedTuple):
    """A position in a list: the time and number of a message or an attempt."""

    at_ms: int
    number: int


class Paging(NamedTuple):
    """The selection of a page: up to ``limit`` items after or before a position, or from the start."""

    descending: bool
    limit: int
    start: ListPosition | None = None
    backward: bool = False


def check_filters(
    *,
    headers: Mapping[str, Sequence[str]] | None = None,
    manual: bool | None = None,
    gte: int | None = None,
    lte: int | None = None,
    gt: int | None = None,
    lt: int | None = None,
    **values: Iterable[Any] | None,
) -> ListFilters:
    """Return the filters, without duplicate values. None and an empty collection both mean no filter.

    ``values``: of the other fields of :class:`ListFilters`.

    Raises:
        InvalidFilter: a status or an outcome does not exist, or there are too many values.
    """
    filters = ListFilters(
        headers=tuple(sorted((name, tuple(sorted(set(texts)))) for name, texts in (headers or {}).items() if texts)),
        manual=manual,
        since_ms=max(0, gte or 0, 0 if gt is None else gt + 1),
        until_ms=min(FOREVER if lte is None else lte, FOREVER if lt is None else lt - 1),
        **{name: tuple(sorted(set(parts or ()))) for name, parts in values.items()},
    )
    check_known(filters.statuses, MESSAGE_STATUSES, "status")
    check_known(filters.outcomes, ATTEMPT_OUTCOMES, "outcome")
    check_known(filters.states, TASK_STATES, "task state")
    if any(limit is not None and not -FOREVER < limit < FOREVER for limit in (gte, lte, gt, lt)):
        raise errors.InvalidFilter("a time must be in milliseconds since the epoch, below 2⁶²")
    count = sum(map(len, (filters.queues, filters.ids, filters.consumers, filters.exceptions)))
    count += sum(len(texts) for _, texts in filters.headers)
    if count > MAX_VALUES:
        raise errors.InvalidFilter(f"{count} filter values: use at most {MAX_VALUES}", limit=MAX_VALUES)
    if any(not 0 <= id < 1 << 63 for id in filters.ids):
        raise errors.InvalidFilter("a message id must be from 0 to 2⁶³ - 1")
    return filters


#: the arguments of :func:`check_filters`
FILTERS = frozenset({*ListFilters._fields, "gte", "lte", "gt", "lt"} - {"since_ms", "until_ms"})


def check_known(values: Iterable[str], allowed: Iterable[str], noun: str) -> None:
    """Raise InvalidFilter if one of these values is not allowed."""
    unknown = sorted(set(values).difference(allowed))
    if unknown:
        text = f"there is no {noun} {unknown[0]!r}: use one of {', '.join(filter(None, allowed))}"
        raise errors.InvalidFilter(text, value=unknown[0])


def check_paging(
    kind: str, filters: ListFilters, *, order: str, limit: int, after: str | None, before: str | None
) -> Paging:
    """Return the requested page.

    Raises:
        LimitOutOfRange, InvalidFilter: an invalid limit or order.
        TooManyCursors: both cursors are given.
        MalformedCursor, CursorOfAnotherList, CursorVersionMismatch, CursorOfOtherFilters: not a cursor of this list.
    """
    descending = check_page(order, limit)
    if after and before:
        raise errors.TooManyCursors("both a next and a prev cursor were given: use only one of them")
    text = after or before
    start = read_cursor(text, kind, filters, order) if text else None
    return Paging(descending, limit, start, bool(before))


def check_page(order: str, limit: int) -> bool:
    """Return True if the order is descending.

    Raises:
        InvalidFilter, LimitOutOfRange: an invalid order or limit.
    """
    if not 1 <= limit <= MAX_LIMIT:
        text = f"a page of {limit} items: request 1 to {MAX_LIMIT}"
        raise errors.LimitOutOfRange(text, value=limit, lowest=1, highest=MAX_LIMIT)
    if order not in ORDERS:
        raise errors.InvalidFilter(f"there is no order {order!r}: use {' or '.join(ORDERS)}", value=order)
    return order == ORDERS[0]


class TimeBuckets(NamedTuple):
    """Time intervals of equal length from ``start_ms`` on."""

    start_ms: int
    bucket_ms: int
    number: int

    def number_of(self, at_ms: int) -> int:
        return (at_ms - self.start_ms) // self.bucket_ms


def check_buckets(gte: int, lt: int, bucket_ms: int) -> TimeBuckets:
    """Return the buckets of a count, aligned to multiples of their length since the epoch.

    Raises:
        InvalidFilter: an empty range of time, or too many buckets.
    """
    if bucket_ms < 1:
        raise errors.InvalidFilter(f"a bucket of {bucket_ms} ms: use at least 1 ms", value=bucket_ms)
    if not 0 <= gte < lt < FOREVER:
        text = f"no range from {gte} to {lt} ms: gte must be from 0 up, lt above it and below 2⁶²"
        raise errors.InvalidFilter(text, gte=gte, lt=lt)
    start = gte // bucket_ms * bucket_ms
    count = -(-(lt - start) // bucket_ms)
    if count > MAX_BUCKETS:
        raise errors.InvalidFilter(
            f"{count} buckets of {bucket_ms} ms: at most {MAX_BUCKETS}; make them longer or the range shorter",
            value=count,
            limit=MAX_BUCKETS,
        )
    return TimeBuckets(start, bucket_ms, count)


# ---------------------------------------------------------------------- attempts and cursors
def attempt_number(id: str) -> int:
    """Return the number of an attempt in the log.

    Raises:
        RequestError: the text is not an attempt's id.
    """
    match = _ATTEMPT_ID.fullmatch(id)
    if match is None:
        raise errors.RequestError(f"{id[:80]!r} is not an attempt's id: give an id from a list of attempts", id=id[:80])
    return int(match[1], 16)


def attempt_id(number: int) -> str:
    return f"{_ATTEMPT}{number:x}"


def make_cursor(kind: str, filters: ListFilters, *, descending: bool, at: ListPosition) -> str:
    order = ORDERS[0] if descending else ORDERS[1]
    packed = _CURSOR.pack(_KINDS[kind], _CURSOR_VERSION, _digest(filters, order), at.at_ms, at.number)
    return cursor_text(packed)


def read_cursor(text: str, kind: str, filters: ListFilters, order: str) -> ListPosition:
    raw = cursor_bytes(text)
    if len(raw) < _KIND_AND_VERSION or raw[0] not in _KINDS.values():
        raise malformed_cursor(text)
    if raw[0] != _KINDS[kind]:
        other_kind = next(name for name, number in _KINDS.items() if number == raw[0])
        raise errors.CursorOfAnotherList(
            f"a cursor of a list of {other_kind} does not fit one of {kind}", kind=other_kind, wanted=kind
        )
    if raw[1] != _CURSOR_VERSION:
        raise cursor_of_other_version(raw[1], _CURSOR_VERSION)
    if len(raw) != _CURSOR.size:
        raise malformed_cursor(text)
    _kind, _version, digest, at_ms, number = _CURSOR.unpack(raw)
    if at_ms < 0 or number >= 1 << 63:
        raise malformed_cursor(text)
    if digest != _digest(filters, order):
        raise cursor_of_other_filters()
    return ListPosition(at_ms, number)


def cursor_text(packed: bytes) -> str:
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def cursor_bytes(text: str) -> bytes:
    """Decode the bytes of a cursor.

    Raises:
        MalformedCursor: the text is not that of a cursor.
    """
    try:
        return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as exc:
        raise malformed_cursor(text) from exc


def cursor_of_other_version(version: int, supported: int) -> errors.CursorVersionMismatch:
    text = f"a cursor of version {version}, this broker uses version {supported}: start with the first page"
    return errors.CursorVersionMismatch(text, version=version, supported=supported)


def cursor_of_other_filters() -> errors.CursorOfOtherFilters:
    text = "the cursor belongs to other filters or another order: use it with those of the first page"
    return errors.CursorOfOtherFilters(text)


def malformed_cursor(text: str) -> errors.MalformedCursor:
    return errors.MalformedCursor(f"{text[:80]!r} is not a cursor: use that of a page, unchanged", cursor=text[:80])


def _digest(filters: ListFilters, order: str) -> bytes:
    """Return a digest of the filters and the order; not of the limit, which may change from page to page."""
    # compatible with cursors without states
    fields = tuple(filters) if filters.states or filters.exceptions else filters[:-2]
    return hashlib.blake2b(repr((tuple(fields), order)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
