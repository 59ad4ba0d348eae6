"""The messages about failures (docs/rfcs/0007-history.md): list and group them, run them again, dismiss them.

A failure is a message in a queue's failed list, or an acknowledged task that did not succeed, until somebody handles
it.
"""

from __future__ import annotations

import msgspec

from ..frame_limits import Many
from .message_base import Numbered


class FailureInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A failure.

    Attributes:
        kind: ``failed`` (the message is in its queue's failed list), ``archived`` (in its list of archived failed
            messages) or ``acknowledged`` (the message is done, but its task failed).
        task: the name of a Celery task.
        task_id: its id, while its message is stored.
        reason: ``raised``, ``timed_out``, ``lost`` (the worker or its process ended) or ``rejected``; without a report
            of a worker ``rejected`` or ``delivery_limit`` (no attempts were left); empty if it is not known any more.
        exception: the type of the exception, if the worker reported it.
        error: its message.
        worker: the name of the consumer that had the message last.
        failed_at_ms: when the last attempt ended.
        attempts: how often the message was claimed.
        attempt: the id of the last attempt in the history; empty if it is not there (any more).
        traceback: if it was asked for.
        handled: how an acknowledged failure was handled: ``retried`` or ``dismissed``; empty while it is open.
        handled_at_ms: when.
        retried_as: the id of the message that runs the task again.
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


class FailureGroup(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Failures with the same values of what they are grouped by.

    Attributes:
        values: one for each field that they are grouped by, in the same order.
        count: how many failures there are.
        acknowledged: how many of them are of the kind ``acknowledged``.
        first_at_ms: when the first of them failed.
        last_at_ms: when the last of them failed.
        over_time: how many failed in each bucket of time, by its start in ms, without zeros; if it was asked for.
    """

    values: tuple[str, ...]
    count: int
    acknowledged: int
    first_at_ms: int
    last_at_ms: int
    over_time: dict[int, int] = {}


class FailureQuery(Numbered, kw_only=True):
    """Selects failures: a failure must have one value of each list that is not empty.

    ``kinds`` are as in FailureInfo; none mean ``failed`` and ``acknowledged``. ``ids`` are message ids. The metadata
    headers of the message must match ``selector``, unless that is empty. The times are those of the failures.
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


# ------------------------------------------------------------------ client → broker
class ListFailures(FailureQuery, tag=210, kw_only=True):
    """List a page of failures by time. Answer: FailurePage.

    ``order`` is ``desc`` or ``asc``, ``next`` the cursor of an earlier page. ``tracebacks`` asks for these.
    ``handled``: acknowledged failures that were handled, instead of open ones.
    """

    order: str = "desc"
    limit: int = 100
    next: str | None = None
    tracebacks: bool = False
    handled: bool = False


class GroupFailures(FailureQuery, tag=211, kw_only=True):
    """Count failures by any of task, exception, queue, reason and worker. Answer: FailureGroups.

    ``bucket_ms``: count them in buckets of time as well, which are multiples of it since the epoch; 0 for no buckets.
    """

    by: Many[str] = msgspec.field(default_factory=list)
    bucket_ms: int = 0


class RetryFailures(FailureQuery, tag=212, kw_only=True):
    """Run failures again, the oldest first, for about half a second. Answer: FailuresRetried.

    A failed message becomes available again, with no attempts. The task of an acknowledged message is published again
    as a new message. Both go to ``target``, or to their own queues if that is empty. At most ``limit`` are run (0:
    all). A call with the ``next`` and the ``until_ms`` of an answer goes on after it.
    """

    target: str = ""
    limit: int = 0
    next: str | None = None
    until_ms: int = 0


class DismissFailures(FailureQuery, tag=213, kw_only=True):
    """Delete failed messages, and note acknowledged failures as handled. The rest is as in RetryFailures.

    Answer: FailuresDismissed.
    """

    limit: int = 0
    next: str | None = None
    until_ms: int = 0


# ------------------------------------------------------------------ broker → client
class FailurePage(Numbered, tag=214):
    """Failures, and the cursor of the next page, if any. A page may have fewer than its limit."""

    items: tuple[FailureInfo, ...]
    next: str | None = None


class FailureGroups(Numbered, tag=215):
    """The groups, the largest first; ``complete`` is false if there were too many failures to look at all."""

    groups: tuple[FailureGroup, ...]
    complete: bool = True


class FailuresRetried(Numbered, tag=216):
    """What was done in this step, and where to go on; ``next`` is None at the end.

    ``redriven`` failed messages are available again, and ``published`` tasks were published again. The others stayed:
    ``already`` (the target has the message), ``expired`` (their TTL is over), ``waiting`` (dead letters that are not
    published yet), ``unmatched`` (the filter of the target does not match them), ``collected`` (the message is no
    longer stored), ``not_tasks`` (the message is not a Celery task), ``without_queue`` (the queue was deleted),
    ``paused`` (an operator has paused publishes to the queue), ``damaged`` (the message can't be read; ``damage`` says
    why the first of them can't). ``full`` is the queue that takes no more; then the rest waits.
    """

    redriven: int
    published: int
    already: int
    expired: int
    waiting: int
    unmatched: int
    collected: int
    not_tasks: int
    without_queue: int
    paused: int
    full: str
    next: str | None
    until_ms: int
    damaged: int = 0
    damage: str = ""


class FailuresDismissed(Numbered, tag=217):
    """How many failed messages were deleted and acknowledged failures dismissed, and where to go on."""

    deleted: int
    dismissed: int
    next: str | None
    until_ms: int
