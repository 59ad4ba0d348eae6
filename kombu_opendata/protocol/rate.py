"""Rate of deliveries: the text of a queue argument, such as ``100/m``, or ``100/m:20`` with a burst of 20."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple

RATE_FORMAT = "a number from 1 per s, m, h or d, such as 100/m, or 100/m:20 for a burst of 20 (of up to ten years)"
_PERIODS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: the longest time in which a burst is saved: the time at which it is complete is stored in 64 bits of ns
_MAX_SAVING_MS = 3650 * 86_400_000
_TEXT = re.compile(r"([1-9][0-9]{0,8})/([smhd])(?::([1-9][0-9]{0,8}))?")


class Rate(NamedTuple):
    """Token bucket: ``number`` tokens in each period, of which at most ``burst`` are saved."""

    number: int
    period_ms: int
    burst: int

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Return the rate of a valid text. Without a burst, a tenth of the number may be saved, at least 1."""
        match = _TEXT.fullmatch(text)
        if match is not None:
            number, period_ms = int(match[1]), _PERIODS_MS[match[2]]
            burst = int(match[3] or max(number // 10, 1))
            if burst * period_ms <= number * _MAX_SAVING_MS:
                return cls(number, period_ms, burst)
        raise ValueError(f"{text!r} is not {RATE_FORMAT}")

    @classmethod
    def is_valid(cls, value: Any) -> bool:
        with suppress(ValueError):
            return isinstance(value, str) and bool(cls.parse(value))
        return False
