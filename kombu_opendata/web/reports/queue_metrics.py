"""Metrics that several views share: of queues, of the last ten minutes, and of failures."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

from ...control_queues import is_control_queue
from ...errors import AccessRefused
from ...protocol.messages import MetricSeries, RecentMetrics
from ...queue_client.metrics import QueueMetrics
from ..user_clients import UserBroker
from .wire_structs import WireStruct

#: maximum age of metrics: all open views share one result
_METRICS_SECONDS = 1.9
#: maximum age of recent metrics: the broker takes a sample every five seconds
_RECENT_SECONDS = 10.0
#: maximum age of counts of failures: counting is more work for the broker than other metrics
_FAILURES_SECONDS = 10.0


#: metrics of a queue as the API returns them
QueueMetricsObject = Annotated[QueueMetrics, WireStruct()]


@dataclass(frozen=True)
class AllQueues:
    """Metrics of all queues that the user may see.

    Attributes:
        queues: all queues except those that Celery creates for itself.
        control_queues: the queues that Celery creates for itself.
        clock_ahead_seconds: the difference of the broker's clock to this host's.
    """

    queues: list[QueueMetrics]
    control_queues: list[QueueMetrics]
    clock_ahead_seconds: float


async def all_queues(broker: UserBroker) -> AllQueues:
    """Return the metrics of all queues."""

    async def load() -> AllQueues:
        before = time.time()
        update = broker.metrics = await broker.client.metrics_update(broker.metrics)
        after, at = time.time(), update.at.timestamp()
        kinds: tuple[list[QueueMetrics], list[QueueMetrics]] = [], []
        for name, metrics in update.queues.items():
            kinds[is_control_queue(name)].append(metrics)
        return AllQueues(*kinds, min(at - before, 0.0) + max(at - after, 0.0))

    return await broker.recent("metrics", _METRICS_SECONDS, load)


async def with_failures(
    broker: UserBroker, queues: list[QueueMetrics], patience: float | None = None
) -> list[QueueMetrics]:
    """Return the metrics with ``failed`` as the number of all unhandled failures, including acknowledged tasks.

    ``failed`` stays the number of failed messages for users who may not read failures, and if the broker has not
    finished counting after ``patience`` seconds, as after its startup.
    """

    async def load() -> dict[str, int]:
        try:
            grouped = await broker.client.group_failures(["queue"])
        except AccessRefused:
            return {}
        return {group.values[0]: group.count for group in grouped.groups}

    try:
        counts = await broker.recent("failures by queue", _FAILURES_SECONDS, load, patience=patience)
    except TimeoutError:
        return queues
    return [
        replace(metrics, failed=counts[metrics.queue]) if metrics.queue in counts else metrics for metrics in queues
    ]


# ---------------------------------------------------------------------- the last ten minutes
@dataclass(frozen=True)
class ChartLine:
    """A line of a chart; a value is None where it is unknown. The colour is one of app.css."""

    label: str
    color: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Chart:
    """Lines over the same times, which are seconds since the epoch."""

    title: str
    times: tuple[int, ...]
    series: tuple[ChartLine, ...]


@dataclass(frozen=True)
class Trend:
    """The development of a queue over the last minutes.

    Attributes:
        seconds: the duration; shorter than requested if the broker or the queue is younger.
        ready_before: messages that were ready at its beginning.
        published, settled: messages in that time; settled ones were acknowledged.
    """

    seconds: float
    ready_before: int
    published: int
    settled: int


async def recent_metrics(broker: UserBroker, queues: Iterable[str]) -> RecentMetrics:
    """Return the recent metrics of these queues, at most 1,000, and of all together."""
    names = tuple(queues)
    return await broker.recent(("recent", names), _RECENT_SECONDS, lambda: broker.client.recent_metrics(names))


def charts(recent: RecentMetrics, series: MetricSeries | None) -> tuple[Chart, ...]:
    """Return the charts of a queue, or of all queues together; none without metrics."""
    if series is None:
        return ()
    times = tuple(int(at.timestamp()) for at in recent.times)
    rates = (
        ChartLine("published", "link", series.published_per_second),
        ChartLine("done", "accent", series.acked_per_second),
        ChartLine("failed", "bad", series.failed_per_second),
    )
    levels = (
        ChartLine("ready", "link", series.ready),
        ChartLine("in flight", "accent", series.in_flight),
        ChartLine("delayed", "warn", series.delayed),
    )
    return Chart("Messages per second", times, rates), Chart("Messages", times, levels)


def trend(recent: RecentMetrics, queue: str) -> Trend | None:
    """Return the trend of a queue; None if it is not known yet."""
    series = recent.queues.get(queue)
    known = [at for at, ready in enumerate(series.ready) if ready is not None] if series is not None else []
    if series is None or len(known) < 2:
        return None
    first = known[0]
    published = acked = 0.0
    for at in range(first + 1, len(recent.times)):
        seconds = (recent.times[at] - recent.times[at - 1]).total_seconds()
        published += (series.published_per_second[at] or 0) * seconds
        acked += (series.acked_per_second[at] or 0) * seconds
    seconds = (recent.times[-1] - recent.times[first]).total_seconds()
    return Trend(seconds, series.ready[first] or 0, round(published), round(acked))
