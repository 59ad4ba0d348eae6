"""What of a queue's arguments the storage itself must know: deadlines and delays, which are part of a message's state.

They follow from the declaration, which is stored, so replaying the journal computes the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

DEFAULT_RETRY_MAX_DELAY_MS = 3_600_000
MAX_DEADLINE_MS = (1 << 63) - 1


class Limits(NamedTuple):
    """The limits of one durable or transient queue."""

    message_ttl_ms: int = -1  # -1: none
    retry_delay_ms: int = 0
    retry_max_delay_ms: int = 0
    counts_bytes: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> Limits:
        """The limits in a declaration's arguments, which the broker has checked."""
        delay = _int(arguments, "x-retry-delay", 0)
        longest = _int(arguments, "x-retry-max-delay", max(delay, DEFAULT_RETRY_MAX_DELAY_MS))
        counts_bytes = _int(arguments, "x-max-length-bytes", -1) >= 0
        return cls(_int(arguments, "x-message-ttl", -1), delay, longest, counts_bytes)

    def deadline(self, own: int, visible: int, now: int) -> int:
        """When a message expires in this queue, which has a TTL; ``own`` is the message's own deadline, or 0."""
        theirs = min(max(visible, now) + self.message_ttl_ms, MAX_DEADLINE_MS)
        return min(own, theirs) if own else theirs

    def retry_at(self, at: int, attempts: int) -> int:
        """When a message that returns at ``at`` after so many attempts is visible again; 0 for at once."""
        if not self.retry_delay_ms:
            return 0
        return at + min(self.retry_delay_ms << min(attempts - 1, 62), self.retry_max_delay_ms)


def _int(arguments: Mapping[str, Any], name: str, default: int) -> int:
    """An argument; one that a version without checks let pass counts as not given."""
    value = arguments.get(name)
    return value if type(value) is int and value >= 0 else default
