"""The sizes of the engine's records and of the steps of its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSizes:
    """The sizes that bound memory, records and the time of a step; tests make them small.

    Attributes:
        bucket_entries: entries of a full bucket of a queue's messages.
        loaded_buckets: loaded buckets of a queue, above which some are evicted until half of this number remain.
        settled_entries: entries of a full bucket of a settled list; with typical commits, rewriting the tail costs less
            than the messages' payloads.
        load_messages: messages that a load from cold buckets reads ahead.
        load_below: messages at hand, below which such a load begins.
        load_first: messages that are read first if a delivery waits for them.
        move_messages: messages that one step of a move, a copy or a redrive moves.
    """

    bucket_entries: int = 256
    loaded_buckets: int = 48
    settled_entries: int = 1024
    load_messages: int = 2048
    load_below: int = 512
    load_first: int = 256
    move_messages: int = 256


SIZES = EngineSizes()
