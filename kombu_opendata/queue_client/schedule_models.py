"""Models of due messages and periodic tasks that the clients return. Times are UTC datetimes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..protocol import messages as m
from .message_models import moment


@dataclass(frozen=True)
class DueCounts:
    """Counts of delayed messages by due time.

    Attributes:
        at: the time of the count.
        start: the start of the first bucket, which contains ``at``; each is ``bucket_seconds`` long.
        counts: the count of each bucket.
        later: the number of messages that are due after the last bucket.
        is_estimate: True if some messages are not in memory; up to 256 of these are counted as if they were due evenly
            between the first and the last of them. The sum matches the queue's metrics.
    """

    at: datetime
    start: datetime
    bucket_seconds: float
    counts: tuple[int, ...]
    later: int
    is_estimate: bool


def due_counts(answer: m.DueCountsReply, bucket_ms: int) -> DueCounts:
    """Return the counts of the broker's reply."""
    at, start = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (answer.at_ms, answer.start_ms))
    return DueCounts(at, start, bucket_ms / 1000, tuple(answer.counts), answer.later, answer.is_estimate)


@dataclass(frozen=True)
class PeriodicTask:
    """Periodic task in one queue.

    Attributes:
        name: the name of the entry in beat's schedule; empty if its messages don't have it.
        task: the task's name.
        count: the number of its publishes since the broker started.
        first: the time of its first publish.
        last: the time of its last publish.
        interval: the time between the last two publishes; None if there was only one.
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
    """Periodic tasks, the latest publish first; ``since`` is the time from which the broker recorded them."""

    tasks: tuple[PeriodicTask, ...]
    since: datetime | None


def periodic_tasks(answer: m.PeriodicTaskList) -> PeriodicTasks:
    """Return the tasks of the broker's reply."""
    tasks = (
        PeriodicTask(
            task.name,
            task.task,
            task.queue,
            task.count,
            datetime.fromtimestamp(task.first_at_ms / 1000, UTC),
            datetime.fromtimestamp(task.last_at_ms / 1000, UTC),
            timedelta(milliseconds=task.interval_ms) if task.interval_ms else None,
            task.last_message_id,
        )
        for task in answer.tasks
    )
    return PeriodicTasks(tuple(tasks), moment(answer.since_ms))
