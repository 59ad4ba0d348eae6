"""The clock. The storage reads the time for decisions only from it, so tests control the time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of wall-clock time."""

    def now_ms(self) -> int:
        """Return the milliseconds since the Unix epoch, UTC. Never less than an earlier result."""
        ...

    def not_before(self, at_ms: int) -> None:
        """Continue from ``at_ms`` if the clock shows less: a store may have later times if the clock was set back."""
        ...


class SystemClock:
    """The system's clock, made monotonic: if the wall clock is set back, time continues from the latest result."""

    def __init__(self) -> None:
        self._wall = time.time_ns() // 1_000_000
        self._monotonic = time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        monotonic = time.monotonic_ns() // 1_000_000
        if monotonic != self._monotonic:
            expected = self._wall + monotonic - self._monotonic
            self._monotonic = monotonic
            self._wall = max(time.time_ns() // 1_000_000, expected)
        return self._wall

    def not_before(self, at_ms: int) -> None:
        self._wall = max(self._wall, at_ms)
