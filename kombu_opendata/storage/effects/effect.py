"""The base class of effects: how one changes the state, and what recovery must load for it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..messages.new_message import NewMessage
from ..state.settled_list import ListName
from ..state.store_state import StoreState


class Effect(msgspec.Struct, array_like=True, gc=False):
    """A change with every choice already made (ids, times, buckets).

    Applied again to the state before it, an effect gives the same state. In the journal it is an array: its number,
    which is its ``tag``, and its fields. ``pairs`` is a flat list id, bucket, id, bucket, …; times are ms since the
    epoch. A subclass with its base's number has further fields, which are written only if they differ from their
    defaults; the decoder knows the longest form, whose defaults mean the same as the shorter form.
    """

    def apply(self, state: StoreState) -> None:
        """Change the state, in the live engine and in recovery."""
        raise NotImplementedError

    def active_buckets(self) -> Iterable[tuple[str, int]]:
        """The (queue, bucket) pairs that must be loaded before it can be applied."""
        return ()

    def settled_buckets(self) -> Iterable[tuple[str, ListName, int]]:
        """The (queue, list, bucket) triples that must be read before it can be applied."""
        return ()

    def new_messages(self) -> Iterable[NewMessage]:
        """The records of the messages that it adds."""
        return ()
