"""Models of queues, exchanges and workers that the clients return. Times are UTC datetimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from ..protocol import messages as m
from ..protocol.messages import queue_messages as q
from .message_models import moment


@dataclass(frozen=True)
class QueueInfo:
    """Queue as it was declared, with the changes of operators.

    Attributes:
        arguments: the ``x-`` arguments of docs/queue-arguments.md, as they were declared.
        consumers: the number of connected consumers.
        created_at: the time of creation; None if the store is from a version that did not record it.
        overrides: the arguments that an operator has changed; None stands for a removed one.
        paused: whether deliveries to consumers and reads are paused.
        publishes_paused: whether publishes are refused.
        paused_at: the time of the pause; None if it is not paused.
    """

    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]
    consumers: int
    created_at: datetime | None = None
    overrides: dict[str, Any] = field(default_factory=dict, hash=False)
    paused: bool = False
    publishes_paused: bool = False
    paused_at: datetime | None = None

    @property
    def effective(self) -> dict[str, Any]:
        """Arguments in effect."""
        arguments = self.arguments | self.overrides
        return {name: value for name, value in arguments.items() if self.overrides.get(name, value) is not None}


def queue_infos(answer: q.QueueList) -> list[QueueInfo]:
    """Return all queues, by name."""
    created = answer.created_at_ms or [0] * len(answer.queues)  # absent from an older broker
    changed = answer.overrides or [{}] * len(answer.queues)
    paused = answer.paused or [(False, False, 0)] * len(answer.queues)
    infos = [
        QueueInfo(*queue, moment(at), overrides, deliveries, publishes, moment(since))
        for queue, at, overrides, (deliveries, publishes, since) in zip(
            answer.queues, created, changed, paused, strict=True
        )
    ]
    return sorted(infos, key=lambda info: info.name)


@dataclass(frozen=True)
class QueueAlteration:
    """Effect of a change of a queue's arguments, made or intended.

    Attributes:
        declared: the arguments of the declaration.
        overrides: the changes of operators, including this one; None stands for a removed argument.
        before: the arguments that were in effect.
        after: the arguments in effect now; with ``dry_run``, those after the change.
        counts: the effect on the messages of the queue, in numbers: ``waiting``, ``dropped``, ``excess``, ``examined``,
            ``unmatched``, ``done`` and ``failed``; see docs/queue-arguments.md.
        notes: the same as sentences.
    """

    queue: str
    declared: dict[str, Any]
    overrides: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]
    counts: dict[str, int]
    notes: list[str]

    @classmethod
    def of(cls, queue: str, answer: m.QueueAltered) -> QueueAlteration:
        """Return the alteration from the broker's reply."""
        values = answer.declared, answer.overrides, answer.before, answer.after, answer.counts, answer.notes
        return cls(queue, *values)


@dataclass(frozen=True)
class QueuePause:
    """State of a queue's pause.

    Attributes:
        deliveries: whether deliveries to consumers and reads are paused.
        publishes: whether publishes are refused.
        since: the time of the pause; None if it is not paused.
        changed: whether the call changed the state.
    """

    queue: str
    deliveries: bool
    publishes: bool
    since: datetime | None
    changed: bool

    @classmethod
    def of(cls, queue: str, answer: m.QueuePauseReply) -> QueuePause:
        """Return the state from the broker's reply."""
        return cls(queue, answer.deliveries, answer.publishes, moment(answer.since_ms), answer.changed)


@dataclass(frozen=True)
class Binding:
    """Binding of a queue, which receives the exchange's messages with this routing key or one that matches it.

    Attributes:
        arguments: for a headers exchange, the headers that a message must have, and ``x-match``.
    """

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ExchangeInfo:
    """Exchange as it was created.

    Attributes:
        type: ``direct``, ``topic``, ``fanout`` or ``headers``.
        bindings: the number of its bindings.
    """

    name: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    bindings: int


@dataclass(frozen=True)
class QueueMetrics:
    """Metrics of a queue; the counts are messages.

    Attributes:
        length: visible + delayed + in_flight.
        visible: messages that can be read now.
        delayed: messages that can be read later.
        in_flight: messages that clients hold.
        oldest_age_seconds: the time since the broker received the oldest message of ``length``; None if there is none,
            and for queues that are not stored.
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
        at: the time of these metrics.
        paused: whether an operator has paused deliveries to consumers and reads.
        publishes_paused: whether publishes are refused.
        failed_per_second: messages that were rejected or had no attempts left, and tasks that failed although their
            message was acknowledged; the rate of the last minute.
    """

    queue: str
    length: int
    visible: int
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


#: metrics that have the same name in the broker's reply
_SAME = (
    "length", "visible", "in_flight", "delayed", "oldest_age_seconds", "newest_age_seconds", "consumers", "done",
    "failed", "delivered_per_second", "acked_per_second",
)  # fmt: skip
_NEWER = ("archived_failed", "paused", "publishes_paused", "failed_per_second")  # an older broker does not send these
_FIGURES = frozenset((*_SAME, *_NEWER, "published_per_second", "counted_since_ms"))


def metrics_of(queue: str, figures: Mapping[str, Any], at_ms: int) -> QueueMetrics:
    """Return a queue's metrics from the broker's reply."""
    known = {name: figures[name] for name in _SAME}
    return QueueMetrics(
        queue=queue,
        total=figures["published"],
        sent_per_second=figures["published_per_second"],
        counts={name: value for name, value in figures.items() if name not in _FIGURES},
        counted_since=moment(figures["counted_since_ms"]),
        at=moment(at_ms),
        **{name: figures[name] for name in _NEWER if name in figures},
        **known,
    )


@dataclass(frozen=True)
class AllMetrics:
    """Metrics of all queues that the user may see.

    Attributes:
        queues: the metrics by queue. Unchanged metrics are those of the previous reply, with later ages.
        changed: the names of the queues in this reply.
        mark: identifies the state of this client to the broker.
    """

    at: datetime
    queues: dict[str, QueueMetrics]
    changed: frozenset[str]
    mark: int


def all_metrics(previous: AllMetrics | None, answer: q.Metrics) -> AllMetrics:
    """Return the metrics of the broker's reply, completed by those of the previous one."""
    at = datetime.fromtimestamp(answer.at_ms / 1000, UTC)
    changed = {name: metrics_of(name, figures, answer.at_ms) for name, figures in answer.queues.items()}
    queues = dict(changed)
    if previous is not None and answer.gone is not None:
        later = (at - previous.at).total_seconds()
        replaced = {*changed, *answer.gone}
        queues |= {name: _aged(metrics, later, at) for name, metrics in previous.queues.items() if name not in replaced}
    return AllMetrics(at, dict(sorted(queues.items())), frozenset(changed), answer.mark)


def _aged(one: QueueMetrics, seconds: float, at: datetime) -> QueueMetrics:
    oldest, newest = (
        None if age is None else max(age + seconds, 0.0) for age in (one.oldest_age_seconds, one.newest_age_seconds)
    )
    aged = object.__new__(
        QueueMetrics
    )  # called thousands of times a second: dataclasses.replace takes ten times longer
    aged.__dict__.update(one.__dict__, at=at, oldest_age_seconds=oldest, newest_age_seconds=newest)
    return aged


@dataclass(frozen=True)
class Worker:
    """Client that is connected, was connected recently, or still holds messages.

    Attributes:
        id: the id of the worker in other calls.
        name: the name that the client has set.
        since: the time of its first connection; None if it only holds messages.
        connected: whether it has a connection now.
        connections: the number of its connections. Each waiting read and each iterator has a separate one.
        suspended: whether its deliveries are suspended until it is resumed.
        held: the number of its messages whose tasks have not begun. A task that is acknowledged at its end counts as
            begun once it has run for a second or two.
        running: the number of its running tasks.
        consumers: the queues that it consumes.
        reader: whether it holds messages by reads and not only as a consumer.
        prefetch: the limit for messages of stored queues that its consumers may hold together; 0 means no limit, None
            means that it consumes no such queue.
        oldest_since: the time from which it holds or runs its oldest message.
        oldest_id: the id of that message.
        done_per_minute: the number of messages and tasks that it finished, in the last minute.
        failed_per_minute: the number of its messages and tasks that failed, in the last minute.
        user: its user; empty if it did not log in.
    """

    id: str
    name: str
    since: datetime | None
    connected: bool
    suspended: bool
    held: int
    consumers: tuple[str, ...]
    reader: bool
    connections: int = 0
    running: int = 0
    prefetch: int | None = None
    oldest_since: datetime | None = None
    oldest_id: int | None = None
    done_per_minute: float = 0.0
    failed_per_minute: float = 0.0
    user: str = ""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Worker:
        oldest_at_ms, oldest_id = found.get("oldest") or (0, None)
        return cls(
            found["session"].hex(),
            found["name"],
            moment(found["since_ms"]),
            found["connected"],
            found["suspended"],
            found["held"],
            tuple(found["consumers"]),
            found["reader"],
            found.get("connections", int(found["connected"])),  # an older broker has a row for each connection
            found.get("running", 0),
            found.get("prefetch"),
            moment(oldest_at_ms),
            oldest_id,
            found.get("done_per_minute", 0.0),
            found.get("failed_per_minute", 0.0),
            found.get("user", ""),
        )


@dataclass(frozen=True)
class FigureSeries:
    """Metrics of a queue, or of all queues together, at each of :attr:`RecentFigures.times`.

    A value is None if the broker does not remember it. Rates are messages per second since the previous time, levels
    are messages.

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


@dataclass(frozen=True)
class RecentFigures:
    """Metrics of the last ten minutes that the broker remembers.

    Attributes:
        times: the times of the samples, about five seconds apart, the oldest first.
        queues: the requested queues that exist, by name.
        total: the metrics of all queues together; None if the user may not see all queues.
    """

    times: tuple[datetime, ...]
    queues: dict[str, FigureSeries]
    total: FigureSeries | None


def recent_figures(answer: q.Figures) -> RecentFigures:
    """Return the metrics of the broker's reply."""
    queues = {name: _series(series) for name, series in answer.queues.items()}
    times = tuple(datetime.fromtimestamp(at / 1000, UTC) for at in answer.times_ms)
    return RecentFigures(times, queues, None if answer.total is None else _series(answer.total))


def _series(found: Mapping[str, Any]) -> FigureSeries:
    return FigureSeries(**{column.name: tuple(found[column.name]) for column in fields(FigureSeries)})
