"""Long work in the event loop, done a millisecond at a time, so that ten thousand queues delay nobody.

Items of a long answer are encoded one by one (:func:`encoded`), so making the frame is only copying. It also avoids a
dictionary or tuple for each queue: so many new objects would make the garbage collector look through everything that
the broker has in memory, which takes far longer than the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode

#: how long the loop is used at a time
_PIECE_SECONDS = 0.001
#: items between two looks at the clock
LOOKS = 16


def encoded(item: Any) -> Any:
    """The item as it will stand in the frame."""
    return msgspec.Raw(_encode(item))


class Pace:
    """Says when the loop has been used for long enough, and gives way to others."""

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
        """The items, with a rest now and then. They must not change meanwhile."""
        for number, item in enumerate(items):
            if number % LOOKS == 0 and self.is_over:
                await self.rest()
            yield item
