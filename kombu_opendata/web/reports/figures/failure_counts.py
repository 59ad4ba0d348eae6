"""Counts of unhandled failures in each queue, including tasks that were acknowledged before they failed."""

from __future__ import annotations

from dataclasses import replace

from ....errors import AccessRefused
from ....queue_client.queue_models import QueueMetrics
from ...brokers import UserBroker

#: maximum age; counting is more work for the broker than other metrics
_SECONDS = 10.0


async def failures_by_queue(broker: UserBroker, patience: float | None = None) -> dict[str, int]:
    """Return the failures of each queue that has some, without queues that the user may not read.

    Raises:
        TimeoutError: the broker has not finished counting after ``patience`` seconds, as after its startup.
    """

    async def ask() -> dict[str, int]:
        try:
            grouped = await broker.client.group_failures(["queue"])
        except AccessRefused:
            return {}
        return {group.values[0]: group.count for group in grouped.groups}

    return await broker.recent("failures by queue", _SECONDS, ask, patience=patience)


async def with_failures(
    broker: UserBroker, queues: list[QueueMetrics], patience: float | None = None
) -> list[QueueMetrics]:
    """Return the metrics with ``failed`` as the number of all unhandled failures of the queue.

    If the broker has not finished counting after ``patience`` seconds, ``failed`` is the length of the failed list.
    """
    try:
        counts = await failures_by_queue(broker, patience)
    except TimeoutError:
        return queues
    return [
        replace(metrics, failed=counts[metrics.queue]) if metrics.queue in counts else metrics for metrics in queues
    ]
