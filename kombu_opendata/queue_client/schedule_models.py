"""What the clients return about what comes: due messages, periodic tasks. Times are UTC datetimes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..protocol import messages as m
from .message_models import moment


@dataclass(frozen=True)
class DueCounts:
    """How many delayed messages are due when.

    Attributes:
        at: when they were counted.
        start: of the first bucket, which is that of ``at``; each is ``bucket_seconds`` long.
        counts: of each bucket.
        later: how many are due after the last bucket.
        is_estimate: where messages are not in memory, up to 256 are counted as if they were due evenly between the
            first and the last of them; the sum is that of the queue's figures.
    """

    at: datetime
    start: datetime
    bucket_seconds: float
    counts: tuple[int, ...]
    later: int
    is_estimate: bool


def due_counts(answer: m.DueCountsReply, bucket_ms: int) -> DueCounts:
    """The counts of the broker's answer."""
    at, start = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (answer.at_ms, answer.start_ms))
    return DueCounts(at, start, bucket_ms / 1000, tuple(answer.counts), answer.later, answer.is_estimate)


@dataclass(frozen=True)
class PeriodicTask:
    """A periodic task in one queue.

    Attributes:
        name: of the entry in beat's schedule; empty if its messages don't have it.
        task: the task's name.
        count: how often it was published since the broker started.
        first: when it was published for the first time.
        last: when it was published last.
        interval: between the last two times; None if there was one.
        last_message_id: the id of the last message.
    """

    name: str
    task: str
    queue: str
    count: int
    first: datetime
    last: datetime
    interval: timedelta | None
    last_message_id: int


@dataclass(frozen=True)
class PeriodicTasks:
    """The periodic tasks, those that were published last first; ``since`` is when the broker began to look."""

    tasks: tuple[PeriodicTask, ...]
    since: datetime | None


def periodic_tasks(answer: m.PeriodicTaskList) -> PeriodicTasks:
    """The tasks of the broker's answer."""
    found = (
        PeriodicTask(
            one.name,
            one.task,
            one.queue,
            one.count,
            datetime.fromtimestamp(one.first_at_ms / 1000, UTC),
            datetime.fromtimestamp(one.last_at_ms / 1000, UTC),
            timedelta(milliseconds=one.interval_ms) if one.interval_ms else None,
            one.last_message_id,
        )
        for one in answer.tasks
    )
    return PeriodicTasks(tuple(found), moment(answer.since_ms))
