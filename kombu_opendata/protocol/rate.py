"""Rate of deliveries: the text of a queue argument, such as ``100/m``, or ``100/m:20`` with a burst of 20."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

RATE_FORMAT = "a number from 1 per s, m, h or d, such as 100/m, or 100/m:20 for a burst of 20"
_PERIODS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
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
        if match is None:
            raise ValueError(f"{text!r} is not {RATE_FORMAT}")
        number = int(match[1])
        return cls(number, _PERIODS_MS[match[2]], int(match[3] or max(number // 10, 1)))

    @staticmethod
    def is_valid(value: Any) -> bool:
        return isinstance(value, str) and _TEXT.fullmatch(value) is not None
