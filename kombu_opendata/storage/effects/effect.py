"""The base of all effects: what each does to the state, and what recovery asks of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..messages.new_message import NewMessage
from ..state.settled_list import ListName
from ..state.store_state import StoreState


class Effect(msgspec.Struct, array_like=True, gc=False):
    """What happened, with every choice already made (ids, times, buckets).

    Applying an effect again to the state before gives the same state after. In the journal it is an array: its number,
    which is its ``tag``, and its fields. ``pairs`` is a flat list id, bucket, id, bucket, …; times are ms since the
    epoch. A subclass with its base's number has further fields, which are written only where they say something; the
    decoder knows the longest form, whose defaults mean what the shorter form means.
    """

    def apply(self, state: StoreState) -> None:
        """Change the state. The live engine and recovery call this."""
        raise NotImplementedError

    def active_buckets(self) -> Iterable[tuple[str, int]]:
        """The (queue, bucket) pairs that must be loaded before it can be applied."""
        return ()

    def settled_buckets(self) -> Iterable[tuple[str, ListName, int]]:
        """The (queue, list, bucket) that must be at hand before it can be applied."""
        return ()

    def new_messages(self) -> Iterable[NewMessage]:
        """The records of the messages that it adds."""
        return ()
