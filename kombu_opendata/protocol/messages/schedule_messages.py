"""Messages about due times of delayed messages, and about beat's periodic tasks."""

from __future__ import annotations

import msgspec

from ..permissions import entry, on_queues
from .message_base import Numbered, Request, operation


class PeriodicTaskEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Periodic task in one queue, as recorded since the broker's startup.

    Attributes:
        name: the name of the entry in beat's schedule; empty if the messages don't have it.
        count: the number of its publishes.
        first_at_ms, last_at_ms: the times of its first and last publish.
        interval_ms: the time between the last two publishes; 0 if there was only one.
        last_message_id: the id of the last message.
    """

    name: str
    task: str
    queue: str
    count: int
    first_at_ms: int
    last_at_ms: int
    interval_ms: int
    last_message_id: int


class DueCountsReply(Numbered, tag=183):
    """Counts of messages by due time.

    Attributes:
        counts: the count of each bucket, from ``start_ms`` on.
        later: the number of messages that are due after them.
        is_estimate: True if messages with different due times were counted together.
    """

    at_ms: int
    start_ms: int
    counts: list[int]
    later: int
    is_estimate: bool


class PeriodicTaskList(Numbered, tag=184):
    """Periodic tasks, the latest publish first; ``since_ms`` is the time from which the broker recorded them."""

    tasks: list[PeriodicTaskEntry]
    since_ms: int


@operation("count delayed messages by due time", on_queues("read", or_role="monitor"), query=True)
class CountDue(Request[DueCountsReply], tag=86):
    """Request to count delayed messages of these queues, or of all, by due time.

    The buckets are multiples of ``bucket_ms`` since the epoch, and the first one contains the current time.
    """

    queues: list[str]
    bucket_ms: int
    number: int


@operation("list periodic tasks", entry("lists those of queues with `read`, with `monitor` all"))
class ListPeriodicTasks(Request[PeriodicTaskList], tag=87):
    """Request to list the periodic tasks that were published."""
