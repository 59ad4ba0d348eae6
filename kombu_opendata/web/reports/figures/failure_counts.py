"""How much failed in each queue and was not handled yet, tasks that were acknowledged before they failed included."""

from __future__ import annotations

from dataclasses import replace

from ....errors import AccessRefused
from ....queue_client.queue_models import QueueMetrics
from ...brokers import UserBroker

#: counting is more work for the broker than other figures
_SECONDS = 10.0


async def failures_by_queue(broker: UserBroker, patience: float | None = None) -> dict[str, int]:
    """The failures of each queue that has some; none of the queues that the user may not read.

    Raises:
        TimeoutError: after ``patience`` seconds, if the broker still counts: it reads much after it was started.
    """

    async def ask() -> dict[str, int]:
        try:
            found = await broker.client.group_failures(["queue"])
        except AccessRefused:
            return {}
        return {group.values[0]: group.count for group in found.groups}

    return await broker.recent("failures by queue", _SECONDS, ask, patience=patience)


async def with_failures(
    broker: UserBroker, queues: list[QueueMetrics], patience: float | None = None
) -> list[QueueMetrics]:
    """The figures with ``failed`` as all failures of the queue that nobody has handled.

    If the broker still counts after ``patience`` seconds, ``failed`` is the length of the failed list.
    """
    try:
        counts = await failures_by_queue(broker, patience)
    except TimeoutError:
        return queues
    return [replace(one, failed=counts[one.queue]) if one.queue in counts else one for one in queues]
