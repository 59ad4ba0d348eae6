"""Idempotency keys in memory: those that the store does not have yet, and a cache of the others."""

from __future__ import annotations

from ..records import idempotency, keys
from ..records.idempotency import Sending
from ..slatedb.ffi import WriteBatch
from .write_back_cache import WriteBackCache


class IdempotencyState(WriteBackCache[Sending]):
    """The keys of one instance in memory, and the changes by effects.

    Attributes:
        used: True if there is a key in memory, or if the last :meth:`.Idempotency.look` found one.
    """

    def __init__(self) -> None:
        super().__init__(lambda sending: 100 + 40 * len(sending.ids) + 60 * sum(map(len, sending.queues)))
        self.used = False

    def remember(self, name: bytes, sending: Sending) -> None:
        """Add the publish under a key."""
        self.used = True
        self.put(name, sending)

    def snapshot(self, batch: WriteBatch) -> None:
        """Add the changes to a checkpoint's batch."""
        for name, sending in self.begin_flush().items():
            key = keys.idempotency_key(name)
            if sending is None:
                batch.delete(key)
            else:
                batch.put(key, idempotency.encode(sending))
