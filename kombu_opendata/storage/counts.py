"""What happened in a queue since the broker's start, in plain integers: the cheapest thing that metrics can be made of.

Each message that left ``available`` by a claim comes to exactly one end, so at any time

``delivered + in flight at the start = acked + rejected + requeued + released + lease_expired + deleted + in flight``

for a queue that exists. Replay counts nothing: after a restart everything begins at 0, which is what a
Prometheus counter may do.
"""

from __future__ import annotations


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
    """

    __slots__ = (
        "acked", "archived", "dead_lettered", "deleted", "delivered", "dropped", "exhausted", "expired",
        "lease_expired", "published", "purged", "redelivered", "rejected", "released", "requeued",
    )  # fmt: skip

    def __init__(self) -> None:
        self.published = self.delivered = self.redelivered = 0
        self.acked = self.rejected = self.requeued = self.released = self.lease_expired = self.exhausted = 0
        self.expired = self.dropped = self.purged = self.dead_lettered = self.deleted = self.archived = 0

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return {name: getattr(self, name) for name in self.__slots__}

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

    def removed(self, count: int, reason: str) -> None:
        """So many available messages were taken out; see :meth:`Operations.remove` for the reasons."""
        if reason == "expired":
            self.expired += count
        elif reason == "maxlen":
            self.dropped += count
        else:
            self.purged += count

    def came_back(self, count: int, *, costs_attempt: bool, lease_expired: bool) -> None:
        """So many messages were given back, or failed as they had no attempt left."""
        if lease_expired:
            self.lease_expired += count
        elif costs_attempt:
            self.requeued += count
        else:
            self.released += count
