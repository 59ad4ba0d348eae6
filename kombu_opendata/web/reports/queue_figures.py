"""The figures of all queues, as they were a moment ago."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ...queue_client.queue_models import QueueMetrics
from ..brokers import Broker

#: how old they may be: all views and all open pages share one answer
_SECONDS = 1.5


@dataclass(frozen=True)
class QueueFigures:
    """Every queue that the user may see, and how far the broker's clock is ahead of this host's."""

    queues: list[QueueMetrics]
    clock_ahead_seconds: float


async def queue_figures(broker: Broker) -> QueueFigures:
    """The figures of all queues."""

    async def ask() -> QueueFigures:
        before = time.time()
        found = broker.metrics = await broker.client.metrics_update(broker.metrics)
        after, at = time.time(), found.at.timestamp()
        return QueueFigures(list(found.queues.values()), min(at - before, 0.0) + max(at - after, 0.0))

    return await broker.recent("metrics", _SECONDS, ask)
