"""The messages about what comes: when delayed messages are due, and which periodic tasks beat publishes."""

from __future__ import annotations

import msgspec

from .message_base import Numbered


class PeriodicTaskEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A periodic task in one queue, as the broker has seen it since it started.

    Attributes:
        name: of the entry in beat's schedule; empty if the messages don't have it.
        count: how often it was published.
        first_at_ms, last_at_ms: when it was published first and last.
        interval_ms: between the last two times; 0 if there was one.
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


class CountDue(Numbered, tag=86):
    """Count delayed messages of these queues, or of all, by when they are due. Answer: DueCounts.

    The buckets are multiples of ``bucket_ms`` since the epoch, and the first one is that of now.
    """

    queues: list[str]
    bucket_ms: int
    number: int


class ListPeriodicTasks(Numbered, tag=87):
    """List the periodic tasks that were published. Answer: PeriodicTasks."""


class DueCountsReply(Numbered, tag=183):
    """How many messages are due in each bucket of time.

    Attributes:
        counts: of each bucket, from ``start_ms`` on.
        later: how many are due after them.
        is_estimate: whether messages were counted together that are due at different times.
    """

    at_ms: int
    start_ms: int
    counts: list[int]
    later: int
    is_estimate: bool


class PeriodicTaskList(Numbered, tag=184):
    """The periodic tasks, those that were published last first; ``since_ms`` is when the broker began to look."""

    tasks: list[PeriodicTaskEntry]
    since_ms: int
