"""Messages about metrics of queues, due times of delayed messages, and beat's periodic tasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ..permissions import entry, on_queues
from .message_base import Many, Numbered, Request, WireRecord, moment, operation


class PeriodicTaskEntry(WireRecord, frozen=True):
    """Periodic task in one queue, as recorded since the broker's startup.

    Attributes:
        name: the name of the entry in beat's schedule; empty if the messages don't have it.
        count: the number of publishes.
        first_at_ms, last_at_ms: the times of the first and last publish, also as ``first`` and ``last``.
        interval_ms: the time between the last two publishes; 0 if there was only one publish.
    """

    name: str
    task: str
    queue: str
    count: int
    first_at_ms: int
    last_at_ms: int
    interval_ms: int
    last_message_id: int

    @property
    def first(self) -> datetime:
        return datetime.fromtimestamp(self.first_at_ms / 1000, UTC)

    @property
    def last(self) -> datetime:
        return datetime.fromtimestamp(self.last_at_ms / 1000, UTC)

    @property
    def interval(self) -> timedelta | None:
        """Time between the last two publishes; None if there was only one publish."""
        return timedelta(milliseconds=self.interval_ms) if self.interval_ms else None


class DueCountsReply(Numbered, tag=183):
    """Counts of messages by due time.

    Attributes:
        at_ms: the time of the count, also as ``at``.
        start_ms: the start of the first bucket, which contains ``at_ms``; also as ``start``.
        counts: the number of messages in each bucket.
        later: the number of messages that are due after the last bucket.
        is_estimate: True if some messages are not in memory. These are counted in groups of up to 256 messages, as if
            the due times of a group were distributed evenly between its first and its last one. The sum of all counts
            matches the queue's metrics.
    """

    at_ms: int
    start_ms: int
    counts: list[int]
    later: int
    is_estimate: bool

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.at_ms / 1000, UTC)

    @property
    def start(self) -> datetime:
        return datetime.fromtimestamp(self.start_ms / 1000, UTC)


class PeriodicTaskList(Numbered, tag=184):
    """Periodic tasks, the latest publish first; ``since`` is the time at which the broker began to record them."""

    tasks: list[PeriodicTaskEntry]
    since_ms: int

    @property
    def since(self) -> datetime | None:
        return moment(self.since_ms)


class Metrics(Numbered, tag=177):
    """Metrics by queue.

    Attributes:
        mark: the mark for a later request; 0 if none was requested.
        gone: the queues that were deleted since the mark of the request; None if the reply has all queues.
    """

    at_ms: int
    queues: dict[str, dict[str, Any]]
    mark: int = 0
    gone: list[str] | None = None


class MetricSeries(msgspec.Struct, gc=False):
    """Metrics of a queue, or of all queues together, at each of :attr:`RecentMetrics.times`.

    A value is None if the broker has no sample for that time. Rates are messages per second since the previous sample.

    Attributes:
        failed_per_second: messages that were rejected or had no attempts left, and tasks that failed although their
            message was acknowledged.
    """

    published_per_second: tuple[float | None, ...]
    delivered_per_second: tuple[float | None, ...]
    acked_per_second: tuple[float | None, ...]
    failed_per_second: tuple[float | None, ...]
    ready: tuple[int | None, ...]
    in_flight: tuple[int | None, ...]
    delayed: tuple[int | None, ...]


class RecentMetrics(Numbered, tag=182):
    """Metrics of the last ten minutes.

    Attributes:
        times_ms: the times of the samples, about five seconds apart, the oldest first; also as ``times``.
        queues: the requested queues that exist, by name.
        total: the metrics of all queues together; None if the user may not see all queues.
    """

    times_ms: list[int]
    queues: dict[str, MetricSeries]
    total: MetricSeries | None

    @property
    def times(self) -> tuple[datetime, ...]:
        return tuple(datetime.fromtimestamp(at / 1000, UTC) for at in self.times_ms)


@operation("count delayed messages by due time", on_queues("read", or_role="monitor"), query=True)
class CountDue(Request[DueCountsReply], tag=86):
    """Request to count delayed messages of these queues, or of all queues, by due time.

    There are ``number`` buckets of ``bucket_ms``, aligned to the epoch; the first bucket contains the current time.
    """

    queues: list[str]
    bucket_ms: int
    number: int


@operation("list periodic tasks", entry("lists those of queues with `read`, with `monitor` all"))
class ListPeriodicTasks(Request[PeriodicTaskList], tag=87):
    """Request to list the periodic tasks that beat published."""


@operation("get metrics of queues", on_queues("read", or_role="monitor"), query=True, overtakes=True, large=True)
class GetMetrics(Request[Metrics], tag=77):
    """Request to get the metrics of these queues, or of all queues if the list is empty.

    ``since`` is the mark of an earlier reply about all queues: the reply has only the changes since then. 0 requests
    all queues and a mark; -1 requests no mark.
    """

    queues: Many[str]
    since: int = -1


@operation("get recent metrics of queues", on_queues("read", or_role="monitor"), query=True, overtakes=True)
class GetRecentMetrics(Request[RecentMetrics], tag=85):
    """Request to get the recent metrics of these queues, and the sums of all queues, after ``since_ms``."""

    queues: list[str]
    since_ms: int = 0
