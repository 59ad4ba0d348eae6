"""Report of the due times of delayed messages, and of the periodic tasks of Celery's beat."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ...queue_client.queue_models import QueueMetrics
from ...queue_client.schedule_models import DueCounts, PeriodicTask
from ..brokers import UserBroker
from .queue_metrics import all_queues

#: the spans of charts in hours, with the width of a bar in seconds
SPANS = {1: 120, 6: 900, 24: 3600, 168: 21_600}
#: limit of the queues with a row, those with the most delayed messages first
MAX_QUEUES = 20
#: a periodic task is late when it exceeds its interval by this time
_LATE = timedelta(seconds=10)


@dataclass(frozen=True)
class DueBar:
    """The number of messages due in a span of time, which ends at the start of the next bar."""

    start: datetime
    count: int


@dataclass(frozen=True)
class QueueDue:
    """The delayed messages of a queue.

    Attributes:
        delayed: the number of all delayed messages.
        within: the number that is due within the chart.
        first_at: the start of the bar in which the first of them is due; None if that is after the chart.
    """

    queue: str
    delayed: int
    within: int
    first_at: datetime | None


@dataclass(frozen=True)
class Periodic:
    """A periodic task that beat has published since the broker's startup.

    Attributes:
        name: the name of its entry in beat's schedule; empty if its messages don't have it.
        every_seconds: the time between the last two publishes; None if there was only one.
        next_at: the expected time of the next publish.
        is_late: whether twice the interval has passed since the last publish.
        last_message_id: the id of the last message.
    """

    name: str
    task: str
    queue: str
    count: int
    every_seconds: float | None
    last_at: datetime
    next_at: datetime | None
    is_late: bool
    last_message_id: int


@dataclass(frozen=True)
class Schedules:
    """Delayed messages and periodic tasks.

    Attributes:
        hours: the span of the chart.
        bars: the due times of the delayed messages of all queues, or of ``queue``.
        later: the number of messages due after the chart.
        is_estimate: whether bars may be inexact: messages that are not in memory are counted by their summaries.
        queues: those with the most delayed messages; ``more_queues`` is the number of others.
        since: the time since which the broker has watched for periodic tasks.
    """

    hours: int
    queue: str
    bars: tuple[DueBar, ...]
    delayed: int
    later: int
    is_estimate: bool
    queues: tuple[QueueDue, ...]
    more_queues: int
    periodic: tuple[Periodic, ...]
    since: datetime | None


async def schedules(broker: UserBroker, *, hours: int = 24, queue: str = "") -> Schedules:
    """Return delayed messages within 1, 6, 24 or 168 hours, and periodic tasks.

    Raises:
        NotFound: there is no such queue.
    """
    hours = min(SPANS, key=lambda span: abs(span - hours))
    due = await _due(broker, queue, hours)
    figures = (await all_queues(broker)).queues
    delayed = sorted((one for one in figures if one.delayed), key=lambda one: (-one.delayed, one.queue))
    queues = [_queue(one, await _due(broker, one.queue, hours)) for one in delayed[:MAX_QUEUES]]
    beat = await broker.recent("periodic", 2.0, broker.client.periodic_tasks)
    return Schedules(
        hours,
        queue,
        _bars(due),
        sum(due.counts) + due.later,
        due.later,
        due.is_estimate,
        tuple(queues),
        max(len(delayed) - MAX_QUEUES, 0),
        tuple(_periodic(one, due.at) for one in beat.tasks),
        beat.since,
    )


async def _due(broker: UserBroker, queue: str, hours: int) -> DueCounts:
    seconds = SPANS[hours]
    names = [queue] if queue else []
    return await broker.recent(
        ("due", queue, hours),
        5.0,
        lambda: broker.client.count_due(names, bucket_seconds=seconds, buckets=3600 * hours // seconds),
    )


def _bars(found: DueCounts) -> tuple[DueBar, ...]:
    length = timedelta(seconds=found.bucket_seconds)
    return tuple(DueBar(found.start + place * length, count) for place, count in enumerate(found.counts))


def _queue(figures: QueueMetrics, due: DueCounts) -> QueueDue:
    first = next((bar.start for bar in _bars(due) if bar.count), None)
    return QueueDue(figures.queue, figures.delayed, sum(due.counts), first)


def _periodic(one: PeriodicTask, now: datetime) -> Periodic:
    expected = one.last + one.interval if one.interval is not None else None
    is_late = expected is not None and one.interval is not None and now > expected + max(one.interval, _LATE)
    seconds = one.interval.total_seconds() if one.interval is not None else None
    return Periodic(one.name, one.task, one.queue, one.count, seconds, one.last, expected, is_late, one.last_message_id)
