"""What a broker without a journal does while its store, a bucket, does not answer.

A commit that takes unusually long closes the gate: calls that would need another commit wait outside, so that nothing
grows in memory. When the store has not answered for the timeout, they are refused: nothing of them was stored. Calls
that are part of the commit, or came before the gate closed, are refused too, but their outcome is not known yet. The
client repeats such a publish under its old number, so it is stored once. What consumers hold they go on with; their
acks wait for the commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...errors import StoreStalled
from ...protocol.messages import Failed
from ...storage.commit.commits import Commits
from .outbox import Outbox

#: a commit that takes longer closes the gate
_SUSPECT_SECONDS = 1.0
#: how long a call waits at least before it is refused, so that clients that try again at once do no harm
_PACE_SECONDS = 1.0


class Waiting(Protocol):
    """A connection whose next call waits outside."""

    def go_on(self) -> None:
        """Handle what waited."""

    def refuse_waiting(self, exc: StoreStalled) -> None:
        """Refuse the calls that wait outside."""


class StoreGate:
    """Decides whether calls that need a commit may begin.

    Args:
        timeout_seconds: how long a call waits for the store; 0: for ever.

    Attributes:
        is_closed: such calls wait outside. Always False if there is a journal.
    """

    __slots__ = ("_clock", "_commits", "_outbox", "_timeout", "_waiting", "is_closed")

    def __init__(self, commits: Commits, outbox: Outbox, clock: Callable[[], float], timeout_seconds: float) -> None:
        self._commits, self._outbox, self._clock, self._timeout = commits, outbox, clock, timeout_seconds
        self._waiting: dict[Waiting, float] = {}  # since when
        self.is_closed = False

    def wait(self, connection: Waiting) -> None:
        """Tell this connection to go on when the gate opens."""
        self._waiting.setdefault(connection, self._clock())

    def forget(self, connection: Waiting) -> None:
        """The connection is gone."""
        self._waiting.pop(connection, None)

    def tick(self) -> None:
        """Close or open the gate, and refuse calls that have waited for long; called twice a second."""
        stalled = self._commits.stalled_seconds
        self.is_closed = stalled > _SUSPECT_SECONDS
        if not self.is_closed:
            self.open()
        elif 0 < self._timeout < stalled:
            self._refuse(stalled)

    def open(self) -> None:
        """The store has answered."""
        self.is_closed = False
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.go_on()

    def _refuse(self, stalled: float) -> None:
        uncertain = StoreStalled(
            f"the store has not answered for {stalled:.0f} s: it is not known whether this was stored. Try again later "
            "over this connection, which does not store a message twice",
            uncertain=True,
            seconds=stalled,
        )
        self._outbox.refuse(lambda rid: Failed(rid, uncertain.code, uncertain.text, uncertain.values))
        refused = StoreStalled(
            f"the store has not answered for {stalled:.0f} s: this call changed nothing; try again later",
            uncertain=False,
            seconds=stalled,
        )
        before = self._clock() - _PACE_SECONDS
        for connection in [connection for connection, since in self._waiting.items() if since <= before]:
            del self._waiting[connection]
            connection.refuse_waiting(refused)
