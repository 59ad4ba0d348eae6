"""A short delay of commits to a bucket, so that clients that were just answered can join the next commit.

A client that waits for each confirmation publishes again immediately after it. If the next commit began with the first
of these clients, all others would wait for two commits each, and a bucket would store half as many messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

#: the delay: this fraction of the duration of the last commit, limited to a number of seconds
_PART = 0.2
_MOST_SECONDS = 0.05
_SLOW_SECONDS = 0.003


class CommitDelay:
    """A delay of the commit until the clients of the last one are back, or a short time is over.

    Attributes:
        is_slow: the last commit took as long as a request to a bucket.
    """

    __slots__ = ("_all_back", "_clock", "_expected", "_seconds", "_until", "is_slow")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expected = 0
        self._seconds = 0.0  # of the last commit
        self._until = 0.0
        self._all_back = asyncio.Event()
        self.is_slow = False

    def committed(self, began: float) -> None:
        """Record the duration of a commit that began at this time."""
        self._seconds = self._clock() - began
        self.is_slow = self._seconds > _SLOW_SECONDS

    def answering(self, clients: int) -> None:
        """Record the number of clients that receive their replies now."""
        self._expected, self._until = clients, self._clock() + min(_PART * self._seconds, _MOST_SECONDS)
        self._all_back.clear()

    def have(self, clients: int) -> None:
        """Record the number of clients that wait for the next commit."""
        if clients >= self._expected:
            self._all_back.set()

    async def wait(self) -> None:
        """Wait for the clients that were answered, if there are several."""
        if self._expected > 1 and self._clock() < self._until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._until):
                    await self._all_back.wait()
