"""Time slices of a millisecond for long work in the event loop, so that ten thousand queues delay no client.

The items of a long reply are encoded separately (:func:`encoded`), so building the frame is only copying. This also
avoids a dictionary or tuple for each queue: that many new objects would trigger a garbage collection of the whole
memory of the broker, which takes far longer than the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode

#: the length of a slice
_PIECE_SECONDS = 0.001
#: number of items between two checks of the clock
LOOKS = 16


def encoded(item: Any) -> Any:
    """Encode an item for a frame."""
    return msgspec.Raw(_encode(item))


class TimeSlice:
    """A time slice, and its end: other tasks run between two slices."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + _PIECE_SECONDS

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._until

    async def rest(self) -> None:
        await asyncio.sleep(0)
        self._until = self._loop.time() + _PIECE_SECONDS

    async def over(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Iterate with a pause after each slice. The items must not change during the iteration."""
        for number, item in enumerate(items):
            if number % LOOKS == 0 and self.is_over:
                await self.rest()
            yield item
