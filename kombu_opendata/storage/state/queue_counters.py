"""What happened in a queue, in plain integers: the cheapest thing that metrics can be made of.

Each message that left ``available`` by a claim comes to exactly one end, so at any time

``delivered + held when counting began = acked + rejected + requeued + released + lease_expired + deleted + in flight``

The counters of a stored queue are stored with it. The state counts what effects do, so a replay of the journal counts
what was counted when its effects were applied first. Those of transient queues live as long as the queue.
"""

from __future__ import annotations

from operator import attrgetter

#: all counters, in the order of the stored record: a new one goes to the end
NAMES = (
    "published", "delivered", "redelivered", "acked", "rejected", "requeued", "released", "lease_expired", "exhausted",
    "expired", "dropped", "purged", "deleted", "archived", "dead_lettered",
)  # fmt: skip
_values = attrgetter(*NAMES)


class QueueCounts:
    """The counters of one queue, in messages.

    Attributes:
        published: put into the queue, by a publish, as a dead letter, or routed later.
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
        self.created_at_ms = self.since_ms = since_ms
        self.stored: tuple[int, ...] | None = None
        self.at_start: tuple[int, ...] = ()

    def restore(self, created_at_ms: int, since_ms: int, values: tuple[int, ...]) -> None:
        """Go on from what the store has."""
        self.created_at_ms, self.since_ms = created_at_ms, since_ms
        for name, value in zip(NAMES, values, strict=False):
            setattr(self, name, value)
        self.stored = _values(self)

    def start(self, now_ms: int) -> None:
        """The broker starts; where the store has no counters, counting begins now."""
        self.since_ms = self.since_ms or now_ms
        self.at_start = _values(self)

    def changed(self) -> tuple[int, ...] | None:
        """All counters, in the order of :data:`NAMES`, if they are not as the store has them; now they are."""
        values: tuple[int, ...] = _values(self)
        if values == self.stored:
            return None
        self.stored = values
        return values

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return dict(zip(NAMES, _values(self), strict=True))

    def add(self, other: QueueCounts) -> None:
        """Add another queue's, e.g. those of one that is gone, so that a sum over queues never goes down."""
        self.published += other.published
        self.delivered += other.delivered
        self.redelivered += other.redelivered
        self.acked += other.acked
        self.rejected += other.rejected
        self.requeued += other.requeued
        self.released += other.released
        self.lease_expired += other.lease_expired
        self.exhausted += other.exhausted
        self.expired += other.expired
        self.dropped += other.dropped
        self.purged += other.purged
        self.dead_lettered += other.dead_lettered
        self.deleted += other.deleted
        self.archived += other.archived

    def add_since_start(self, other: QueueCounts) -> None:
        """As :meth:`add`, without what was counted before the broker started."""
        self.add(other)
        for name, before in zip(NAMES, other.at_start, strict=False):
            setattr(self, name, getattr(self, name) - before)

    def removed(self, count: int, reason: str) -> None:
        """So many available messages were taken out; see :meth:`Operations.remove` for the reasons."""
        if reason == "expired":
            self.expired += count
        elif reason == "maxlen":
            self.dropped += count
        else:
            self.purged += count

    def came_back(self, *, costs_attempt: bool, lease_expired: bool) -> None:
        """A message was given back, or failed as it had no attempt left."""
        if lease_expired:
            self.lease_expired += 1
        elif costs_attempt:
            self.requeued += 1
        else:
            self.released += 1
