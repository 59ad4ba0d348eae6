"""GetMetrics: how many messages a queue has now, its counters, and its rates over the last minute."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from ....protocol.messages import queue_messages as q
from ....storage.clock import Clock
from ....storage.read.queue_pages import is_visible
from ...delivery.queues import Queues
from ...delivery.rates import Rates
from ...delivery.time_slices import encoded
from ...model.queue import BrokerQueue
from ..dispatch import required_rights as needs
from ..dispatch.context import Context
from ..dispatch.registry import handles


@dataclass(frozen=True, slots=True)
class MetricsCalls:
    """The calls that read the figures of queues."""

    _queues: Queues
    _rates: Rates
    _clock: Clock

    @handles(q.GetMetrics, needs=needs.on_queues("read", or_role="monitor"), query=True)
    async def get_metrics(self, call: Context, msg: q.GetMetrics) -> q.Metrics:
        queues = [call.queue(name) for name in msg.queues] or [
            queue for queue in self._queues.values() if not queue.deleting and call.session.rights.may_watch(queue.name)
        ]
        found = {}
        for queue in queues:
            found[queue.name] = encoded(await self._figures(queue))
            await asyncio.sleep(0)
        return q.Metrics(msg.rid, self._clock.now_ms(), found)

    async def _figures(self, queue: BrokerQueue) -> dict[str, Any]:
        messages, now = queue.messages, self._clock.now_ms()
        delayed = _delayed(queue, now)
        waiting, held = len(messages), len(messages.in_flight)
        oldest, newest = await _ages(queue, now)
        return {
            "length": waiting + held,
            "visible": max(waiting - delayed, 0),
            "in_flight": held,
            "delayed": min(delayed, waiting),
            "oldest_age_seconds": oldest,
            "newest_age_seconds": newest,
            "consumers": len(queue.consumers),
            "paused": queue.is_paused,
            "publishes_paused": queue.refuses_publishes,
            **await queue.settled(),
            **queue.counts.as_dict(),
            **self._rates.of(queue),
            "counted_since_ms": queue.counts.since_ms,
        }


def _delayed(queue: BrokerQueue, now: int) -> int:
    """How many are not visible yet; an estimate for a cold bucket that has changed since it was unloaded."""
    loaded = sum(not is_visible(entry, now) for entry in queue.messages.available.values())
    return loaded + sum(summary.delayed_at(now) for summary in queue.messages.cold.values())


async def _ages(queue: BrokerQueue, now: int) -> tuple[float | None, float | None]:
    """The ages of the oldest and the newest message in seconds, in flight or not; None if there is none."""
    messages = queue.messages
    ids, cold = [*messages.available, *messages.in_flight], messages.cold.values()
    if not ids and not cold:
        return None, None
    oldest = min([*ids, *(summary.lowest_id for summary in cold)])
    newest = max([*ids, *(summary.highest_id for summary in cold)])
    return await queue.age_seconds(oldest, now), await queue.age_seconds(newest, now)
