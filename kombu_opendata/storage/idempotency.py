"""Idempotency keys: which sends were stored, for a documented time (docs/client-api.md).

What is not in the store yet is in memory, the rest is a cache with a bound, so a look for a key costs at most one read.
Records whose time is over count as absent; a sweep removes them in pieces, round and round.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from . import effects as fx
from .ffi import Batch
from .records import idempotency, keys
from .records.idempotency import Sending
from .shelf import Shelf

if TYPE_CHECKING:
    from .engine import Engine

#: records that one sweep looks at
_SWEEP_ROWS = 2000
_NAME = slice(2, None)


class IdempotencyState:
    """The keys of one instance in memory, and what an effect does to them."""

    def __init__(self) -> None:
        self.shelf: Shelf[Sending] = Shelf(
            lambda sending: 100 + 40 * len(sending.ids) + 60 * sum(map(len, sending.queues))
        )

    def remember(
        self, name: bytes, ids: Iterable[int], expires_at: int, digest: bytes, queues: Iterable[Iterable[str]]
    ) -> None:
        """Something was sent under a key."""
        self.shelf.put(name, Sending(tuple(ids), expires_at, digest, tuple(map(tuple, queues))))

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


class Idempotency:
    """The operations on the keys of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._swept_to = b""

    @property
    def _shelf(self) -> Shelf[Sending]:
        return self._engine.state.idempotency.shelf

    def find(self, name: bytes) -> tuple[bool, Sending | None]:
        """Whether it is known without the store what was sent under a key, and what was."""
        known, sending = self._shelf.find(name)
        if sending is not None and sending.expires_at_ms <= self._engine.clock.now_ms():
            return True, None
        return known, sending

    async def load(self, name: bytes) -> None:
        """Have :meth:`find` know."""
        key = keys.idempotency_key(name)
        value = await self._engine.store.get(key)
        self._shelf.keep(name, None if value is None else idempotency.decode(key, value))

    def remember(self, name: bytes, sending: Sending) -> None:
        """In the commit of the messages."""
        self._engine.state.idempotency.remember(name, *sending)
        self._engine.effects.append((fx.SENT_WITH_KEY, name, *sending))

    async def sweep(self, now: int) -> int:
        """Look at some records, and drop those whose time is over; returns how many."""
        start = keys.idempotency_key(self._swept_to) if self._swept_to else None
        first, last = keys.kind_range(keys.RecordKind.IDEMPOTENCY)
        rows = await self._engine.store.scan(start or first, last, limit=_SWEEP_ROWS)
        self._swept_to = rows[-1][0][_NAME] if len(rows) == _SWEEP_ROWS else b""
        dropped = 0
        for key, value in rows:
            name = key[_NAME]
            known, sending = self._shelf.find(name)
            if not known:
                sending = idempotency.decode(key, value)
            if sending is not None and sending.expires_at_ms <= now:
                self._shelf.put(name, None)
                dropped += 1
        return dropped
