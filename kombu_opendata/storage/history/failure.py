"""Failures: their position among all, their facts from the history, their filters, and the cursors of pages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ...errors import InvalidFilter
from ...protocol.task_reports import FAILED as TASKS_FAILED
from ...selectors import Selector
from ..records.failures import NO_FAILURE, TaskFailure
from ..state.settled_list import ListName
from . import query
from .query import FOREVER

FAILED, ARCHIVED, ACKNOWLEDGED = "failed", "archived", "acknowledged"
KINDS = (FAILED, ACKNOWLEDGED, ARCHIVED)
#: the settled lists of the kinds that have one
LIST_OF: dict[str, ListName] = {FAILED: "failed", ARCHIVED: "archived_failed"}

DELIVERY_LIMIT = "delivery_limit"
#: states of tasks that failed, which are the reasons of their failures
STATES = tuple(state.name.lower() for state in TASKS_FAILED)
#: dimensions by which failures can be grouped
DIMENSIONS = ("task", "exception", "queue", "reason", "worker")


class FailurePosition(NamedTuple):
    """The position of a failure among all, by time."""

    at_ms: int
    message_id: int
    queue: str


class OpenFailure(NamedTuple):
    """A failure that was not handled yet. Tuples sort by position.

    Attributes:
        at_ms: the end of the message's last attempt.
        place: the bucket of the failed list that has the message, or the number of the acknowledged attempt.
        attempts: the number of claims of the message.
    """

    at_ms: int
    message_id: int
    queue: str
    kind: str
    place: int
    attempts: int

    @property
    def position(self) -> FailurePosition:
        return FailurePosition(self.at_ms, self.message_id, self.queue)


class Facts(msgspec.Struct, frozen=True, gc=False):
    """The facts of a failure that history has; they never change.

    ``number`` is the number of the last attempt in the log, -1 if the log lacks it; ``detailed`` is True if its error
    is stored.
    """

    number: int = -1
    reason: str = ""
    exception: str = ""
    worker: str = ""
    task: str = ""
    task_id: str = ""
    runtime_us: int = 0
    detailed: bool = False


class Failure(NamedTuple):
    """A failure and its facts; in a page with the texts of its error, if it has one."""

    open: OpenFailure
    facts: Facts
    text: TaskFailure = NO_FAILURE


#: message ids and task ids of one call, as for other calls that take such lists
_MAX_IDS = 100_000
#: the most ids that are looked up in the index
SEARCHED = 1000
_CURSOR_VERSION = 1
REASONS = (*STATES, DELIVERY_LIMIT)


class FailureFilterValues(NamedTuple):
    """The filters of failures: a failure must match a value of each field that is neither empty nor None.

    The value "" stands for failures without a task, an exception, a reason or a worker.

    ``since_ms`` and ``until_ms`` are both included. ``handled`` selects acknowledged failures that were handled,
    instead of open failures. ``job`` selects those of a staged job whose tasks have no later message; cursors do not
    depend on it.
    """

    queues: tuple[str, ...] = ()
    kinds: tuple[str, ...] = (FAILED, ACKNOWLEDGED)
    tasks: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    ids: frozenset[int] | None = None
    task_ids: frozenset[str] | None = None
    selector: Selector | None = None
    since_ms: int = 0
    until_ms: int = FOREVER
    handled: bool = False
    job: str = ""

    def match(self, failure: Failure) -> bool:
        """Return True if a failure matches all filters but the selector."""
        place, facts = failure.open, failure.facts
        # only the index has the headers of a collected message
        is_trusted = place.kind == ACKNOWLEDGED and not facts.task_id
        return (
            self.since_ms <= place.at_ms <= self.until_ms
            and (self.ids is None or place.message_id in self.ids)
            and (not self.queues or place.queue in self.queues)
            and (not self.tasks or facts.task in self.tasks or (is_trusted and not facts.task))
            and (not self.exceptions or facts.exception in self.exceptions)
            and (not self.reasons or facts.reason in self.reasons)
            and (not self.workers or facts.worker in self.workers)
            and (self.task_ids is None or facts.task_id in self.task_ids or (is_trusted and self.has_few_task_ids))
        )

    @property
    def has_few_task_ids(self) -> bool:
        """True if there are task ids, and few enough to look them up in the index."""
        return self.task_ids is not None and len(self.task_ids) <= SEARCHED

    def digest(self) -> str:
        """Return a digest of the filters; not of the times, which may differ between pages."""
        parts = [sorted(part) if isinstance(part, frozenset) else part for part in self[:8]]
        text = repr((parts, self.selector.text if self.selector else "", self.handled))
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def check_filters(
    *,
    ids: Iterable[int] | None = None,
    task_ids: Iterable[str] | None = None,
    selector: Selector | None = None,
    gte: int | None = None,
    lte: int | None = None,
    handled: bool = False,
    **texts: Iterable[str],
) -> FailureFilterValues:
    """Return the filters, without duplicate values.

    ``texts``: values of the other fields of :class:`FailureFilterValues`.

    Raises:
        InvalidFilter: a kind or a reason that does not exist, or too many values.
    """
    values = FailureFilterValues(
        ids=None if ids is None else frozenset(ids),
        task_ids=None if task_ids is None else frozenset(task_ids),
        selector=selector,
        since_ms=max(0, gte or 0),
        until_ms=FOREVER if lte is None else lte,
        handled=handled,
        job="",
        **{name: tuple(sorted(set(parts))) for name, parts in texts.items()},
    )
    query.check_known(values.kinds, KINDS, "kind of failure")
    query.check_known(values.reasons, (*REASONS, ""), "reason")
    count = sum(map(len, values[:6]))
    if count > query.MAX_VALUES:
        raise InvalidFilter(f"{count} filter values: use at most {query.MAX_VALUES}", limit=query.MAX_VALUES)
    if max(len(values.ids or ()), len(values.task_ids or ())) > _MAX_IDS:
        raise InvalidFilter(f"name at most {_MAX_IDS} ids at a time", limit=_MAX_IDS)
    for time in (gte, lte):
        if time is not None and not -FOREVER < time <= FOREVER:
            raise InvalidFilter("a time must be in milliseconds since the epoch, below 2⁶²", value=time)
    if handled:
        return values._replace(kinds=(ACKNOWLEDGED,))
    return values if values.kinds else values._replace(kinds=(FAILED, ACKNOWLEDGED))


def check_dimensions(by: Iterable[str]) -> tuple[str, ...]:
    """Return the dimensions by which failures are grouped.

    Raises:
        InvalidFilter: a dimension does not exist, or none is given.
    """
    names = tuple(dict.fromkeys(by))
    unknown = [name for name in names if name not in DIMENSIONS]
    if unknown or not names:
        wrong = f"failures are not grouped by {unknown[0]!r}" if unknown else "failures are grouped by something"
        raise InvalidFilter(f"{wrong}: use any of {', '.join(DIMENSIONS)}", value=(unknown or [""])[0])
    return names


def check_bucket(filters: FailureFilterValues, bucket_ms: int, now_ms: int) -> None:
    """Check the length of the buckets of time in which failures are counted; 0 means none.

    Raises:
        InvalidFilter: it is negative, or there are too many buckets from the first time to the last, or to now.
    """
    if bucket_ms:
        query.check_buckets(filters.since_ms, max(min(filters.until_ms, now_ms), filters.since_ms) + 1, bucket_ms)


# ---------------------------------------------------------------------- cursors
_encode = msgspec.msgpack.Encoder().encode
#: version, digest of the filters, True if descending; and the position: time, message id, queue
_decode = msgspec.msgpack.Decoder(tuple[int, str, bool, int, int, str]).decode


def make_cursor(filters: FailureFilterValues, at: FailurePosition, *, descending: bool) -> str:
    packed = _encode((_CURSOR_VERSION, filters.digest(), descending, *at))
    return query.cursor_text(packed)


def read_cursor(text: str, filters: FailureFilterValues, *, descending: bool) -> FailurePosition:
    """Decode the position of a cursor.

    Raises:
        MalformedCursor, CursorVersionMismatch, CursorOfOtherFilters: not a cursor of this list.
    """
    try:
        version, digest, is_descending, at_ms, message_id, queue = _decode(query.cursor_bytes(text))
    except ValueError as exc:  # not MessagePack, other fields, or not UTF-8
        raise query.malformed_cursor(text) from exc
    if version != _CURSOR_VERSION:
        raise query.cursor_of_other_version(version, _CURSOR_VERSION)
    if (digest, is_descending) != (filters.digest(), descending):
        raise query.cursor_of_other_filters()
    return FailurePosition(at_ms, message_id, queue)
