"""Messages about failures (docs/rfcs/0007-history.md): list, group, retry and delete them.

A failure is a message in a queue's failed list, or an acknowledged message whose task failed and was not handled yet.
"""

from __future__ import annotations

from typing import Any, Self

import msgspec
from msgspec.structs import asdict, replace

from .. import permissions
from .message_base import Many, Numbered, Reply, Request, WireRecord, operation


class FailureInfo(WireRecord, frozen=True):
    """Failure of a message or task.

    Attributes:
        kind: ``failed`` (the message is in its queue's failed list), ``archived`` (in its list of archived failed
            messages) or ``acknowledged`` (the message is done, but its task failed).
        task: the name of a Celery task.
        task_id: the id of the task, while its message is stored.
        reason: ``raised``, ``timed_out``, ``lost`` (the worker or its process ended) or ``rejected`` if a worker
            reported the task, else ``rejected`` or ``delivery_limit`` (no attempts were left); empty if the reason is
            not stored.
        exception: the type of the exception, if the worker reported it.
        error: the message of the exception.
        worker: the name of the last consumer of the message.
        failed_at_ms: the end of the last attempt.
        attempts: the number of leases of the message.
        attempt: the id of the last attempt in the history; empty if the history does not have it.
        traceback: empty unless requested.
        handled: ``retried`` or ``dismissed`` for an acknowledged failure; empty while it is open.
        retried_as: the id of the message that retries the task; -1 if there is none.
    """

    message_id: int
    queue: str
    kind: str
    task: str
    task_id: str
    reason: str
    exception: str
    error: str
    worker: str
    failed_at_ms: int
    attempts: int
    attempt: str = ""
    runtime_ms: float = 0
    traceback: str = ""
    handled: str = ""
    handled_at_ms: int = 0
    retried_as: int = -1


class FailureGroup(WireRecord, frozen=True):
    """Failures with the same values of the grouping fields.

    Attributes:
        values: the values of the grouping fields, in the order of the request.
        count: the number of failures.
        acknowledged: the number of failures of the kind ``acknowledged``.
        over_time: the number of failures in each bucket of time, by its start in ms, without zeros; empty unless
            requested.
    """

    values: tuple[str, ...]
    count: int
    acknowledged: int
    first_at_ms: int
    last_at_ms: int
    over_time: dict[int, int] = msgspec.field(default_factory=dict)


class FailureQuery(Request[Reply], kw_only=True):
    """Filters for failures: a failure must match a value of each list that is not empty.

    ``kinds`` are as in FailureInfo; an empty list means ``failed`` and ``acknowledged``. ``ids`` are message ids. The
    metadata headers of the message must match ``selector``, unless it is empty. ``gte`` and ``lte`` limit the time of
    the failure, in ms.
    """

    queues: Many[str] = msgspec.field(default_factory=list)
    kinds: Many[str] = msgspec.field(default_factory=list)
    tasks: Many[str] = msgspec.field(default_factory=list)
    exceptions: Many[str] = msgspec.field(default_factory=list)
    reasons: Many[str] = msgspec.field(default_factory=list)
    workers: Many[str] = msgspec.field(default_factory=list)
    ids: Many[int] | None = None
    task_ids: Many[str] | None = None
    selector: str = ""
    gte: int | None = None
    lte: int | None = None


# ------------------------------------------------------------------ broker → client
class FailurePage(Numbered, tag=214):
    """Page of failures, and the cursor of the next page, if any. Any page may have fewer failures than the limit."""

    items: tuple[FailureInfo, ...]
    next: str | None = None


class FailureGroups(Numbered, tag=215):
    """Groups of failures, the largest first; ``complete`` is False if there were too many failures to examine."""

    groups: tuple[FailureGroup, ...]
    complete: bool = True


class BulkStep(Numbered):
    """Counts of one step of a call in several steps; ``next`` is the position of the next step, None at the end."""

    @property
    def values(self) -> dict[str, Any]:
        """Counts, and the texts that explain them."""
        return {name: value for name, value in asdict(self).items() if name not in ("rid", "next", "until_ms")}

    def plus(self, step: Self) -> Self:
        """Return the sum of these counts and those of a later step."""
        sums: dict[str, Any] = {}
        for name, value in self.values.items():
            later = getattr(step, name)
            sums[name] = value + later if type(value) is int else later or value
        return replace(step, **sums)


class FailuresRetried(BulkStep, tag=216):
    """Result of a retry, or of one step: numbers of failures.

    The failures that ``redriven`` and ``published`` do not count are unchanged.
    """

    redriven: int = 0  # failed messages that are ready again
    published: int = 0  # tasks that were published again
    already: int = 0  # the target has the message
    expired: int = 0  # the TTL of the message has passed
    waiting: int = 0  # the message is a dead letter that is not published yet
    unmatched: int = 0  # the filter of the target does not match the message
    collected: int = 0  # the message is no longer stored
    not_tasks: int = 0  # the message is not a Celery task
    without_queue: int = 0  # the queue was deleted
    paused: int = 0  # publishes to the queue are paused
    full: str = ""  # name of a queue that reached its limit, which ended the retry
    next: str | None = None
    until_ms: int = 0
    damaged: int = 0  # the message can't be read
    damage: str = ""  # reason for the first damaged message

    @property
    def handled(self) -> int:
        """Number of retried failures."""
        return self.redriven + self.published

    @property
    def left(self) -> dict[str, int]:
        """Number of unchanged failures by reason, without zeros."""
        counts = {name: value for name, value in self.values.items() if type(value) is int and value}
        return {name: value for name, value in counts.items() if name not in ("redriven", "published")}

    @property
    def refused(self) -> dict[str, int]:
        """Failures of :attr:`left` except those that the target has already."""
        return {name: count for name, count in self.left.items() if name != "already"}


class FailuresDeleted(BulkStep, tag=217):
    """Numbers of deleted failed messages, and of acknowledged failures that are no longer listed."""

    deleted: int = 0
    dismissed: int = 0
    next: str | None = None
    until_ms: int = 0

    @property
    def handled(self) -> int:
        return self.deleted + self.dismissed


# ------------------------------------------------------------------ client → broker
@operation("list failures", permissions.failures, query=True, large=True, filter="selector")
class ListFailures(FailureQuery[FailurePage], tag=210, kw_only=True):
    """Request to list a page of failures by time.

    ``order`` is ``desc`` or ``asc``, ``next`` the cursor of an earlier page. ``tracebacks`` requests the tracebacks.
    ``handled`` requests acknowledged failures that were handled, instead of open failures.
    """

    order: str = "desc"
    limit: int = 100
    next: str | None = None
    tracebacks: bool = False
    handled: bool = False


@operation("group failures", permissions.failures, query=True, large=True, filter="selector")
class GroupFailures(FailureQuery[FailureGroups], tag=211, kw_only=True):
    """Request to count failures by any of task, exception, queue, reason and worker.

    ``bucket_ms`` requests counts by time, in buckets of this length that are aligned to the epoch; 0 means no buckets.
    """

    by: Many[str] = msgspec.field(default_factory=list)
    bucket_ms: int = 0


@operation("retry failures", permissions.retry_failures, query=True, stores=True, large=True, filter="selector")
class RetryFailures(FailureQuery[FailuresRetried], tag=212, kw_only=True):
    """Request to retry failures, the oldest first, for about half a second.

    A failed message becomes ready again, with its attempts reset to 0. The task of an acknowledged message is published
    again as a new message. Both go to ``target`` or, if it is empty, to their own queues. At most ``limit`` failures
    are retried (0: all). A call with the ``next`` and the ``until_ms`` of a reply continues the work.
    """

    target: str = ""
    limit: int = 0
    next: str | None = None
    until_ms: int = 0


@operation("delete failures", permissions.delete_failures, query=True, large=True, filter="selector")
class DeleteFailures(FailureQuery[FailuresDeleted], tag=213, kw_only=True):
    """Request to delete failed messages, and mark acknowledged failures as handled.

    The other fields are as in RetryFailures.
    """

    limit: int = 0
    next: str | None = None
    until_ms: int = 0
