"""The rates of each queue: published, delivered and acknowledged messages per second."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from operator import attrgetter

from ...storage.clock import Clock
from ..model.queue import BrokerQueue
from .queues import Queues
from .time_slices import Pace

#: how often the counters are sampled, and how many samples are kept
SAMPLE_MS = 5_000
_SAMPLES = 13
_COUNTERS = ("published", "delivered", "acked")
#: of a queue
_counted: Callable[[BrokerQueue], tuple[int, ...]] = attrgetter(*(f"counts.{name}" for name in _COUNTERS))


class Rates:
    """The rates of one instance's queues."""

    def __init__(self, queues: Queues, clock: Clock) -> None:
        self._queues = queues
        self._clock = clock
        first = {name: _counted(queue) for name, queue in queues.items()}
        self._samples = deque([(clock.now_ms(), first)], maxlen=_SAMPLES)
        self._sampling: asyncio.Task[None] | None = None

    def tick(self) -> None:
        """Sample the counters, if it is time."""
        now = self._clock.now_ms()
        if now - self._samples[-1][0] >= SAMPLE_MS and (self._sampling is None or self._sampling.done()):
            self._sampling = asyncio.get_running_loop().create_task(self._sample(now))

    async def _sample(self, now: int) -> None:
        counts = {}
        async for queue in Pace().over(list(self._queues.values())):
            counts[queue.name] = _counted(queue)
        self._samples.append((now, counts))

    def of(self, queue: BrokerQueue) -> dict[str, float]:
        """Messages per second over the last minute, or over a shorter time if there are fewer samples."""
        now = self._clock.now_ms()
        at, before = next(((at, counts) for at, counts in self._samples if now - at <= SAMPLE_MS * _SAMPLES), (now, {}))
        counted = zip(_COUNTERS, _counted(queue), before.get(queue.name, (0, 0, 0)), strict=True)
        seconds = max(now - at, 1000) / 1000
        return {f"{name}_per_second": round(max(count - old, 0) / seconds, 3) for name, count, old in counted}
