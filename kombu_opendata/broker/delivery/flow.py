"""Whether publishes are taken now. While they are not, each connection keeps its own, and its other calls go on."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from ...errors import OpenDataError

#: bounds of the time of a turn; between them it is that of a commit, which follows
LEAST_TURN_SECONDS, MOST_TURN_SECONDS = 0.002, 0.01
_LEAST_SLICE_SECONDS = 0.0002


class Reason(Enum):
    """Why publishes wait."""

    STORE = "the store writes what it has"
    STALL = "the store does not answer"
    MEMORY = "the broker's memory is full"


class Waiter(Protocol):
    """A connection whose publishes wait."""

    def unblock(self) -> None:
        """Publishes are taken again."""

    def refuse(self, exc: OpenDataError) -> None:
        """Refuse the publishes that wait."""


class Flow:
    """The publishes of one instance: taken, or held back for one or more reasons.

    Attributes:
        is_closed: they wait now.
        time: the loop's clock.
        turn_seconds: how long all connections together may keep a turn, each its part.
    """

    __slots__ = ("_busy", "_loop", "_reasons", "_waiting", "is_closed", "time", "turn_seconds")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._reasons: set[Reason] = set()
        self._waiting: dict[Waiter, float] = {}  # since when, in this order
        self.is_closed = False
        self.time = loop.time
        self.turn_seconds = LEAST_TURN_SECONDS
        self._busy = 0  # connections that have more than one slice to do

    @property
    def slice_seconds(self) -> float:
        """How long the messages of one connection may run in one turn."""
        return max(self.turn_seconds / (1 + self._busy), _LEAST_SLICE_SECONDS)

    def begin_slice(self, go_on: Callable[[], None]) -> None:
        """A connection has more to do than one slice: let it go on in the next turn of the loop."""
        self._busy += 1
        self._loop.call_soon(self._next_slice, go_on)

    def _next_slice(self, go_on: Callable[[], None]) -> None:
        self._busy -= 1
        go_on()

    @property
    def waiting(self) -> int:
        """How many connections have publishes that wait."""
        return len(self._waiting)

    def change(self, reason: Reason, closed: bool) -> None:
        """Let publishes wait for a reason, or no longer."""
        if closed:
            self._reasons.add(reason)
        else:
            self._reasons.discard(reason)
        was_closed, self.is_closed = self.is_closed, bool(self._reasons)
        if was_closed and not self.is_closed and self._waiting:
            self._loop.call_soon(self._release)

    def wait(self, waiter: Waiter) -> None:
        """Call back when publishes are taken again."""
        self._waiting[waiter] = self._loop.time()

    def leave(self, waiter: Waiter) -> None:
        """Wait no longer."""
        self._waiting.pop(waiter, None)

    def refuse(self, exc: OpenDataError, seconds: float) -> None:
        """Refuse the publishes of those that have waited this long."""
        before = self._loop.time() - seconds
        for waiter in [waiter for waiter, since in self._waiting.items() if since <= before]:
            del self._waiting[waiter]
            waiter.refuse(exc)

    def _release(self) -> None:
        """Let one connection go on in each turn of the loop: its publishes may fill the memory again."""
        if self.is_closed or not self._waiting:
            return
        waiter = next(iter(self._waiting))
        del self._waiting[waiter]
        if self._waiting:
            self._loop.call_soon(self._release)
        waiter.unblock()
