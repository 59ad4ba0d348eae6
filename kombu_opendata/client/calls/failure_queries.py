"""Requests about failures, and the contents of their replies; filters and times are as for the history.

A failure must match all filters, and any one of the values of each. See
:class:`kombu_opendata.protocol.messages.failure_messages.FailureInfo` for the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, TypedDict, TypeVar

from msgspec.structs import replace

from ...errors import BulkInterrupted, OpenDataError
from ...protocol.messages import (
    DismissFailures,
    FailuresDismissed,
    FailuresRetried,
    GroupFailures,
    ListFailures,
    RetryFailures,
)
from .query_values import Time, bucket_ms, ceil_ms, floor_ms, ids_of, of_type, page_limit, texts

D = TypeVar("D", bound="_Counts")


class FailureFilters(TypedDict, total=False):
    """Filters for failures.

    An empty text among tasks, exceptions, reasons or workers selects failures without such a value.

    Attributes:
        queues: of these queues.
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
        handled: list acknowledged failures that were retried or dismissed instead of open ones.
    """

    order: str
    limit: int
    next: str | None
    tracebacks: bool
    handled: bool


class _Counts:
    """Counts that are summed over several steps."""

    def plus(self: D, answer: Any) -> D:
        """Return the sum of these counts and those of one more step."""
        counts = asdict(self)  # type: ignore[call-overload]
        return type(self)(**{
            name: value + getattr(answer, name) if type(value) is int else getattr(answer, name) or value
            for name, value in counts.items()
        })  # fmt: skip


@dataclass(frozen=True, slots=True)
class Retried(_Counts):
    """Result of a retry.

    Attributes:
        redriven: failed messages that are available again, with the same ids.
        published: acknowledged tasks that were published again, with new ids.
        already: failed messages that stayed because the target has them, and tasks that were retried already.
        expired: failed messages that stayed because their TTL is over.
        waiting: dead letters that stayed because they are not published yet.
        unmatched: failed messages that stayed because the target's filter does not match them.
        collected: tasks whose messages are no longer stored.
        not_tasks: acknowledged messages that are not tasks of Celery.
        without_queue: failures whose queue was deleted.
        paused: failures whose queue takes no messages, because an operator has paused publishes.
        damaged: tasks whose messages can't be read.
        damage: the reason for the first of them.
        full: the name of a queue that reached its limit, or empty; the remaining failures are unchanged.
    """

    redriven: int = 0
    published: int = 0
    already: int = 0
    expired: int = 0
    waiting: int = 0
    unmatched: int = 0
    collected: int = 0
    not_tasks: int = 0
    without_queue: int = 0
    paused: int = 0
    damaged: int = 0
    damage: str = ""
    full: str = ""

    @property
    def handled(self) -> int:
        """Number of retried failures."""
        return self.redriven + self.published

    @property
    def refused(self) -> dict[str, int]:
        """Failures of :attr:`left` that still need a retry.

        The target lacks them, and they were not retried already.
        """
        return {name: count for name, count in self.left.items() if name != "already"}

    @property
    def left(self) -> dict[str, int]:
        """Number of failures that stayed, by reason, without zeros."""
        names = [field.name for field in fields(self)][2:-2]
        return {name: count for name in names if (count := getattr(self, name))}


@dataclass(frozen=True, slots=True)
class Dismissed(_Counts):
    """Numbers of deleted failed messages and of acknowledged failures that are no longer listed."""

    deleted: int = 0
    dismissed: int = 0

    @property
    def handled(self) -> int:
        """Sum of both numbers."""
        return self.deleted + self.dismissed


# ---------------------------------------------------------------------- requests
def _filters(call: str, asked: Any, known: Any = FailureFilters) -> dict[str, Any]:
    for name in asked:
        if name not in known.__optional_keys__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")
    names = ("queues", "kinds", "tasks", "exceptions", "reasons", "workers")
    ids, task_ids = asked.get("ids"), asked.get("task_ids")
    return {
        **{name: texts(name, asked.get(name)) for name in names},
        "ids": None if ids is None else ids_of(ids),
        "task_ids": None if task_ids is None else texts("task_ids", task_ids),
        "selector": of_type("where", asked.get("where", ""), str),
        "gte": ceil_ms(asked.get("gte")),
        "lte": floor_ms(asked.get("lte")),
    }


def list_request(asked: FailureList) -> ListFailures:
    return ListFailures(
        rid=0,
        order=of_type("order", asked.get("order", "desc"), str),
        limit=page_limit(asked.get("limit", 100)),
        next=of_type("next", asked.get("next"), str, type(None)),
        tracebacks=of_type("tracebacks", asked.get("tracebacks", False), bool),
        handled=of_type("handled", asked.get("handled", False), bool),
        **_filters("list_failures", asked, FailureList),
    )


def group_request(by: Iterable[str], bucket_seconds: float, asked: FailureFilters) -> GroupFailures:
    filters = _filters("group_failures", asked)
    return GroupFailures(rid=0, by=texts("by", by), bucket_ms=bucket_ms(bucket_seconds), **filters)


def retry_request(target: str, limit: int, asked: FailureFilters) -> RetryFailures:
    filters = _filters("retry_failures", asked)
    return RetryFailures(rid=0, target=of_type("target", target, str), limit=page_limit(limit), **filters)


def dismiss_request(limit: int, asked: FailureFilters) -> DismissFailures:
    return DismissFailures(rid=0, limit=page_limit(limit), **_filters("dismiss_failures", asked))


# ---------------------------------------------------------------------- steps
S = TypeVar("S", bound=RetryFailures | DismissFailures)


def following(
    request: S, answer: FailuresRetried | FailuresDismissed, done: Retried | Dismissed, limit: int
) -> S | None:
    """Return the request for the next step after this reply; None if the work is done."""
    is_full = isinstance(answer, FailuresRetried) and answer.full != ""
    if answer.next is None or is_full or 0 < limit <= done.handled:
        return None
    left = limit - done.handled if limit else 0
    return replace(request, next=answer.next, until_ms=answer.until_ms, limit=left)


def interrupted(exc: OpenDataError, done: Retried | Dismissed) -> OpenDataError:
    """Return the error to raise in place of one that interrupts the work."""
    if not done.handled:
        return exc
    text = f"interrupted after {done.handled:,} ({exc.text}); call it again to continue with the rest"
    return BulkInterrupted(text, reason=exc.code, **asdict(done))
