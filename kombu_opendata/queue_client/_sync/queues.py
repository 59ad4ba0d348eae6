# Made by tools/unasync.py from ../_async/queues.py: change that one, then run the script.
"""Queues, exchanges and bindings."""

from __future__ import annotations

from ...protocol import messages as m
from .base import Base


class Queues(Base):
    """Calls about queues."""

    def purge(self, queue: str) -> int:
        """Remove every message that waits; returns how many."""
        answer: m.Count = self._calls.call(m.PurgeQueue(0, queue))
        return answer.count
