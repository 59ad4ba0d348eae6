"""Lets clients that were just answered join the next commit to a bucket.

A client that waits for each confirmation publishes again a moment after it. If the next commit had begun with the first
of them, all the others would wait for two commits each, and a bucket would store half as many messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

#: how long a commit waits for them: this part of the time that the last one took, but not longer than so many seconds
_PART = 0.2
_MOST_SECONDS = 0.05
_SLOW_SECONDS = 0.003


class CommitDelay:
    """Delays a commit until the clients of the last one are back, or a short time is over.

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
        """A commit that began at this time has ended."""
        self._seconds = self._clock() - began
        self.is_slow = self._seconds > _SLOW_SECONDS

    def answering(self, clients: int) -> None:
        """So many clients get their answers now."""
        self._expected, self._until = clients, self._clock() + min(_PART * self._seconds, _MOST_SECONDS)
        self._all_back.clear()

    def have(self, clients: int) -> None:
        """So many clients wait for the next commit."""
        if clients >= self._expected:
            self._all_back.set()

    async def wait(self) -> None:
        """Wait for the clients that were answered; a single one is not waited for."""
        if self._expected > 1 and self._clock() < self._until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._until):
                    await self._all_back.wait()
