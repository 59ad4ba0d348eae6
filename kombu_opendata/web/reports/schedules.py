"""What comes: when delayed messages are due, and what Celery's beat publishes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ...queue_client.queue_models import QueueMetrics
from ...queue_client.schedule_models import DueCounts, PeriodicTask
from ..brokers import UserBroker
from .figures.queue_figures import queue_figures

#: the lengths of charts in hours, with the length of a bar in seconds
SPANS = {1: 120, 6: 900, 24: 3600, 168: 21_600}
#: queues that have a row, those with the most delayed messages first
MAX_QUEUES = 20
#: a periodic task that is so much later than its interval says is late
_LATE = timedelta(seconds=10)


@dataclass(frozen=True)
class DueBar:
    """How many messages are due in a span of time; it ends where the next one starts."""

    start: datetime
    count: int


@dataclass(frozen=True)
class QueueDue:
    """The delayed messages of a queue.

    Attributes:
        delayed: all of them.
        within: those that are due within the chart.
        first_at: when the bar starts in which the first of them is due; None if that is after the chart.
    """

    queue: str
    delayed: int
    within: int
    first_at: datetime | None


@dataclass(frozen=True)
class Periodic:
    """A periodic task that beat has published since the broker started.

    Attributes:
        name: of the entry in beat's schedule; empty if its messages don't have it.
        every_seconds: between the last two times; None if there was one.
        next_at: when it is expected next.
        is_late: whether twice the time between the last two has gone since the last one.
        last_message_id: the message of the last time.
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
    """What comes.

    Attributes:
        hours: how long the chart is.
        bars: when the delayed messages of all queues, or of ``queue``, are due.
        later: how many are due after the chart.
        is_estimate: whether bars may be a little off: messages that are not in memory are counted by their summaries.
        queues: those with the most delayed messages; ``more_queues`` have some, too.
        since: since when the broker has looked for periodic tasks.
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
    """What comes within 1, 6, 24 or 168 hours.

    Raises:
        NotFound: there is no such queue.
    """
    hours = min(SPANS, key=lambda span: abs(span - hours))
    found = await _due(broker, queue, hours)
    figures = (await queue_figures(broker)).queues
    waiting = sorted((one for one in figures if one.delayed), key=lambda one: (-one.delayed, one.queue))
    queues = [_queue(one, await _due(broker, one.queue, hours)) for one in waiting[:MAX_QUEUES]]
    beat = await broker.recent("periodic", 2.0, broker.client.periodic_tasks)
    return Schedules(
        hours,
        queue,
        _bars(found),
        sum(found.counts) + found.later,
        found.later,
        found.is_estimate,
        tuple(queues),
        max(len(waiting) - MAX_QUEUES, 0),
        tuple(_periodic(one, found.at) for one in beat.tasks),
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
    every = one.interval.total_seconds() if one.interval is not None else None
    return Periodic(one.name, one.task, one.queue, one.count, every, one.last, expected, is_late, one.last_message_id)
