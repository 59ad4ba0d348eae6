"""Time slices of a millisecond for long work in the event loop, so that ten thousand queues delay no client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

#: the length of a slice
_PIECE_SECONDS = 0.001
#: number of items between two checks of the clock
LOOKS = 16


class TimeSlice:
    """A time slice, and its end: other tasks run between two slices."""

    def __init__(self, seconds: float | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = _PIECE_SECONDS if seconds is None else seconds
        self._until = self._loop.time() + self._seconds

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._until

    async def rest(self) -> None:
        """Let other tasks run, and begin a new slice."""
        await asyncio.sleep(0)
        self._until = self._loop.time() + self._seconds

    async def pause(self) -> None:
        """Rest if the slice is over."""
        if self._loop.time() >= self._until:
            await self.rest()

    async def over(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Iterate with a pause after each slice. The items must not change during the iteration."""
        for number, item in enumerate(items):
            if number % LOOKS == 0 and self.is_over:
                await self.rest()
            yield item
