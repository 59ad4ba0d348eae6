"""Recent metrics of all queues."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ....control_queues import is_control_queue
from ....queue_client.queue_models import QueueMetrics
from ...brokers import UserBroker

#: maximum age in seconds: all open views share one result
_SECONDS = 1.9


@dataclass(frozen=True)
class QueueFigures:
    """All queues that the user may see.

    Attributes:
        queues: all queues except those that Celery creates for itself.
        control_queues: the queues that Celery creates for itself.
        clock_ahead_seconds: the difference of the broker's clock to this host's.
    """

    queues: list[QueueMetrics]
    control_queues: list[QueueMetrics]
    clock_ahead_seconds: float


async def queue_figures(broker: UserBroker) -> QueueFigures:
    """Return the metrics of all queues."""

    async def ask() -> QueueFigures:
        before = time.time()
        update = broker.metrics = await broker.client.metrics_update(broker.metrics)
        after, at = time.time(), update.at.timestamp()
        kinds: tuple[list[QueueMetrics], list[QueueMetrics]] = [], []
        for name, metrics in update.queues.items():
            kinds[is_control_queue(name)].append(metrics)
        return QueueFigures(*kinds, min(at - before, 0.0) + max(at - after, 0.0))

    return await broker.recent("metrics", _SECONDS, ask)
