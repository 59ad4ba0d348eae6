"""The counters of a queue, for its metrics: plain integers.

Each claim of a message has exactly one end, so at any time, counted from ``since_ms``:

``in flight at the start + delivered = acked + rejected + requeued + released + lease_expired + deleted + in flight``

The counters of a stored queue are stored with it. Effects count when they are applied, so a replay of the journal has
the same counts. The counters of a transient queue exist as long as the queue.
"""

from __future__ import annotations

from operator import attrgetter

#: all counters, in the order of the stored record; append new ones
NAMES = (
    "published", "delivered", "redelivered", "acked", "rejected", "requeued", "released", "lease_expired", "exhausted",
    "expired", "dropped", "purged", "deleted", "archived", "dead_lettered",
    "moved",
)  # fmt: skip
_values = attrgetter(*NAMES)


class QueueCounts:
    """The counters of one queue, in messages.

    Attributes:
        published: added to the queue, by a publish, as a dead letter, by later routing, or from another queue.
        delivered: claimed, redeliveries included.
        redelivered: claimed, and delivered before.
        acked: settled as done.
        rejected: settled by a consumer's rejection.
        requeued: returned by a consumer at the cost of an attempt.
        released: returned by a consumer without counting an attempt.
        lease_expired: returned because the lease expired, or because its session ended.
        exhausted: failed because no attempt was left; also counted as requeued or lease_expired.
        expired: removed because they were past their deadline.
        dropped: removed because the queue was over its maximum length.
        purged: removed by a purge, or with the queue, or deleted by id while they were available.
        deleted: removed by id while they were in flight.
        archived: settled as done by id while they were available, without a delivery.
        moved: moved to another queue while they were available.
        dead_lettered: became a dead letter when they left the queue; also counted by the reason.
        created_at_ms: the declaration of the queue, ms since the epoch; 0 if unknown.
        since_ms: the start of counting, ms since the epoch.
        stored: the counters in the store; None if it has none.
        at_start: the counters at startup of the broker; empty for a queue that was declared later.
    """

    __slots__ = (*NAMES, "at_start", "created_at_ms", "since_ms", "stored")

    def __init__(self, since_ms: int = 0) -> None:
        self.published = self.delivered = self.redelivered = self.acked = self.rejected = self.requeued = 0
        self.released = self.lease_expired = self.exhausted = self.expired = self.dropped = self.purged = 0
        self.dead_lettered = self.deleted = self.archived = self.moved = 0
        self.created_at_ms = self.since_ms = since_ms
        self.stored: tuple[int, ...] | None = None
        self.at_start: tuple[int, ...] = ()

    def restore(self, created_at_ms: int, since_ms: int, values: tuple[int, ...]) -> None:
        self.created_at_ms, self.since_ms = created_at_ms, since_ms
        for name, value in zip(NAMES, values, strict=False):
            setattr(self, name, value)
        self.stored = _values(self)

    def start(self, now_ms: int) -> None:
        """Record the values at startup of the broker. If the store has no counters, counting begins now."""
        self.since_ms = self.since_ms or now_ms
        self.at_start = _values(self)

    def changed(self) -> tuple[int, ...] | None:
        """Return all counters, in the order of :data:`NAMES`, if they differ from the stored ones; else None.

        The caller writes them to the store.
        """
        values: tuple[int, ...] = _values(self)
        if values == self.stored:
            return None
        self.stored = values
        return values

    def as_dict(self) -> dict[str, int]:
        return dict(zip(NAMES, _values(self), strict=True))

    def add(self, other: QueueCounts) -> None:
        """Add the counters of another queue, such as a deleted one, so that a sum over queues never decreases."""
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_since_start(self, other: QueueCounts) -> None:
        """Add counters as :meth:`add`, without the values at startup of the broker."""
        self.add(other)
        for name, before in zip(NAMES, other.at_start, strict=False):
            setattr(self, name, getattr(self, name) - before)

    def removed(self, count: int, reason: str) -> None:
        """Count available messages that were removed; see :meth:`.Operations.remove` for the reasons."""
        if reason == "expired":
            self.expired += count
        elif reason == "maxlen":
            self.dropped += count
        else:
            self.purged += count

    def came_back(self, *, costs_attempt: bool, lease_expired: bool) -> None:
        """Count a message that was returned, or that failed because it had no attempt left."""
        if lease_expired:
            self.lease_expired += 1
        elif costs_attempt:
            self.requeued += 1
        else:
            self.released += 1
