"""Delay and refusal of publishes while the bucket of a broker without a journal does not respond.

Once a commit takes unusually long, publishes wait at their connections, so that memory does not grow. When the store
has not responded for the timeout, they are refused, and nothing of them was stored. Calls that are part of the commit,
or came before it took so long, are refused, too, but their outcome is not known yet. The client repeats such a publish
under its old number, so it is stored once. Consumers continue with the deliveries that they hold; their acks wait for
the commit.
"""

from __future__ import annotations

from collections.abc import Callable

from ...errors import StoreStalled
from ...protocol.messages import Failed
from ...storage.commit.commits import Commits
from .flow import Flow, Reason
from .outbox import Outbox

#: a longer commit takes unusually long
_SUSPECT_SECONDS = 1.0
#: without a tick for this long, this process was frozen, and not the store: a standby may have taken over
_FROZEN_SECONDS = 3.0
#: the minimum time that a publish waits before it is refused, so that clients that retry immediately do no harm
_PACE_SECONDS = 1.0


class StoreGate:
    """Delay and refusal of publishes while the store does not respond.

    Args:
        timeout_seconds: how long a call waits for the store; 0 means indefinitely.
        now: a monotonic clock, in seconds.

    Attributes:
        is_closed: publishes wait for the store. Always False if there is a journal.
    """

    __slots__ = ("_awake_at", "_commits", "_flow", "_now", "_outbox", "_ticked_at", "_timeout", "is_closed")

    def __init__(
        self, commits: Commits, outbox: Outbox, flow: Flow, timeout_seconds: float, now: Callable[[], float]
    ) -> None:
        self._commits, self._outbox, self._flow, self._timeout = commits, outbox, flow, timeout_seconds
        self._now = now
        self._awake_at = self._ticked_at = now()
        self.is_closed = False

    def tick(self) -> None:
        """Close or open the gate, and refuse calls that have waited for long. Called twice per second."""
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
