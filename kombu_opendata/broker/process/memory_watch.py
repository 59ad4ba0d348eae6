"""Memory limit of the broker: frees caches, and delays publishes while the process uses more memory than it may."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..metrics.snapshot import MetricsSnapshot
from .heap import resident_bytes, trim_heap

log = logging.getLogger(__name__)

#: publishes resume below this part of the limit
_RESUME = 0.9
#: above this part of the limit, or after this growth, unused memory is returned to the system
_TRIM = 0.8
_GROWTH_BYTES = 16 << 20
#: the minimum interval between two such returns; until the next, the heap grows by what fits into no gap of earlier
#: messages
_TRIM_SECONDS = 0.25


class MemoryWatch:
    """The measurement of the process's memory, and its limit.

    Args:
        limit_bytes: 0 means no limit.
        free: frees caches.
        changed: called with True when the memory becomes full, and with False when it no longer is.
        resident: returns the memory in use; 0 means that it is not known.

    Attributes:
        resident_bytes: the last measurement.
        is_full: publishes are delayed.
    """

    def __init__(
        self,
        limit_bytes: int,
        free: Callable[[], None],
        changed: Callable[[bool], None],
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.is_full = False
        self._free = free
        self._changed = changed
        self._measure = resident
        self._loop = asyncio.get_running_loop()
        self.resident_bytes = self._least = resident()
        self._trim_at = 0.0
        self._full_since = 0.0

    def tick(self) -> None:
        """Measure the memory, and enforce the limit.

        Called twice per second, and whenever some megabytes have arrived.
        """
        resident = self._measure()
        if not resident:
            return  # not known now
        self.resident_bytes = resident
        limit, now = self.limit_bytes, self._loop.time()
        self._least = min(self._least, resident)
        is_high = bool(limit) and resident > _TRIM * limit
        if is_high and not self.is_full and resident > limit:
            self._free()
            trim_heap()
            resident = self._least = self.resident_bytes = self._measure()
        elif now >= self._trim_at and (is_high or resident - self._least > _GROWTH_BYTES):
            self._trim_at = now + _TRIM_SECONDS
            self._loop.run_in_executor(None, self._trim)
        if limit and not self.is_full and resident > limit:
            self._begin(now)
        elif self.is_full and resident < _RESUME * limit:
            self._end(now)
        elif self.is_full:
            self._free()

    def _trim(self) -> None:
        """Trim in a thread, so that the loop is not blocked."""
        trim_heap()
        self._least = self._measure()

    def _begin(self, now: float) -> None:
        self.is_full, self._full_since = True, now
        text = "the broker uses %d MB of memory, its limit is %d MB (--memory-limit): publishers wait"
        log.warning(text, self.resident_bytes >> 20, self.limit_bytes >> 20)
        self._changed(True)

    def _end(self, now: float) -> None:
        self.is_full = False
        text = "the broker uses %d MB of memory: publishers continue after %.1f s"
        log.warning(text, self.resident_bytes >> 20, now - self._full_since)
        self._changed(False)

    def measure(self, snapshot: MetricsSnapshot) -> None:
        """Add the memory to a scrape of the metrics."""
        snapshot.set("memory_bytes", self.resident_bytes)
        snapshot.set("memory_limit_bytes", self.limit_bytes)
        snapshot.set("memory_full", int(self.is_full))

    def report(self) -> dict[str, int | bool]:
        """Return the report for the status call."""
        return {"resident_bytes": self.resident_bytes, "limit_bytes": self.limit_bytes, "is_full": self.is_full}
