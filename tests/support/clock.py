"""A clock and an event loop whose times tests advance, and a loop whose time is short."""

from __future__ import annotations

import asyncio


class ManualClock:
    """A clock that tests turn by hand."""

    def __init__(self, at_ms: int = 1_769_385_600_000) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        return self._at_ms

    def advance(self, ms: int) -> None:
        self._at_ms += ms

    def not_before(self, at_ms: int) -> None:
        self._at_ms = max(self._at_ms, at_ms)


class HastyLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes a millisecond at each look: a slice is over when it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def time(self) -> float:
        self._looks += 1
        return super().time() + self._looks / 1000


class AdvancedLoop(asyncio.SelectorEventLoop):
    """A loop whose time a test advances, beside the time that passes: timers in between expire."""

    def __init__(self) -> None:
        super().__init__()
        self._ahead_seconds = 0.0

    def time(self) -> float:
        return super().time() + self._ahead_seconds

    def advance(self, seconds: float) -> None:
        self._ahead_seconds += seconds
