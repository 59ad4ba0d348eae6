"""View of the overview, the first one: problems, totals, and every queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...queue_client.metrics import QueueMetrics
from ..access.guard import is_api
from ..reports.attention import attention
from ..reports.attention_rules import AttentionFinding
from ..reports.paging import paged
from ..reports.queue_metrics import Chart, QueueMetricsObject, all_queues, charts, recent_metrics, with_failures
from ..reports.wire_structs import copied
from ..request_context import AVisit
from .view import Context, Views

VIEWS = Views("queues")
#: seconds for which the page waits for the count of failures; a later count is shown with the next update
_PATIENCE = 0.05
_SORTS: dict[str, Callable[[QueueMetrics], float]] = {
    "name": lambda queue: 0,
    "ready": lambda queue: -queue.ready,
    "flight": lambda queue: -queue.in_flight,
    "delayed": lambda queue: -queue.delayed,
    "failed": lambda queue: -queue.failed,
    "age": lambda queue: -(queue.oldest_age_seconds or 0),
    "in": lambda queue: -queue.sent_per_second,
    "out": lambda queue: -queue.acked_per_second,
    "consumers": lambda queue: -queue.consumers,
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
    queues: tuple[QueueMetricsObject, ...]
    matching: int
    page: int
    pages: int
    sort: str
    search: str
    control: bool
    hidden: int
    ready_recently: dict[str, tuple[int | None, ...]]
    charts: tuple[Chart, ...]


@VIEWS.api.get("/attention")
async def list_findings(visit: AVisit) -> list[AttentionFinding]:
    """Return the findings, the most severe first."""
    return await attention(visit.broker)


async def _show(visit: AVisit, search: str = "", sort: str = "name", page: int = 1, control: bool = False) -> Context:
    report = list_queues(visit, search, sort, page, control)
    return dict(zip(("report", "findings"), await asyncio.gather(report, attention(visit.broker)), strict=True))


@VIEWS.view("/", "overview.html", api="/queues", page=_show)
async def list_queues(
    visit: AVisit, search: str = "", sort: str = "name", page: int = 1, control: bool = False
) -> Overview:
    """Return a page of queues, and the totals of all."""
    metrics = await all_queues(visit.broker)
    listed = [*metrics.queues, *metrics.control_queues] if control else metrics.queues
    counted = await with_failures(visit.broker, listed, None if is_api(visit.request.scope) else _PATIENCE)
    matching = [queue for queue in counted if search.lower() in queue.queue.lower()]
    matching.sort(key=lambda queue: (_SORTS.get(sort, _SORTS["name"])(queue), queue.queue))
    rows = paged(matching, page)
    recent = await recent_metrics(visit.broker, [queue.queue for queue in rows.rows])
    return copied(
        Overview,
        rows,
        totals=_totals(counted),
        queues=rows.rows,
        sort=sort,
        search=search,
        control=control,
        hidden=0 if control else len(metrics.control_queues),
        ready_recently={name: series.ready for name, series in recent.queues.items()},
        charts=charts(recent, recent.total),
    )


def _totals(queues: list[QueueMetrics]) -> Totals:
    ages = [queue.oldest_age_seconds for queue in queues if queue.oldest_age_seconds is not None]
    names = ("ready", "in_flight", "delayed", "failed", "sent_per_second", "acked_per_second")
    sums: dict[str, Any] = {name: sum(getattr(queue, name) for queue in queues) for name in names}
    return Totals(len(queues), **sums, oldest_age_seconds=max(ages, default=None))
