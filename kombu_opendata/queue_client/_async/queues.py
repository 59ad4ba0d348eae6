"""Queues, exchanges and bindings."""

from __future__ import annotations

from ...protocol import messages as m
from .base import AsyncBase


class AsyncQueues(AsyncBase):
    """Calls about queues."""

    async def purge(self, queue: str) -> int:
        """Remove every message that waits; returns how many."""
        answer: m.Count = await self._calls.call(m.PurgeQueue(0, queue))
        return answer.count
