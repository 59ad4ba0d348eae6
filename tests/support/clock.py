"""A clock that tests turn by hand."""

from __future__ import annotations


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
