"""Effects on a session's state, and the time of a commit."""

from __future__ import annotations

from ..records.removal import Removal
from ..state.store_state import StoreState
from .effect import Effect


class NameSessionEffect(Effect, tag=15):
    """The consumer name of a session was set."""

    session: bytes
    name: str

    def apply(self, state: StoreState) -> None:
        state.session_names[self.session] = self.name
        state.dirty.sessions.add(self.session)


class ForgetSessionEffect(Effect, tag=16):
    """A session ended without leases: it can no longer repeat its publishes or calls."""

    session: bytes

    def apply(self, state: StoreState) -> None:
        session = self.session
        state.session_names.pop(session, None)
        if state.producers.pop(session, None) is not None:
            state.dirty.producers.add(session)
        if state.removals.pop(session, None) is not None:
            state.dirty.removals.add(session)
        state.dirty.sessions.add(session)


class TimeEffect(Effect, tag=17):
    """The last effect of each commit: its time is the latest in this and all earlier commits."""

    at_ms: int

    def apply(self, state: StoreState) -> None:
        state.time(self.at_ms)


class SyncedTimeEffect(TimeEffect, tag=17):
    """The number of journal records before this commit's that a power loss could tear when it was written."""

    unsynced: int = -1


class NoteRemovalEffect(Effect, tag=18):
    """The number of messages that a session's call has removed from a queue, moved or copied so far."""

    session: bytes
    call: int
    messages: int
    at_ms: int
    is_over: bool

    def apply(self, state: StoreState) -> None:
        state.removals[self.session] = Removal(self.call, self.messages, self.at_ms, self.is_over)
        state.dirty.removals.add(self.session)
