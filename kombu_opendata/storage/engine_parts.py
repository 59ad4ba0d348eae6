"""The parts of an open instance that its services share, and the base class of these services."""

from __future__ import annotations

from typing import NamedTuple

from .clock import Clock
from .commit.commits import Commits
from .messages.payloads import Payloads
from .slatedb.store_writer import SlateStore
from .state.store_state import StoreState


class EngineParts(NamedTuple):
    store: SlateStore
    state: StoreState
    clock: Clock
    commits: Commits
    payloads: Payloads


class EngineService:
    """A service of one instance.

    Its methods raise StoreFull if the disk is full or the store accepts no writes, StoreError if the store can't be
    read, and CorruptRecord if a record does not decode. Steps that were made before remain.
    """

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._store, self._state, self._clock, self._commits, self._payloads = parts
        self._sizes = parts.state.sizes
