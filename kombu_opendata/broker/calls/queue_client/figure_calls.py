"""GetFigures: the metrics of the last ten minutes."""

from __future__ import annotations

from dataclasses import dataclass

from ....errors import RequestError
from ....protocol.messages import queue_messages as q
from ...delivery.queues import Queues
from ...delivery.time_slices import TimeSlice, encoded
from ...metrics.metrics_memory import MetricsMemory
from ..dispatch.context import Context
from ..dispatch.registry import handles

#: maximum number of queues in one reply
MAX_QUEUES = 1000


@dataclass(frozen=True, slots=True)
class FigureCalls:
    """The calls that read the recent metrics of queues."""

    _queues: Queues
    _memory: MetricsMemory

    @handles(q.GetFigures)
    async def get_figures(self, call: Context, msg: q.GetFigures) -> q.Figures:
        if len(msg.queues) > MAX_QUEUES:
            text = f"ask for the figures of at most {MAX_QUEUES} queues, not {len(msg.queues)}"
            raise RequestError(text, value=len(msg.queues), limit=MAX_QUEUES)
        memory, series = self._memory, {}
        numbers, times = memory.points(msg.since_ms)
        async for queue in TimeSlice().over(self._queues.existing(dict.fromkeys(msg.queues))):
            series[queue.name] = encoded(memory.of(queue, numbers))
        total = memory.total(numbers) if "monitor" in call.session.rights.roles else None
        return q.Figures(msg.rid, times, series, total)
