"""The progress of a client's call, stored with its changes: a client that repeats the call receives the whole count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..clock import Clock
from ..commit.commits import Commits
from ..effects.sessions import NoteRemovalEffect
from ..records.removal import Removal
from ..state.store_state import StoreState

#: the record of a call that has not removed any message yet
NO_REMOVAL = Removal(0, 0, 0, False)


class Call(NamedTuple):
    """A client's call, which it repeats with the same number if it loses the broker."""

    session: bytes
    number: int


@dataclass(frozen=True, slots=True)
class RepeatedCalls:
    """The last call of each session of one instance that removes messages from a queue, moves or copies them."""

    _state: StoreState
    _clock: Clock
    _commits: Commits

    def before(self, call: Call | None) -> Removal:
        """Return the progress of this call before its client repeated it."""
        last = self._state.removals.get(call.session) if call is not None else None
        return last if last is not None and call is not None and last.call == call.number else NO_REMOVAL

    def note(self, call: Call | None, messages: int, *, is_over: bool = False) -> None:
        """Store, in the commit of the change, the number of messages that a call has removed, moved or copied."""
        if call is not None:
            self._commits.apply(NoteRemovalEffect(call.session, call.number, messages, self._clock.now_ms(), is_over))
