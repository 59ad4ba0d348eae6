"""Messages about the flow control of a queue and its partitions."""

from __future__ import annotations

from ..permissions import on_queue
from .message_base import Numbered, Request, operation


# ------------------------------------------------------------------ broker → client
class KeyDelayed(Numbered, tag=225):
    """Delay of a partition, or of a queue without partitions.

    Attributes:
        key: the key of the partition; None for the queue.
        until_ms: the time before which nothing is delivered; 0 if a delay was removed.
    """

    key: str | None
    until_ms: int


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
