"""Metrics of the last ten minutes, from the broker's memory: charts, lines, trends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ....queue_client.queue_models import FigureSeries, RecentFigures
from ...brokers import UserBroker

#: maximum age; the broker takes a sample every five seconds
_SECONDS = 10.0


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


async def recent_figures(broker: UserBroker, queues: Iterable[str]) -> RecentFigures:
    """Return the recent metrics of these queues, at most 1,000, and of all together."""
    names = tuple(queues)
    return await broker.recent(("figures", names), _SECONDS, lambda: broker.client.figures(names))


def charts(recent: RecentFigures, series: FigureSeries | None) -> tuple[Chart, ...]:
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


def trend(recent: RecentFigures, queue: str) -> Trend | None:
    """Return the trend of a queue; None if it is not known yet."""
    series = recent.queues.get(queue)
    if series is None:
        return None
    known = [at for at, ready in enumerate(series.ready) if ready is not None]
    if len(known) < 2:
        return None
    first = known[0]
    published = acked = 0.0
    for at in range(first + 1, len(recent.times)):
        seconds = (recent.times[at] - recent.times[at - 1]).total_seconds()
        published += (series.published_per_second[at] or 0) * seconds
        acked += (series.acked_per_second[at] or 0) * seconds
    seconds = (recent.times[-1] - recent.times[first]).total_seconds()
    return Trend(seconds, series.ready[first] or 0, round(published), round(acked))
