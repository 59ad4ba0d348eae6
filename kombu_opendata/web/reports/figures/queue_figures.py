"""The figures of all queues, as they were a moment ago."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ....control_queues import is_control_queue
from ....queue_client.queue_models import QueueMetrics
from ...brokers import UserBroker

#: how old they may be: all views and all open pages share one answer
_SECONDS = 1.9


@dataclass(frozen=True)
class QueueFigures:
    """Every queue that the user may see.

    Attributes:
        queues: without those that Celery makes for itself.
        control_queues: those.
        clock_ahead_seconds: of the broker's clock, compared with this host's.
    """

    queues: list[QueueMetrics]
    control_queues: list[QueueMetrics]
    clock_ahead_seconds: float


async def queue_figures(broker: UserBroker) -> QueueFigures:
    """The figures of all queues."""

    async def ask() -> QueueFigures:
        before = time.time()
        found = broker.metrics = await broker.client.metrics_update(broker.metrics)
        after, at = time.time(), found.at.timestamp()
        kinds: tuple[list[QueueMetrics], list[QueueMetrics]] = [], []
        for name, one in found.queues.items():
            kinds[is_control_queue(name)].append(one)
        return QueueFigures(*kinds, min(at - before, 0.0) + max(at - after, 0.0))

    return await broker.recent("metrics", _SECONDS, ask)
