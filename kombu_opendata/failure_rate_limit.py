"""Rate limits for failures, such as logins from an address."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

#: limit for the keys that are remembered
_MAX_REMEMBERED = 10_000


class FailureLimit:
    """Rate limit for the failures of each key: a burst of ``count``, then one every ``seconds / count`` seconds."""

    def __init__(self, count: int, seconds: float, time: Callable[[], float]) -> None:
        self._count = count
        self._interval_seconds = seconds / count
        self._time = time
        self._clean_at: OrderedDict[str, float] = OrderedDict()  # time at which the last failure of a key is forgotten

    def wait(self, key: str) -> float:
        """Return the seconds until the key may fail again; 0 means now."""
        left = self._clean_at.get(key, 0.0) - self._time()
        return max(left - self._interval_seconds * (self._count - 1), 0.0)

    def has_failed(self, key: str) -> bool:
        """Return True if the key failed recently."""
        return self._clean_at.get(key, 0.0) > self._time()

    def failed(self, key: str) -> None:
        now = self._time()
        self._clean_at[key] = max(self._clean_at.pop(key, 0.0), now) + self._interval_seconds
        if len(self._clean_at) > _MAX_REMEMBERED:
            self._clean_at.popitem(last=False)
