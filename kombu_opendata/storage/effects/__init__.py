"""Effects: the changes that a commit consists of, and the entries of the journal (docs/rfcs/0003-journal.md).

This module has their base class, the others the effects by subject; :mod:`.codec` encodes them.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ..records.payload import NewMessage
from ..state.settled_list import ListName
from ..state.store_state import StoreState


class Effect(msgspec.Struct, array_like=True, gc=False):
    """A change whose ids, times and buckets are determined, so that each application to a state has the same result.

    In the journal it is an array of its number, which is its ``tag``, and its fields. ``pairs`` is a flat list id,
    bucket, id, bucket, …; times are ms since the epoch.

    A subclass with the same number as its base has further fields. It is written only if one of them differs from its
    default. The decoder always decodes the longest form and sets missing fields to their defaults. The base has these
    defaults as class variables, so both forms share ``apply``.
    """

    def apply(self, state: StoreState) -> None:
        """Apply the change to the state, in the live engine and in recovery."""
        raise NotImplementedError

    def active_buckets(self) -> Iterable[tuple[str, int]]:
        """Return the (queue, bucket) pairs that must be loaded before the effect can be applied."""
        return ()

    def settled_buckets(self) -> Iterable[tuple[str, ListName, int]]:
        """Return the (queue, list, bucket) triples that must be read before the effect can be applied."""
        return ()

    def new_messages(self) -> Iterable[NewMessage]:
        """Return the records of the messages that the effect adds."""
        return ()
