"""The rates of each queue: published, delivered and acknowledged messages per second."""

from __future__ import annotations

from collections import deque

from ...storage.clock import Clock
from ..model.queue import BrokerQueue
from .queues import Queues

#: how often the counters are sampled, and how many samples are kept
SAMPLE_MS = 5_000
_SAMPLES = 13
_COUNTERS = ("published", "delivered", "acked")


class Rates:
    """The rates of one instance's queues."""

    def __init__(self, queues: Queues, clock: Clock) -> None:
        self._queues = queues
        self._clock = clock
        self._samples: deque[tuple[int, dict[str, list[int]]]] = deque(maxlen=_SAMPLES)
        self.tick()

    def tick(self) -> None:
        """Sample the counters, if it is time."""
        now = self._clock.now_ms()
        if self._samples and now - self._samples[-1][0] < SAMPLE_MS:
            return
        self._samples.append((now, {name: _counted(queue) for name, queue in self._queues.items()}))

    def of(self, queue: BrokerQueue) -> dict[str, float]:
        """Messages per second over the last minute, or over a shorter time if there are fewer samples."""
        now = self._clock.now_ms()
        at, before = next(((at, counts) for at, counts in self._samples if now - at <= SAMPLE_MS * _SAMPLES), (now, {}))
        counted = zip(_COUNTERS, _counted(queue), before.get(queue.name, [0, 0, 0]), strict=True)
        seconds = max(now - at, 1000) / 1000
        return {f"{name}_per_second": round(max(count - old, 0) / seconds, 3) for name, count, old in counted}


def _counted(queue: BrokerQueue) -> list[int]:
    return [getattr(queue.counts, name) for name in _COUNTERS]
