"""What buckets are made of: messages in memory, a loaded bucket, and what is known of one that is not loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class QueueRow(msgspec.Struct, array_like=True, gc=False):
    """What a queue must know of a stored message that comes into it, as the journal has it.

    ``priority`` is the stored one: lower first. ``deadline_ms`` is 0 if it never expires. ``size`` is in bytes, and 0
    where the queue does not count them.
    """

    id: int
    bucket: int
    priority: int
    visible_at_ms: int
    deadline_ms: int
    size: int


class Entry(msgspec.Struct, eq=False, gc=False):
    """One message in one queue.

    ``priority`` is the stored one: lower first. ``session`` is the lease's holder. ``envelope`` is set in transient
    queues only, whose messages are nowhere else; ``size`` only where the queue counts bytes. ``received_at`` is when
    the broker took the message, or 0 once the entry was out of memory. ``returned``: it was delivered before. That is
    not stored: a message that was released, at no cost of an attempt, is without it once it was out of memory.
    """

    queue: str
    bucket: int
    id: int
    priority: int
    visible_at: int
    deadline: int
    attempts: int = 0
    size: int = 0
    received_at: int = 0
    claimed_at: int = 0
    lease_until: int = 0
    session: bytes = b""
    envelope: bytes | None = None
    returned: bool = False


class Bucket:
    """The loaded entries of one bucket. No available one expires before ``next_deadline``; 0 if none does."""

    __slots__ = ("available", "in_flight", "next_deadline", "stored")

    def __init__(self) -> None:
        self.available: dict[int, Entry] = {}
        self.in_flight: dict[int, Entry] = {}
        self.next_deadline = 0
        self.stored = False  # the store has a record of it

    def rows(self) -> tuple[list[tuple[int, int, int, int, int]], list[tuple[int, int, int, int, int]]]:
        """The two lists of the RFC's active record."""
        return (
            [(e.id, e.priority, e.visible_at, e.deadline, e.attempts) for e in self.available.values()],
            [(e.id, e.priority, e.claimed_at, e.lease_until, e.attempts) for e in self.in_flight.values()],
        )


class Summary(NamedTuple):
    """What must be known of a cold bucket: its best visible message, when the next one becomes visible or expires.

    For figures only: how many were not visible yet, and the first and last time at which one is or was to be.
    """

    best: tuple[int, int] | None  # (priority, id)
    next_visible_at: int | None
    messages: int
    next_deadline: int | None
    delayed: int = 0  # not visible when this was made
    first_visible_at: int = 0
    last_visible_at: int = 0
    lowest_id: int = 0
    highest_id: int = 0

    def delayed_at(self, now: int) -> int:
        """How many are not visible now; an estimate when some of the delayed ones have become visible."""
        first, last = self.next_visible_at, self.last_visible_at
        if first is None or last <= now:
            return 0
        if first > now:
            return self.delayed
        return 1 + (self.delayed - 1) * (last - now) // (last - first + 1)

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int, int, int]], now: int) -> Summary:
        rows = list(rows)
        if not rows:
            return cls(None, None, 0, None)
        ids, priorities, visible, deadlines, _attempts = zip(*rows, strict=True)
        first_visible, last_visible = min(visible), max(visible)
        waiting = [at for at in visible if at > now] if last_visible > now else []
        ready: Iterable[tuple[int, int]] = zip(priorities, ids, strict=True)
        if waiting:
            ready = [pair for pair, at in zip(ready, visible, strict=True) if at <= now]
        return cls(
            min(ready, default=None),
            min(waiting, default=None),
            len(rows),
            min(filter(None, deadlines), default=None),
            len(waiting),
            first_visible,
            last_visible,
            min(ids),
            max(ids),
        )
