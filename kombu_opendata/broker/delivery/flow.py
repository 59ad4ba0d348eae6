"""Flow control for publishes. While they are delayed, each connection queues its own, and its other calls run."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from ...errors import OpenDataError

#: bounds of the duration of a turn; between them it equals that of a commit, which follows
LEAST_TURN_SECONDS, MOST_TURN_SECONDS = 0.002, 0.01
_LEAST_SLICE_SECONDS = 0.0002


class Reason(Enum):
    """The reasons for delaying publishes."""

    STORE = "the store writes what it has"
    STALL = "the store does not answer"
    MEMORY = "the broker's memory is full"


class Waiter(Protocol):
    """A connection with delayed publishes."""

    def unblock(self) -> None:
        """Resume publishes."""

    def refuse(self, exc: OpenDataError) -> None:
        """Refuse the delayed publishes."""


class Flow:
    """Flow control of one instance's publishes, which may be delayed for one or more reasons.

    Attributes:
        is_closed: publishes are delayed.
        time: the loop's clock.
        turn_seconds: the duration of a turn, shared by all connections.
    """

    __slots__ = ("_busy", "_loop", "_reasons", "_waiting", "is_closed", "time", "turn_seconds")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._reasons: set[Reason] = set()
        self._waiting: dict[Waiter, float] = {}  # start of the delay by connection, in this order
        self.is_closed = False
        self.time = loop.time
        self.turn_seconds = LEAST_TURN_SECONDS
        self._busy = 0  # connections with work for more than one slice

    @property
    def slice_seconds(self) -> float:
        """The time that the messages of one connection may run in one turn."""
        return max(self.turn_seconds / (1 + self._busy), _LEAST_SLICE_SECONDS)

    def begin_slice(self, go_on: Callable[[], None]) -> None:
        """Continue the work of a connection that needs more than one slice in the next turn of the loop."""
        self._busy += 1
        self._loop.call_soon(self._next_slice, go_on)

    def _next_slice(self, go_on: Callable[[], None]) -> None:
        self._busy -= 1
        go_on()

    @property
    def waiting(self) -> int:
        """The number of connections with delayed publishes."""
        return len(self._waiting)

    def change(self, reason: Reason, closed: bool) -> None:
        """Begin or end the delay of publishes for a reason."""
        if closed:
            self._reasons.add(reason)
        else:
            self._reasons.discard(reason)
        was_closed, self.is_closed = self.is_closed, bool(self._reasons)
        if was_closed and not self.is_closed and self._waiting:
            self._loop.call_soon(self._release)

    def wait(self, waiter: Waiter) -> None:
        """Register a connection to be called when publishes resume."""
        self._waiting[waiter] = self._loop.time()

    def leave(self, waiter: Waiter) -> None:
        """Unregister a connection."""
        self._waiting.pop(waiter, None)

    def refuse(self, exc: OpenDataError, seconds: float) -> None:
        """Refuse the publishes that have been delayed for this long."""
        before = self._loop.time() - seconds
        for waiter in [waiter for waiter, since in self._waiting.items() if since <= before]:
            del self._waiting[waiter]
            waiter.refuse(exc)

    def _release(self) -> None:
        """Release one connection in each turn of the loop, since its publishes may fill the memory again."""
        if self.is_closed or not self._waiting:
            return
        waiter = next(iter(self._waiting))
        del self._waiting[waiter]
        if self._waiting:
            self._loop.call_soon(self._release)
        waiter.unblock()
