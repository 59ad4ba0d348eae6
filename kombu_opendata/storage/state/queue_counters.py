"""The counters of a queue, for its metrics: plain integers.

Each claim of a message ends in exactly one way, so at any time

``delivered + held when counting began = acked + rejected + requeued + released + lease_expired + deleted + in flight``

The counters of a stored queue are stored with it. Effects count as they are applied, so a replay of the journal counts
the same again. The counters of a transient queue live as long as the queue.
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
        published: put into the queue, by a publish, as a dead letter, routed later, or from another queue.
        delivered: claimed, the redelivered ones included.
        redelivered: claimed, and delivered before.
        acked: settled as done.
        rejected: settled by a consumer that did not want them.
        requeued: given back by a consumer at the cost of an attempt.
        released: given back unstarted, at no cost.
        lease_expired: taken back because the lease's time, or the session that held it, was over.
        exhausted: of the requeued and the expired leases, those that had no attempt left and failed.
        expired: removed because they were past their deadline.
        dropped: removed because the queue was over its maximum length.
        purged: removed by a purge, or with the queue, or deleted by id while they waited.
        deleted: removed by id while they were in flight.
        archived: settled as done by id while they waited, without a delivery.
        moved: moved to another queue while they waited.
        dead_lettered: of all that left, those that became dead letters.
        created_at_ms: when the queue was declared, ms since the epoch; 0 if that is not known.
        since_ms: when counting began, ms since the epoch.
        stored: the counters as the store has them; None if it has none.
        at_start: the counters as they were when the broker started; empty for a queue that is younger.
    """

    __slots__ = (*NAMES, "at_start", "created_at_ms", "since_ms", "stored")

    def __init__(self, since_ms: int = 0) -> None:
        self.published = self.delivered = self.redelivered = 0
        self.acked = self.rejected = self.requeued = self.released = self.lease_expired = self.exhausted = 0
        self.expired = self.dropped = self.purged = self.dead_lettered = self.deleted = self.archived = 0
        self.moved = 0
        self.created_at_ms = self.since_ms = since_ms
        self.stored: tuple[int, ...] | None = None
        self.at_start: tuple[int, ...] = ()

    def restore(self, created_at_ms: int, since_ms: int, values: tuple[int, ...]) -> None:
        """Continue from the counters in the store."""
        self.created_at_ms, self.since_ms = created_at_ms, since_ms
        for name, value in zip(NAMES, values, strict=False):
            setattr(self, name, value)
        self.stored = _values(self)

    def start(self, now_ms: int) -> None:
        """Begin to count at the start of the broker, if the store has no counters; keep their values at the start."""
        self.since_ms = self.since_ms or now_ms
        self.at_start = _values(self)

    def changed(self) -> tuple[int, ...] | None:
        """All counters, in the order of :data:`NAMES`, if they differ from the store's, which the caller updates."""
        values: tuple[int, ...] = _values(self)
        if values == self.stored:
            return None
        self.stored = values
        return values

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return dict(zip(NAMES, _values(self), strict=True))

    def add(self, other: QueueCounts) -> None:
        """Add the counters of another queue, such as a deleted one, so that a sum over queues never decreases."""
        for name in NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_since_start(self, other: QueueCounts) -> None:
        """As :meth:`add`, without the values at the start of the broker."""
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
        """Count a message that was given back, or that failed because it had no attempt left."""
        if lease_expired:
            self.lease_expired += 1
        elif costs_attempt:
            self.requeued += 1
        else:
            self.released += 1
