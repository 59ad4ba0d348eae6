"""Calls about the metrics of queues: current and recent ones, due times, and periodic tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..protocol import messages as m
from ..protocol.messages.message_base import moment
from . import checks
from .base import Base


@dataclass(frozen=True)
class QueueMetrics:
    """Metrics of a queue; the counts are messages.

    Attributes:
        length: ready + delayed + in_flight.
        ready: messages that can be read now.
        delayed: messages that can be read later.
        in_flight: messages that clients hold.
        oldest_age_seconds: the time since the broker received the oldest message of ``length``; None for an empty
            queue, and for a queue that is not stored.
        newest_age_seconds: the same for the newest message.
        total: messages sent to the queue since ``counted_since``.
        done: acknowledged messages that are kept. Exact up to 4,000,000; above that, deleted older messages may be
            included.
        failed: failed messages that are kept, counted in the same way.
        archived_failed: failed messages that were archived, counted in the same way.
        consumers: the number of connected consumers.
        sent_per_second: messages sent to the queue, in the last minute.
        delivered_per_second: messages delivered, in the last minute.
        acked_per_second: messages acknowledged, in the last minute.
        counts: all counters since ``counted_since``, by the names of docs/client-api.md.
        counted_since: the time at which the queue was created; for a store from a version without counters, the time at
            which a broker with counters first opened it. Restarts of the broker do not change it.
        paused: whether an operator has paused deliveries to consumers and reads.
        publishes_paused: whether publishes are refused.
        failed_per_second: messages that were rejected or had no attempts left, and tasks that failed although their
            message was acknowledged; the rate of the last minute.
    """

    queue: str
    length: int
    ready: int
    delayed: int
    in_flight: int
    oldest_age_seconds: float | None
    newest_age_seconds: float | None
    total: int
    done: int
    failed: int
    consumers: int
    sent_per_second: float
    delivered_per_second: float
    acked_per_second: float
    counts: dict[str, int]
    counted_since: datetime | None
    at: datetime | None
    archived_failed: int = 0
    paused: bool = False
    publishes_paused: bool = False
    failed_per_second: float = 0.0


@dataclass(frozen=True)
class AllMetrics:
    """Metrics of all queues that the user may see.

    Attributes:
        queues: the metrics by queue. Unchanged metrics are those of the previous reply, with later ages.
        changed: the names of the queues in this reply.
        mark: identifies this reply to the broker, which then sends only later changes.
    """

    at: datetime
    queues: dict[str, QueueMetrics]
    changed: frozenset[str]
    mark: int


class QueueMetricsCalls(Base):
    """Calls about the metrics of queues."""

    def metrics(self, queue: str) -> QueueMetrics:
        """Return the metrics of a queue; raise NotFound if there is no such queue."""
        answer = self.calls.call(m.GetMetrics(0, [checks.name(queue, "the queue's name")]))
        return metrics_of(queue, answer.queues[queue], answer.at_ms)

    def metrics_all(self) -> dict[str, QueueMetrics]:
        """Return the metrics of all queues, by name."""
        answer = self.calls.call(m.GetMetrics(0, []))
        return {name: metrics_of(name, values, answer.at_ms) for name, values in sorted(answer.queues.items())}

    def metrics_update(self, previous: AllMetrics | None = None) -> AllMetrics:
        """Return the metrics of all queues; the broker sends only those that changed since a previous reply.

        This suits programs that poll: with a thousand idle queues it costs the broker a sixth of :meth:`metrics_all`.
        """
        answer = self.calls.call(m.GetMetrics(0, [], previous.mark if previous is not None else 0))
        return all_metrics(previous, answer)

    def recent_metrics(self, queues: Iterable[str] = (), *, since: datetime | None = None) -> m.RecentMetrics:
        """Return the metrics of queues, and of all queues together, over the last ten minutes.

        The broker keeps them in memory, so they begin with its startup. Of the queues that are in use, only the busiest
        thousand have all ten minutes, and the others have the last minute.

        Args:
            queues: at most 1,000; queues that do not exist are omitted.
            since: only samples after this time.
        """
        names = [checks.name(queue, "the queue's name") for queue in queues]
        since_ms = 0 if since is None else round(1000 * since.timestamp())
        return self.calls.call(m.GetRecentMetrics(0, names, since_ms))

    def count_due(
        self, queues: Iterable[str] = (), *, bucket_seconds: float = 3600, buckets: int = 24
    ) -> m.DueCountsReply:
        """Return the number of delayed messages of these queues, or of all, that are due in the next hours.

        Args:
            bucket_seconds: the length of a bucket of time; buckets begin at multiples of it since the epoch.
            buckets: 1 to 1,000; the first one contains the current time.
        """
        names = [checks.name(queue, "the queue's name") for queue in queues]
        return self.calls.call(m.CountDue(0, names, round(1000 * bucket_seconds), buckets))

    def periodic_tasks(self) -> m.PeriodicTaskList:
        """Return the periodic tasks that Celery's beat has published since the broker started, at most 1,000.

        The broker recognizes them by the header ``celery_beat_task`` of newer versions of Celery, or
        ``periodic_task_name`` of django-celery-beat, which also has the name of the entry.
        """
        return self.calls.call(m.ListPeriodicTasks(0))


#: metrics that have the same name in the broker's reply
_SAME = (
    "length", "in_flight", "delayed", "oldest_age_seconds", "newest_age_seconds", "consumers", "done", "failed",
    "delivered_per_second", "acked_per_second",
    "archived_failed", "paused", "publishes_paused", "failed_per_second",  # an older broker does not send these
)  # fmt: skip
_FIELDS = frozenset((*_SAME, "visible", "published_per_second", "counted_since_ms"))


def metrics_of(queue: str, values: Mapping[str, Any], at_ms: int) -> QueueMetrics:
    """Return a queue's metrics from the broker's reply."""
    return QueueMetrics(
        queue=queue,
        ready=values["visible"],
        total=values["published"],
        sent_per_second=values["published_per_second"],
        counts={name: value for name, value in values.items() if name not in _FIELDS},
        counted_since=moment(values["counted_since_ms"]),
        at=moment(at_ms),
        **{name: values[name] for name in _SAME if name in values},
    )


def all_metrics(previous: AllMetrics | None, answer: m.Metrics) -> AllMetrics:
    """Return the metrics of the broker's reply, completed by those of the previous one."""
    at = datetime.fromtimestamp(answer.at_ms / 1000, UTC)
    changed = {name: metrics_of(name, values, answer.at_ms) for name, values in answer.queues.items()}
    queues = dict(changed)
    if previous is not None and answer.gone is not None:
        later = (at - previous.at).total_seconds()
        replaced = {*changed, *answer.gone}
        queues |= {name: _aged(metrics, later, at) for name, metrics in previous.queues.items() if name not in replaced}
    return AllMetrics(at, dict(sorted(queues.items())), frozenset(changed), answer.mark)


def _aged(metrics: QueueMetrics, seconds: float, at: datetime) -> QueueMetrics:
    ages = metrics.oldest_age_seconds, metrics.newest_age_seconds
    oldest, newest = (None if age is None else max(age + seconds, 0.0) for age in ages)
    # called thousands of times a second: dataclasses.replace takes ten times longer
    aged = object.__new__(QueueMetrics)
    aged.__dict__.update(metrics.__dict__, at=at, oldest_age_seconds=oldest, newest_age_seconds=newest)
    return aged
