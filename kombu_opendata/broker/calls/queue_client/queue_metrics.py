"""GetMetrics: the number of messages in a queue, its counters, and its rates over the last minute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....protocol.messages import queue_messages as q
from ....storage.clock import Clock
from ...delivery.queues import Queues
from ...delivery.time_slices import TimeSlice, encoded
from ...metrics.metrics_changes import InstanceChanges
from ...metrics.metrics_memory import MetricsMemory
from ...metrics.queue_depths import levels
from ...model.queue import BrokerQueue
from ..dispatch.context import Context
from ..dispatch.registry import handles


@dataclass(frozen=True, slots=True)
class MetricsCalls:
    """The calls that read the metrics of queues."""

    _queues: Queues
    _memory: MetricsMemory
    _changes: InstanceChanges
    _clock: Clock

    @handles(q.GetMetrics)
    async def get_metrics(self, call: Context, msg: q.GetMetrics) -> q.Metrics:
        may_watch = call.session.rights.may_watch
        mark, deleted, queues = 0, None, [call.queue(name) for name in msg.queues]
        if not queues and msg.since >= 0:
            mark, queues, deleted = await self._changes.since(msg.since)
        elif not queues:
            queues = list(self._queues.values())
        if not msg.queues:
            queues = [queue for queue in queues if not queue.deleting and may_watch(queue.name)]
        metrics, pace = {}, TimeSlice()
        async for queue in pace.over(queues):
            metrics[queue.name] = encoded(await self._figures(queue, pace))
        deleted = None if deleted is None else [name for name in deleted if may_watch(name)]
        return q.Metrics(msg.rid, self._clock.now_ms(), metrics, mark, deleted)

    async def _figures(self, queue: BrokerQueue, pace: TimeSlice) -> dict[str, Any]:
        now = self._clock.now_ms()
        ready, in_flight, delayed = await levels(queue.messages, now, pace)
        oldest, newest = await _ages(queue, now)
        return {
            "length": ready + in_flight + delayed,
            "visible": ready,
            "in_flight": in_flight,
            "delayed": delayed,
            "oldest_age_seconds": oldest,
            "newest_age_seconds": newest,
            "consumers": len(queue.consumers),
            "paused": queue.is_paused,
            "publishes_paused": queue.refuses_publishes,
            **await queue.settled(),
            **queue.counts.as_dict(),
            **self._memory.rates(queue),
            "counted_since_ms": queue.counts.since_ms,
        }


async def _ages(queue: BrokerQueue, now: int) -> tuple[float | None, float | None]:
    """Return the ages of the oldest and the newest message in seconds, in flight or not; None if there is none."""
    messages = queue.messages
    cold, groups = messages.cold.values(), [ids for ids in (messages.available, messages.in_flight) if ids]
    if not groups and not cold:
        return None, None
    oldest = min([*map(min, groups), *(summary.lowest_id for summary in cold)])
    newest = max([*map(max, groups), *(summary.highest_id for summary in cold)])
    return await queue.age_seconds(oldest, now), await queue.age_seconds(newest, now)
