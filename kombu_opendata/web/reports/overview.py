"""The first view: what needs attention, totals, and every queue."""

from __future__ import annotations

from dataclasses import dataclass

from ...queue_client.queue_models import QueueMetrics
from ..brokers import Broker

#: rows of a page of queues
PAGE = 50
_SORTS = {
    "name": lambda one: one.queue,
    "ready": lambda one: -one.visible,
    "failed": lambda one: -one.failed,
    "age": lambda one: -(one.oldest_age_seconds or 0),
    "rate": lambda one: -(one.sent_per_second + one.acked_per_second),
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
    """What the first view shows."""

    totals: Totals
    queues: tuple[QueueMetrics, ...]
    matching: int
    page: int
    pages: int
    sort: str
    search: str


async def overview(broker: Broker, *, search: str = "", sort: str = "name", page: int = 1) -> Overview:
    """A page of queues, and the totals of all."""
    metrics = await broker.recent("metrics", 1.0, broker.client.metrics_all)
    found = [one for one in metrics.values() if search.lower() in one.queue.lower()]
    found.sort(key=_SORTS.get(sort, _SORTS["name"]))
    pages = max(1, -(-len(found) // PAGE))
    page = min(max(page, 1), pages)
    shown = tuple(found[(page - 1) * PAGE : page * PAGE])
    return Overview(totals(list(metrics.values())), shown, len(found), page, pages, sort, search)


def totals(queues: list[QueueMetrics]) -> Totals:
    """The sums of these queues."""
    ages = [one.oldest_age_seconds for one in queues if one.oldest_age_seconds is not None]
    return Totals(
        len(queues),
        sum(one.visible for one in queues),
        sum(one.in_flight for one in queues),
        sum(one.delayed for one in queues),
        sum(one.failed for one in queues),
        sum(one.sent_per_second for one in queues),
        sum(one.acked_per_second for one in queues),
        max(ages, default=None),
    )
