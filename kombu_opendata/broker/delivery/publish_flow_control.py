"""Flow control for publishes. While publishes are delayed, each connection queues them, and its other calls run.

The bucket of a broker without a journal may stop responding. When a commit takes unusually long, publishes wait at
their connections, so that memory does not grow. When the store has not responded for the timeout, these publishes are
refused; nothing of them was stored. Calls that are part of the commit, or that arrived before the delay, are refused
too, but their outcome is unknown. The client repeats such a publish under its old number, so it is stored once.
Consumers continue with the deliveries that they hold; their acks wait for the commit.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from ...errors import OpenDataError, StoreStalled
from ...protocol.messages import Failed
from ...storage.commit.commits import Commits
from .outbox import Outbox

#: bounds of the duration of a turn; between these bounds it is the duration of a commit
LEAST_TURN_SECONDS, MOST_TURN_SECONDS = 0.002, 0.01
_LEAST_SLICE_SECONDS = 0.0002
#: minimum duration of a commit that takes unusually long
_SUSPECT_SECONDS = 1.0
#: a longer time between two ticks shows that the process was stopped: the store is not the reason for the delay, and a
#: standby may have taken over
_FROZEN_SECONDS = 3.0
#: minimum time that a publish waits before it is refused, to slow down clients that retry immediately
_PACE_SECONDS = 1.0


class Reason(Enum):
    """Reason for a delay of publishes."""

    STORE = "the store writes what it has"
    STALL = "the store does not answer"
    MEMORY = "the broker's memory is full"


class Waiter(Protocol):
    """Connection with delayed publishes."""

    def unblock(self) -> None:
        """Resume publishes."""

    def refuse(self, exc: OpenDataError) -> None:
        """Refuse the delayed publishes."""


class Flow:
    """Flow control of one instance's publishes, which may be delayed for one or more reasons.

    Attributes:
        is_closed: True while publishes are delayed.
        time: the event loop's clock.
        turn_seconds: the duration of a turn, which all connections share.
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
        """Maximum time that the messages of one connection run in one turn."""
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
        """Number of connections with delayed publishes."""
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
        """Register a connection for a call of its ``unblock`` when publishes resume."""
        self._waiting[waiter] = self._loop.time()

    def leave(self, waiter: Waiter) -> None:
        """Unregister a connection."""
        self._waiting.pop(waiter, None)

    def refuse(self, exc: OpenDataError, seconds: float) -> None:
        """Refuse publishes that were delayed for at least ``seconds``."""
        before = self._loop.time() - seconds
        for waiter in [waiter for waiter, since in self._waiting.items() if since <= before]:
            del self._waiting[waiter]
            waiter.refuse(exc)

    def _release(self) -> None:
        """Release one connection in each turn of the event loop, because its publishes may fill the memory again."""
        if self.is_closed or not self._waiting:
            return
        waiter = next(iter(self._waiting))
        del self._waiting[waiter]
        if self._waiting:
            self._loop.call_soon(self._release)
        waiter.unblock()


class StoreGate:
    """Delay and refusal of publishes while the store does not respond.

    Args:
        timeout_seconds: maximum time that a call waits for the store; 0 means indefinitely.
        now: a monotonic clock, in seconds.

    Attributes:
        is_closed: True while publishes wait for the store; always False if there is a journal.
    """

    __slots__ = ("_awake_at", "_commits", "_flow", "_now", "_outbox", "_ticked_at", "_timeout", "is_closed")

    def __init__(
        self, commits: Commits, outbox: Outbox, flow: Flow, timeout_seconds: float, now: Callable[[], float]
    ) -> None:
        self._commits = commits
        self._outbox = outbox
        self._flow = flow
        self._timeout = timeout_seconds
        self._now = now
        self._awake_at = self._ticked_at = now()
        self.is_closed = False

    def tick(self) -> None:
        """Close or open the gate, and refuse calls that have waited for the timeout. Called twice per second."""
        now = self._now()
        if now - self._ticked_at > _FROZEN_SECONDS:
            self._awake_at = now
        self._ticked_at = now
        stalled = min(self._commits.stalled_seconds, now - self._awake_at)
        if stalled <= _SUSPECT_SECONDS:
            self.open()
            return
        self.is_closed = True
        self._flow.change(Reason.STALL, True)
        if 0 < self._timeout < stalled:
            self._refuse(stalled)

    def open(self) -> None:
        """Resume publishes after the store has responded."""
        if self.is_closed:
            self.is_closed = False
            self._flow.change(Reason.STALL, False)

    def _refuse(self, stalled: float) -> None:
        uncertain = StoreStalled(
            f"the store has not answered for {stalled:.0f} s: it is not known whether this was stored. Try again later "
            "over this connection, which does not store a message twice",
            uncertain=True,
            seconds=stalled,
        )
        self._outbox.refuse(lambda rid: Failed(rid, uncertain.code, uncertain.text, uncertain.values))
        error = StoreStalled(
            f"the store has not answered for {stalled:.0f} s: this call changed nothing; try again later",
            uncertain=False,
            seconds=stalled,
        )
        self._flow.refuse(error, _PACE_SECONDS)
