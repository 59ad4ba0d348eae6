"""Long work in the loop, a millisecond at a time, so that ten thousand queues delay nobody.

Items of a long answer are encoded one by one (:func:`encoded`). So the frame costs no more than copying them. And the
answer is no dictionary or tuple for each queue: so many new ones would make the garbage collector look through all
that the broker has in memory, which takes far longer than the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode

#: the loop is used for so long at a time
_PIECE_SECONDS = 0.001
#: items between two looks at the clock
LOOKS = 16


def encoded(item: Any) -> Any:
    """The item as it will stand in the frame."""
    return msgspec.Raw(_encode(item))


class Pace:
    """Says when the loop was used for long enough, and lets others have their turn."""

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
        """The items, with a rest in between now and then; whoever made them must not change them meanwhile."""
        for number, item in enumerate(items):
            if number % LOOKS == 0 and self.is_over:
                await self.rest()
            yield item
