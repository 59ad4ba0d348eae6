"""View of the due times of delayed messages, and of the periodic tasks of Celery's beat."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ...protocol.messages import DueCountsReply, PeriodicTaskEntry
from ...queue_client.metrics import QueueMetrics
from ..reports.paging import Bar
from ..reports.queue_metrics import all_queues
from ..request_context import AVisit
from ..user_clients import UserBroker
from .view import Views

VIEWS = Views("schedules")
#: the spans of charts in hours, with the width of a bar in seconds
SPANS = {1: 120, 6: 900, 24: 3600, 168: 21_600}
#: limit of the queues with a row, those with the most delayed messages first
MAX_QUEUES = 20
#: a periodic task is late when it exceeds its interval by this time
_LATE = timedelta(seconds=10)


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
    bars: tuple[Bar, ...]
    delayed: int
    later: int
    is_estimate: bool
    queues: tuple[QueueDue, ...]
    more_queues: int
    periodic: tuple[Periodic, ...]
    since: datetime | None


@VIEWS.view("/schedules", "schedules.html")
async def get_schedules(visit: AVisit, hours: int = 24, queue: str = "") -> Schedules:
    """Return the due times of delayed messages within 1, 6, 24 or 168 hours, and the periodic tasks of beat.

    ``queue`` limits the delayed messages to one queue.
    """
    broker = visit.broker
    hours = min(SPANS, key=lambda span: abs(span - hours))
    due = await _due(broker, queue, hours)
    metrics = (await all_queues(broker)).queues
    delayed = sorted((each for each in metrics if each.delayed), key=lambda each: (-each.delayed, each.queue))
    queues = [_queue(each, await _due(broker, each.queue, hours), SPANS[hours]) for each in delayed[:MAX_QUEUES]]
    beat = await broker.recent("periodic", 2.0, broker.client.periodic_tasks)
    return Schedules(
        hours=hours,
        queue=queue,
        bars=_bars(due, SPANS[hours]),
        delayed=sum(due.counts) + due.later,
        later=due.later,
        is_estimate=due.is_estimate,
        queues=tuple(queues),
        more_queues=max(len(delayed) - MAX_QUEUES, 0),
        periodic=tuple(_periodic(task, due.at) for task in beat.tasks),
        since=beat.since,
    )


async def _due(broker: UserBroker, queue: str, hours: int) -> DueCountsReply:
    seconds = SPANS[hours]
    names = [queue] if queue else []
    return await broker.recent(
        ("due", queue, hours),
        5.0,
        lambda: broker.client.count_due(names, bucket_seconds=seconds, buckets=3600 * hours // seconds),
    )


def _bars(due: DueCountsReply, seconds: int) -> tuple[Bar, ...]:
    length = timedelta(seconds=seconds)
    return tuple(Bar(due.start + place * length, count) for place, count in enumerate(due.counts))


def _queue(metrics: QueueMetrics, due: DueCountsReply, seconds: int) -> QueueDue:
    first = next((bar.start for bar in _bars(due, seconds) if bar.count), None)
    return QueueDue(metrics.queue, metrics.delayed, sum(due.counts), first)


def _periodic(task: PeriodicTaskEntry, now: datetime) -> Periodic:
    expected = task.last + task.interval if task.interval is not None else None
    is_late = expected is not None and task.interval is not None and now > expected + max(task.interval, _LATE)
    seconds = task.interval.total_seconds() if task.interval is not None else None
    return Periodic(
        task.name, task.task, task.queue, task.count, seconds, task.last, expected, is_late, task.last_message_id
    )
