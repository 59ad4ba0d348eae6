"""What may be asked of history, checked: filters, times, orders, limits; and the cursors of pages."""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ....errors import (
    CursorOfAnotherList,
    CursorOfOtherFilters,
    CursorVersionMismatch,
    InvalidFilter,
    LimitOutOfRange,
    MalformedCursor,
    TooManyCursors,
)
from ...records.history_log import OUTCOMES
from .live_messages import AVAILABLE, IN_FLIGHT

MAX_LIMIT = 1000
#: values of all filters together
MAX_VALUES = 1000
MAX_BUCKETS = 1000
MESSAGE_STATUSES = (AVAILABLE, IN_FLIGHT, "done", "failed")
ATTEMPT_OUTCOMES = tuple(dict.fromkeys(OUTCOMES))
ORDERS = ("desc", "asc")
MESSAGES, ATTEMPTS = "messages", "attempts"

_MAX_MS = 1 << 62
_KINDS = {MESSAGES: 1, ATTEMPTS: 2}
_CURSOR_VERSION = 1
#: kind, version, digest of the filters, time, number
_CURSOR = struct.Struct(">BB8sqQ")
_KIND_AND_VERSION = 2


class Filters(NamedTuple):
    """What a list is cut down to; an empty field does not. Within a field any value will do, the fields all count.

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
    until_ms: int = _MAX_MS

    def has_time(self, at_ms: int) -> bool:
        """Whether a time is within the limits."""
        return self.since_ms <= at_ms <= self.until_ms

    def has_headers(self, headers: Mapping[str, str]) -> bool:
        """Whether a message's headers are as wanted."""
        return all(headers.get(name) in texts for name, texts in self.headers)


class Position(NamedTuple):
    """A place in a list: a message's or an attempt's time and number."""

    at_ms: int
    number: int


class Paging(NamedTuple):
    """Which page: so many items after or before a position, or from the start."""

    descending: bool
    limit: int
    start: Position | None = None
    backward: bool = False


def check_filters(
    *,
    queues: Iterable[str] | None = None,
    statuses: Iterable[str] | None = None,
    outcomes: Iterable[str] | None = None,
    headers: Mapping[str, Sequence[str]] | None = None,
    ids: Iterable[int] | None = None,
    consumers: Iterable[str] | None = None,
    manual: bool | None = None,
    gte: int | None = None,
    lte: int | None = None,
    gt: int | None = None,
    lt: int | None = None,
) -> Filters:
    """The filters, each value once. None and nothing in it are both no filter.

    Raises:
        InvalidFilter: a status or an outcome that does not exist, or too many values.
    """
    found = Filters(
        tuple(sorted(set(queues or ()))),
        tuple(sorted(set(statuses or ()))),
        tuple(sorted(set(outcomes or ()))),
        tuple(sorted((name, tuple(sorted(set(texts)))) for name, texts in (headers or {}).items() if texts)),
        tuple(sorted(set(ids or ()))),
        tuple(sorted(set(consumers or ()))),
        manual,
        max(0, *(limit for limit in (gte, None if gt is None else gt + 1) if limit is not None), 0),
        min(_MAX_MS, *(limit for limit in (lte, None if lt is None else lt - 1) if limit is not None), _MAX_MS),
    )
    for given, known, what in (
        (found.statuses, MESSAGE_STATUSES, "status"),
        (found.outcomes, ATTEMPT_OUTCOMES, "outcome"),
    ):
        unknown = sorted(set(given).difference(known))
        if unknown:
            raise InvalidFilter(f"no {what} {unknown[0]!r}: there are {', '.join(known)}", value=unknown[0])
    if any(limit is not None and not -_MAX_MS < limit < _MAX_MS for limit in (gte, lte, gt, lt)):
        raise InvalidFilter("a time is in milliseconds since the epoch, below 2⁶²")
    count = sum(map(len, (found.queues, found.ids, found.consumers))) + sum(len(texts) for _, texts in found.headers)
    if count > MAX_VALUES:
        raise InvalidFilter(f"{count} values to look for: ask for at most {MAX_VALUES} at a time", limit=MAX_VALUES)
    if any(not 0 <= id < 1 << 63 for id in found.ids):
        raise InvalidFilter("a message id is a number from 0 up")
    return found


def check_paging(
    kind: str, filters: Filters, *, order: str, limit: int, after: str | None, before: str | None
) -> Paging:
    """Which page is asked for.

    Raises:
        LimitOutOfRange, InvalidFilter: a limit or an order that does not exist.
        TooManyCursors: both cursors.
        MalformedCursor, CursorOfAnotherList, CursorVersionMismatch, CursorOfOtherFilters: not a cursor for this.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise LimitOutOfRange(
            f"a page of {limit} items: ask for 1 to {MAX_LIMIT}", value=limit, lowest=1, highest=MAX_LIMIT
        )
    if order not in ORDERS:
        raise InvalidFilter(f"no order {order!r}: there are {', '.join(ORDERS)}", value=order)
    if after and before:
        raise TooManyCursors("both a next and a prev cursor were given: give the one of the page that is wanted")
    text = after or before
    start = read_cursor(text, kind, filters, order) if text else None
    return Paging(order == ORDERS[0], limit, start, bool(before))


class Buckets(NamedTuple):
    """Times of equal length from ``start_ms`` on."""

    start_ms: int
    bucket_ms: int
    number: int

    def number_of(self, at_ms: int) -> int:
        """Which bucket a time is in."""
        return (at_ms - self.start_ms) // self.bucket_ms


def check_buckets(gte: int, lt: int, bucket_ms: int) -> Buckets:
    """The buckets of a count, aligned to multiples of their length since the epoch.

    Raises:
        InvalidFilter: no time, or too many buckets.
    """
    if bucket_ms < 1:
        raise InvalidFilter(f"a bucket of {bucket_ms} ms: it has at least 1 ms", value=bucket_ms)
    if not 0 <= gte < lt < _MAX_MS:
        raise InvalidFilter(f"no time from {gte} to {lt} ms since the epoch: give gte below lt", gte=gte, lt=lt)
    start = gte // bucket_ms * bucket_ms
    count = -(-(lt - start) // bucket_ms)
    if count > MAX_BUCKETS:
        raise InvalidFilter(
            f"{count} buckets of {bucket_ms} ms: at most {MAX_BUCKETS}; make them longer or the time shorter",
            value=count,
            limit=MAX_BUCKETS,
        )
    return Buckets(start, bucket_ms, count)


# ---------------------------------------------------------------------- cursors
def make_cursor(kind: str, filters: Filters, *, descending: bool, at: Position) -> str:
    """The text that stands for a position in a list."""
    order = ORDERS[0] if descending else ORDERS[1]
    packed = _CURSOR.pack(_KINDS[kind], _CURSOR_VERSION, _digest(filters, order), at.at_ms, at.number)
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def read_cursor(text: str, kind: str, filters: Filters, order: str) -> Position:
    """The position that a cursor stands for."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as exc:
        raise _malformed(text) from exc
    if len(raw) < _KIND_AND_VERSION or raw[0] not in _KINDS.values():
        raise _malformed(text)
    if raw[0] != _KINDS[kind]:
        other = next(name for name, number in _KINDS.items() if number == raw[0])
        raise CursorOfAnotherList(f"a cursor of a list of {other} does not fit one of {kind}", kind=other, wanted=kind)
    if raw[1] != _CURSOR_VERSION:
        raise CursorVersionMismatch(
            f"a cursor of version {raw[1]}, this broker makes version {_CURSOR_VERSION}: begin with the first page",
            version=raw[1],
            supported=_CURSOR_VERSION,
        )
    if len(raw) != _CURSOR.size:
        raise _malformed(text)
    _kind, _version, digest, at_ms, number = _CURSOR.unpack(raw)
    if at_ms < 0 or number >= 1 << 63:
        raise _malformed(text)
    if digest != _digest(filters, order):
        raise CursorOfOtherFilters(
            "the cursor is of a list with other filters or another order: give it with those of the first page"
        )
    return Position(at_ms, number)


def _malformed(text: str) -> MalformedCursor:
    return MalformedCursor(f"{text[:80]!r} is no cursor: give the next or prev of a page, unchanged", cursor=text[:80])


def _digest(filters: Filters, order: str) -> bytes:
    """What tells lists apart. Without the limit: pages may change their size on the way."""
    return hashlib.blake2b(repr((tuple(filters), order)).encode("utf-8", "surrogatepass"), digest_size=8).digest()
