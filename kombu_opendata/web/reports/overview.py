"""Report of the overview: totals, and every queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...queue_client.queue_models import QueueMetrics
from ..brokers import UserBroker
from .queue_metrics import Chart, all_queues, charts, recent_metrics, with_failures

#: rows of a page of queues
PAGE = 50
_SORTS: dict[str, Callable[[QueueMetrics], float]] = {
    "name": lambda one: 0,
    "ready": lambda one: -one.visible,
    "flight": lambda one: -one.in_flight,
    "delayed": lambda one: -one.delayed,
    "failed": lambda one: -one.failed,
    "age": lambda one: -(one.oldest_age_seconds or 0),
    "in": lambda one: -one.sent_per_second,
    "out": lambda one: -one.acked_per_second,
    "consumers": lambda one: -one.consumers,
}


@dataclass(frozen=True)
class Totals:
    """Sums over all queues; counts are messages."""

    queues: int
    ready: int
    in_flight: int
    delayed: int
    failed: int
    sent_per_second: float
    acked_per_second: float
    oldest_age_seconds: float | None


@dataclass(frozen=True)
class Overview:
    """Queues, and the totals of all.

    ``failed`` counts unhandled failures, including tasks that failed after their acknowledgement.

    Attributes:
        matching: the number of queues that the search matches; ``queues`` is a page of them.
        control: whether the queues that Celery creates for itself are counted and shown.
        hidden: the number of those queues that are not shown.
        ready_recently: for each queue of the page, the number of ready messages over the last ten minutes.
        charts: charts of all queues together; none if the user may not see all.
    """

    totals: Totals
    queues: tuple[QueueMetrics, ...]
    matching: int
    page: int
    pages: int
    sort: str
    search: str
    control: bool
    hidden: int
    ready_recently: dict[str, tuple[int | None, ...]]
    charts: tuple[Chart, ...]


async def overview(
    broker: UserBroker,
    *,
    search: str = "",
    sort: str = "name",
    page: int = 1,
    control: bool = False,
    patience: float | None = None,
) -> Overview:
    """Return a page of queues, and the totals of all, without the queues that Celery creates for itself by default.

    Args:
        patience: see :func:`.with_failures`.
    """
    figures = await all_queues(broker)
    listed = [*figures.queues, *figures.control_queues] if control else figures.queues
    counted = await with_failures(broker, listed, patience)
    matching = [one for one in counted if search.lower() in one.queue.lower()]
    matching.sort(key=lambda one: (_SORTS.get(sort, _SORTS["name"])(one), one.queue))
    pages = max(1, -(-len(matching) // PAGE))
    page = min(max(page, 1), pages)
    queues = tuple(matching[(page - 1) * PAGE : page * PAGE])
    recent = await recent_metrics(broker, [one.queue for one in queues])
    return Overview(
        totals(counted),
        queues,
        len(matching),
        page,
        pages,
        sort,
        search,
        control,
        0 if control else len(figures.control_queues),
        {name: series.ready for name, series in recent.queues.items()},
        charts(recent, recent.total),
    )


def totals(queues: list[QueueMetrics]) -> Totals:
    """Return the sums of these queues."""
    ages = [metrics.oldest_age_seconds for metrics in queues if metrics.oldest_age_seconds is not None]
    return Totals(
        len(queues),
        sum(metrics.visible for metrics in queues),
        sum(metrics.in_flight for metrics in queues),
        sum(metrics.delayed for metrics in queues),
        sum(metrics.failed for metrics in queues),
        sum(metrics.sent_per_second for metrics in queues),
        sum(metrics.acked_per_second for metrics in queues),
        max(ages, default=None),
    )
