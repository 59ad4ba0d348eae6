"""Messages about the flow control of a queue and its partitions."""

from __future__ import annotations

from datetime import datetime

from ..permissions import on_queue
from .message_base import Numbered, Request, WireRecord, moment, operation

#: orders of a list of partitions
BACKLOG, IN_FLIGHT, OLDEST, KEY = ORDERS = "backlog", "in_flight", "oldest", "key"


# ------------------------------------------------------------------ broker → client
class KeyDelayed(Numbered, tag=225):
    """Delay of a partition, or of a queue without partitions.

    Attributes:
        key: the key of the partition; None for the queue.
        until_ms: the time before which nothing is delivered; 0 if a delay was removed.
    """

    key: str | None
    until_ms: int


class PartitionInfo(WireRecord, frozen=True):
    """Partition of a queue.

    Attributes:
        backlog: the number of ready and delayed messages.
        running: the number of tasks that run although their messages were acknowledged.
        share: the part of the deliveries that it gets while all partitions with a backlog are ready, from 0 to 1.
        limited_by: the reason why it delivers nothing now: ``delay``, ``rate``, ``concurrency``, or ``moving`` while
            its messages are moved to other partitions; empty if there is none.
        opens_at_ms: the end of a delay, also of a returned message, or the time of the next token of a rate; else 0.
        oldest_age_seconds: the age of its oldest ready message; None if there is none, or it is unknown.
    """

    key: str
    backlog: int
    in_flight: int
    running: int
    weight: int
    share: float
    limited_by: str = ""
    opens_at_ms: int = 0
    oldest_age_seconds: float | None = None

    @property
    def opens_at(self) -> datetime | None:
        """End of the limit."""
        return moment(self.opens_at_ms)


class PartitionPage(Numbered, tag=226):
    """Page of the partitions of a queue; ``by`` is their expression, empty if the queue has none.

    Attributes:
        matching: the number of partitions whose keys contain the searched text.
        limited_by, opens_at_ms: as in :class:`PartitionInfo`, for the whole queue.
    """

    partitions: list[PartitionInfo]
    matching: int
    by: str
    limited_by: str = ""
    opens_at_ms: int = 0


# ------------------------------------------------------------------ client → broker
@operation("delay a partition", on_queue("read", or_role="operator"))
class DelayKey(Request[KeyDelayed], tag=88):
    """Request to deliver nothing of a partition for a time; a later end of an earlier delay stays.

    The partition is that of the message ``id``, which is in flight or whose task runs; or if the id is -1, that with
    the ``key``. Without a key, and in a queue without partitions, the whole queue is delayed. With a ``delay_ms`` of 0,
    the delay is removed.
    """

    queue: str
    delay_ms: int
    key: str | None = None
    id: int = -1


@operation("see the partitions of a queue", on_queue("read", or_role="operator"), query=True)
class ListPartitions(Request[PartitionPage], tag=89):
    """Request to list partitions of a queue whose keys contain a text, without those that are empty and idle.

    The ``order`` is backlog or in_flight (the largest first), oldest (by the oldest ready message), or key.
    """

    queue: str
    order: str = BACKLOG
    search: str = ""
    offset: int = 0
    limit: int = 50
