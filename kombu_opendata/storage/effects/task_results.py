"""Effects on results of tasks and on chords."""

from __future__ import annotations

from ..state.store_state import StoreState
from .effect import Effect


class StoreResultEffect(Effect, tag=50):
    """A result (if there is a ``name``), a chord's part (if there is a ``group``), or both were stored."""

    name: bytes
    kind: int
    expires_at_ms: int
    value: bytes
    group: bytes
    index: int
    member: bytes
    chord_expires_at_ms: int

    def apply(self, state: StoreState) -> None:
        state.results.store(
            self.name, self.kind, self.expires_at_ms, self.value, self.group, self.index, self.member,
            self.chord_expires_at_ms, at_ms=state.newest_ms,
        )  # fmt: skip


class ForgetResultsEffect(Effect, tag=51):
    """Unneeded results are deleted."""

    names: list[bytes]

    def apply(self, state: StoreState) -> None:
        state.results.forget(self.names)


class OpenChordEffect(Effect, tag=52):
    """A chord was declared or extended.

    ``size`` is its size (-1: unknown), ``added`` the number of further tasks; ``again`` replaces an earlier chord.
    ``body`` is the task id of its callback.
    """

    group: bytes
    expires_at_ms: int
    size: int
    added: int
    header: bytes
    again: bool
    body: bytes = b""

    def apply(self, state: StoreState) -> None:
        state.results.open_chord(
            self.group, self.expires_at_ms, self.size, self.added, self.header, self.again, self.body
        )


class CloseChordEffect(Effect, tag=53):
    """A chord is deleted."""

    group: bytes

    def apply(self, state: StoreState) -> None:
        state.results.close_chord(self.group)
