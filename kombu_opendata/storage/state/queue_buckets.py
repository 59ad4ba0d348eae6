"""The buckets of a queue: the entry of a message, a loaded bucket, the summary of a cold one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Set
from typing import NamedTuple

import msgspec

from ..records.active import Columns

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


class Summary(NamedTuple):
    """The summary of a cold bucket.

    It has the best of the visible and the best of the delayed messages, and the next times of visibility and expiry.
    Three fields are for metrics only: the number of delayed messages, and the first and the last time at which one of
    them becomes visible.
    """

    best: tuple[int, int] | None  # (priority, id)
    next_visible_at: int | None
    messages: int
    next_deadline: int | None
    delayed: int = 0  # not visible at the time of the summary
    first_visible_at: int = 0
    last_visible_at: int = 0
    lowest_id: int = 0
    highest_id: int = 0
    best_delayed: tuple[int, int] | None = None  # (priority, id)

    def best_at(self, now: int) -> tuple[int, int] | None:
        """Return a (priority, id) before which no message is visible now; None if none is visible."""
        if self.best_delayed is None or self.next_visible_at is None or self.next_visible_at > now:
            return self.best
        return self.best_delayed if self.best is None else min(self.best, self.best_delayed)

    def spans(self, ids: Sequence[int]) -> bool:
        """Return True if one of these sorted ids is between the lowest and the highest one."""
        place = bisect_left(ids, self.lowest_id)
        return place < len(ids) and ids[place] <= self.highest_id

    def delayed_at(self, now: int) -> int:
        """Return the number of messages that are not visible now; an estimate once some have become visible."""
        first, last = self.next_visible_at, self.last_visible_at
        if first is None or last <= now:
            return 0
        if first > now:
            return self.delayed
        return 1 + (self.delayed - 1) * (last - now) // (last - first + 1)

    @classmethod
    def of(cls, rows: Sequence[Row], now: int) -> Summary:
        """Return the summary of a bucket with these available messages."""
        if not rows:
            return cls(None, None, 0, None)
        ids, priorities, visible, deadlines, _attempts = zip(*rows, strict=True)
        return cls.of_columns(Columns(ids, priorities, visible, deadlines), now)

    @classmethod
    def of_columns(cls, columns: Columns, now: int) -> Summary:
        """Return the summary as :meth:`of`, of at least one message."""
        ids, priorities, visible, deadlines = columns
        first_visible, last_visible = min(visible), max(visible)
        lowest, highest, first_priority = min(ids), max(ids), min(priorities)
        best: tuple[int, int] | None = None
        best_delayed: tuple[int, int] | None = None
        delayed_times: list[int] = []
        if last_visible > now:
            delayed_times = [at for at in visible if at > now]
            pairs = list(zip(priorities, ids, visible, strict=True))
            best = min([(priority, id) for priority, id, at in pairs if at <= now], default=None)
            best_delayed = min([(priority, id) for priority, id, at in pairs if at > now])
        elif first_priority == max(priorities):
            best = first_priority, lowest
        else:
            best = min(zip(priorities, ids, strict=True))
        return cls(
            best,
            min(delayed_times, default=None),
            len(ids),
            min(filter(None, deadlines), default=None) if any(deadlines) else None,
            len(delayed_times),
            first_visible,
            last_visible,
            lowest,
            highest,
            best_delayed,
        )
