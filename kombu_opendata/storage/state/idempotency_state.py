"""Idempotency keys in memory: those that the store does not have yet, and a cache of the rest."""

from __future__ import annotations

from ..records import idempotency, keys
from ..records.idempotency import Sending
from ..slatedb.ffi import Batch
from .write_back_cache import WriteBackCache


class IdempotencyState:
    """The keys of one instance in memory, and what an effect does to them.

    Attributes:
        used: there is a key, as far as somebody looked.
    """

    def __init__(self) -> None:
        self.used = False
        self.shelf: WriteBackCache[Sending] = WriteBackCache(
            lambda sending: 100 + 40 * len(sending.ids) + 60 * sum(map(len, sending.queues))
        )

    def remember(self, name: bytes, sending: Sending) -> None:
        """Something was sent under a key."""
        self.used = True
        self.shelf.put(name, sending)

    def snapshot(self, batch: Batch) -> None:
        """Add what changed to a checkpoint's batch."""
        for name, sending in self.shelf.begin_flush().items():
            key = keys.idempotency_key(name)
            if sending is None:
                batch.delete(key)
            else:
                batch.put(key, idempotency.encode(sending))

    def end_flush(self) -> None:
        self.shelf.end_flush()
