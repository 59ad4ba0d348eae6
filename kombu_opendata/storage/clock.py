"""Time: the clock, and slices of a millisecond for long work in the event loop.

The storage reads the time for decisions only from the clock, so tests control the time. Long work is sliced, so that
ten thousand queues delay no client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol, TypeVar


class Clock(Protocol):
    """A source of wall-clock time."""

    def now_ms(self) -> int:
        """Return the milliseconds since the Unix epoch, UTC. Never less than an earlier result."""
        ...

    def not_before(self, at_ms: int) -> None:
        """Continue from ``at_ms`` if the clock shows less: a store may have later times if the clock was set back."""
        ...


class SystemClock:
    """The system's clock, made monotonic: if the wall clock is set back, time continues from the latest result."""

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns, self._monotonic_ns = wall_ns, monotonic_ns
        # The wall clock is read first: if the process is interrupted in between, the time is too early, never too late.
        self._ahead_ns = wall_ns() - monotonic_ns()  # the wall clock's lead over the monotonic one
        self._now = 0
        self._next_ns = 0  # the monotonic time from which the result may differ

    def now_ms(self) -> int:
        if self._monotonic_ns() >= self._next_ns:
            wall_ns, monotonic_ns = self._wall_ns(), self._monotonic_ns()
            self._ahead_ns = max(self._ahead_ns, wall_ns - monotonic_ns)
            self._now, since_ns = divmod(monotonic_ns + self._ahead_ns, 1_000_000)
            self._next_ns = monotonic_ns + 1_000_000 - since_ns
        return self._now

    def not_before(self, at_ms: int) -> None:
        self._ahead_ns = max(self._ahead_ns, at_ms * 1_000_000 - self._monotonic_ns())
        self._next_ns = 0


T = TypeVar("T")

#: the length of a slice
_PIECE_SECONDS = 0.001
#: number of items between two checks of the clock
LOOKS = 16


class TimeSlice:
    """A slice of long work in the event loop; other tasks run between two slices.

    With ``most_seconds``, a slice is twice as long as the other tasks ran before it, up to this bound. So work that
    grows with the other tasks keeps pace with them.

    Attributes:
        seconds: the length of the current slice.
    """

    def __init__(self, seconds: float = _PIECE_SECONDS, *, most_seconds: float = 0.0, looks: int = LOOKS) -> None:
        self._loop = asyncio.get_running_loop()
        self.seconds, self._looks = seconds, looks
        self._least_seconds, self._most_seconds = seconds, most_seconds
        self._until = self._loop.time() + seconds

    @property
    def is_over(self) -> bool:
        return self._loop.time() >= self._until

    async def rest(self) -> None:
        """Let other tasks run, and begin a new slice."""
        start = self._loop.time()
        await asyncio.sleep(0)
        now = self._loop.time()
        self.seconds = max(self._least_seconds, min(2 * (now - start), self._most_seconds))
        self._until = now + self.seconds

    async def pause(self) -> None:
        """Rest if the slice is over."""
        if self._loop.time() >= self._until:
            await self.rest()

    async def over(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Iterate with a pause after each slice. The items must not change during the iteration."""
        for number, item in enumerate(items):
            if number % self._looks == 0 and self.is_over:
                await self.rest()
            yield item
