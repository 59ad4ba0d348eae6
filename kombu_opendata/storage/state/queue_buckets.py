"""The loaded buckets of a queue, the entry of a message in them, and the row of a message that is added."""

from __future__ import annotations

from collections.abc import Set

import msgspec

#: a row of an active record: id, priority, visible or claimed at, deadline or end of the lease, attempts
Row = tuple[int, int, int, int, int]


class QueueRow(msgspec.Struct, array_like=True, gc=False):
    """A stored message that is added to a queue, as in the journal.

    ``priority`` is the stored one: lower first. ``deadline_ms`` is 0 if it never expires. ``size`` is in bytes, and 0
    if the queue does not count them.
    """

    id: int
    bucket: int
    priority: int
    visible_at_ms: int
    deadline_ms: int
    size: int


class QueueEntry(msgspec.Struct, eq=False, gc=False):
    """One message in one queue.

    ``priority`` is the stored one: lower first. ``session`` is the holder of the lease. ``envelope`` is set in
    transient queues only, whose messages are not stored; ``size`` only if the queue counts bytes. ``received_at`` is
    the time at which the broker received the message. ``returned`` means that it was delivered before. The last two are
    not stored: once an entry has left memory, the time is 0, and a release without the cost of an attempt leaves no
    trace.
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

    def is_visible(self, now: int) -> bool:
        """Return True if the message, which is available, can be delivered now.

        A message that was returned immediately is visible from the millisecond after its claim, so that no two claims
        have the same time, which is their token. It need not wait for that millisecond: its claim is dated ahead.
        """
        return self.visible_at <= now or self.visible_at == self.claimed_at + 1


class QueueBucket:
    """The loaded entries of one bucket. No available one expires before ``next_deadline``; 0 if none does."""

    __slots__ = ("available", "in_flight", "next_deadline", "stored")

    def __init__(self) -> None:
        self.available: dict[int, QueueEntry] = {}
        self.in_flight: dict[int, QueueEntry] = {}
        self.next_deadline = 0
        self.stored = False  # the store has a record of it

    def rows(self) -> tuple[list[Row], list[Row]]:
        """Return the two lists of the RFC's active record."""
        return (
            [(e.id, e.priority, e.visible_at, e.deadline, e.attempts) for e in self.available.values()],
            [(e.id, e.priority, e.claimed_at, e.lease_until, e.attempts) for e in self.in_flight.values()],
        )

    def expired(self, now: int, fresh: Set[int]) -> list[QueueEntry]:
        """Return the available messages that have expired, except ``fresh`` ones; also set the next deadline."""
        entries = [e for e in self.available.values() if 0 < e.deadline <= now and e.id not in fresh]
        expired_ids = {entry.id for entry in entries}
        deadlines = [e.deadline for e in self.available.values() if e.deadline and e.id not in expired_ids]
        self.next_deadline = min(deadlines, default=0)
        return entries
