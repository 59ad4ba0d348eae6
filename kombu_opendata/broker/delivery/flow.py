"""Whether publishes are taken now. While they are not, each connection keeps its own, and its other calls go on."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from enum import Enum


class Reason(Enum):
    """Why publishes wait."""

    STORE = "the store writes what it has"
    MEMORY = "the broker's memory is full"


class Flow:
    """The publishes of one instance: taken, or held back for one or more reasons.

    Attributes:
        is_closed: they wait now.
    """

    __slots__ = ("_loop", "_reasons", "_waiting", "is_closed")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._reasons: set[Reason] = set()
        self._waiting: dict[Callable[[], None], None] = {}  # in the order in which they came
        self.is_closed = False

    @property
    def reasons(self) -> list[str]:
        """Why publishes wait, in words."""
        return sorted(reason.value for reason in self._reasons)

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

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call back when publishes are taken again."""
        self._waiting[go_on] = None

    def leave(self, go_on: Callable[[], None]) -> None:
        """Wait no longer."""
        self._waiting.pop(go_on, None)

    def _release(self) -> None:
        """Let one connection go on in each turn of the loop: its publishes may fill the memory again."""
        if self.is_closed or not self._waiting:
            return
        go_on = next(iter(self._waiting))
        del self._waiting[go_on]
        if self._waiting:
            self._loop.call_soon(self._release)
        go_on()
