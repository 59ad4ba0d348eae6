"""What the clients return about queues, exchanges and workers. Times are UTC datetimes."""

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
    """A queue as it was declared, and what an operator has changed of it.

    Attributes:
        arguments: the ``x-`` arguments of docs/queue-arguments.md, as they were declared.
        consumers: how many are connected now.
        created_at: None if the store is from a version that did not keep this.
        overrides: the arguments that an operator has changed; None stands for one that was taken away.
        paused: whether consumers and reads get nothing.
        publishes_paused: whether publishes are refused.
        paused_at: None if it is not paused.
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
        """The arguments in effect."""
        found = self.arguments | self.overrides
        return {name: value for name, value in found.items() if self.overrides.get(name, value) is not None}


def queue_infos(answer: q.QueueList) -> list[QueueInfo]:
    """All queues, by name."""
    created = answer.created_at_ms or [0] * len(answer.queues)  # an older broker does not say
    changed = answer.overrides or [{}] * len(answer.queues)
    paused = answer.paused or [(False, False, 0)] * len(answer.queues)
    found = [
        QueueInfo(*queue, moment(at), overrides, deliveries, publishes, moment(since))
        for queue, at, overrides, (deliveries, publishes, since) in zip(
            answer.queues, created, changed, paused, strict=True
        )
    ]
    return sorted(found, key=lambda info: info.name)


@dataclass(frozen=True)
class QueueAlteration:
    """What a change of a queue's arguments did, or would do.

    Attributes:
        declared: the arguments of the declaration.
        overrides: what operators have changed of them, with this change; None stands for one that was taken away.
        before: the arguments that were in effect.
        after: the arguments in effect now; with ``dry_run``, those that would be.
        counts: what it means for the messages of the queue, in numbers: ``waiting``, ``dropped``, ``excess``,
            ``examined``, ``unmatched``, ``done`` and ``failed``; see docs/queue-arguments.md.
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
        """From the broker's answer."""
        values = answer.declared, answer.overrides, answer.before, answer.after, answer.counts, answer.notes
        return cls(queue, *values)


@dataclass(frozen=True)
class QueuePause:
    """Whether a queue is paused now.

    Attributes:
        deliveries: whether consumers and reads get nothing.
        publishes: whether publishes are refused.
        since: None if it is not paused.
        changed: whether the call changed that; False if it was so already.
    """

    queue: str
    deliveries: bool
    publishes: bool
    since: datetime | None
    changed: bool

    @classmethod
    def of(cls, queue: str, answer: m.QueuePauseReply) -> QueuePause:
        """From the broker's answer."""
        return cls(queue, answer.deliveries, answer.publishes, moment(answer.since_ms), answer.changed)


@dataclass(frozen=True)
class Binding:
    """A binding: the queue gets what is published to the exchange with this routing key or one that matches it.

    Attributes:
        arguments: for a headers exchange, the headers that a message must have, and ``x-match``.
    """

    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ExchangeInfo:
    """An exchange as it was created.

    Attributes:
        type: ``direct``, ``topic``, ``fanout`` or ``headers``.
        bindings: how many it has.
    """

    name: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    bindings: int


@dataclass(frozen=True)
class QueueMetrics:
    """Figures of a queue; the counts are messages.

    Attributes:
        length: visible + delayed + in_flight.
        visible: messages that can be read now.
        delayed: messages that can be read later.
        in_flight: messages that somebody holds.
        oldest_age_seconds: the time since the broker received the oldest message of ``length``; None if there is none,
            and for queues that are not stored.
        newest_age_seconds: the same of the newest message.
        total: messages sent to the queue since ``counted_since``.
        done: acknowledged messages that are kept. Exact up to 4,000,000; above that, deleted older messages may be
            included.
        failed: failed messages that are kept, counted in the same way.
        archived_failed: failed messages that were archived, counted in the same way.
        consumers: how many are connected.
        sent_per_second: messages sent to the queue, in the last minute.
        delivered_per_second: messages delivered, in the last minute.
        acked_per_second: messages acknowledged, in the last minute.
        counts: all counters since ``counted_since``, by the names of docs/client-api.md.
        counted_since: when the queue was created; for a store from a version that did not keep counters, when a broker
            that does first opened it. Restarts of the broker do not change it.
        at: when these figures were taken.
        paused: whether consumers and reads get nothing, because an operator paused the queue.
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


#: figures that have the same name in the broker's answer
_SAME = (
    "length", "visible", "in_flight", "delayed", "oldest_age_seconds", "newest_age_seconds", "consumers", "done",
    "failed", "delivered_per_second", "acked_per_second",
)  # fmt: skip
_NEWER = ("archived_failed", "paused", "publishes_paused", "failed_per_second")  # an older broker does not send these
_FIGURES = frozenset((*_SAME, *_NEWER, "published_per_second", "counted_since_ms"))


def metrics_of(queue: str, figures: Mapping[str, Any], at_ms: int) -> QueueMetrics:
    """A queue's figures from the broker's answer."""
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
    """The figures of all queues that the user may see.

    Attributes:
        queues: by name. Figures that have not changed since an earlier answer are those of that one: only the ages are
            later.
        changed: the names of those that the broker sent now.
        mark: tells the broker what this client knows.
    """

    at: datetime
    queues: dict[str, QueueMetrics]
    changed: frozenset[str]
    mark: int


def all_metrics(previous: AllMetrics | None, answer: q.Metrics) -> AllMetrics:
    """The figures of the broker's answer, and those of the previous one that are not in it."""
    at = datetime.fromtimestamp(answer.at_ms / 1000, UTC)
    changed = {name: metrics_of(name, figures, answer.at_ms) for name, figures in answer.queues.items()}
    queues = dict(changed)
    if previous is not None and answer.gone is not None:
        later = (at - previous.at).total_seconds()
        gone = {*changed, *answer.gone}
        queues |= {name: _aged(one, later, at) for name, one in previous.queues.items() if name not in gone}
    return AllMetrics(at, dict(sorted(queues.items())), frozenset(changed), answer.mark)


def _aged(one: QueueMetrics, seconds: float, at: datetime) -> QueueMetrics:
    oldest, newest = (
        None if age is None else max(age + seconds, 0.0) for age in (one.oldest_age_seconds, one.newest_age_seconds)
    )
    aged = object.__new__(QueueMetrics)  # thousands of them each second: dataclasses.replace takes ten times as long
    aged.__dict__.update(one.__dict__, at=at, oldest_age_seconds=oldest, newest_age_seconds=newest)
    return aged


@dataclass(frozen=True)
class Worker:
    """A client that is connected, was connected a moment ago, or still holds messages.

    Attributes:
        id: identifies it in the other calls.
        name: the name that the client has given itself.
        since: when it first connected; None if it only holds messages.
        connected: whether it has a connection now.
        connections: how many connections it has now. Each waiting read and each iterator has one of its own.
        suspended: whether it gets no messages until it is resumed.
        held: how many messages it holds whose tasks have not begun. A task that is acknowledged at its end counts as
            begun once it has run for a second or two.
        running: how many tasks it runs.
        consumers: the queues that it consumes.
        reader: whether it holds messages by reads and not only as a consumer.
        prefetch: how many messages of stored queues its consumers may hold together; 0 means no limit, None that it
            consumes no such queue.
        oldest_since: since when it holds or runs the message that it has had for longest.
        oldest_id: the id of that message.
        done_per_minute: how many messages and tasks it finished, in the last minute.
        failed_per_minute: how many messages and tasks failed in it, in the last minute.
        user: who it has logged in as; empty if it did not.
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
    """The figures of a queue, or of all queues together, at each of :attr:`RecentFigures.times`.

    A value is None where the broker does not remember it. Rates are messages per second since the time before, levels
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
    """What the broker remembers of the last ten minutes.

    Attributes:
        times: of the samples, which are some five seconds apart; the oldest comes first.
        queues: those that were asked for and exist, by name.
        total: of all queues; None if the user may not see all queues.
    """

    times: tuple[datetime, ...]
    queues: dict[str, FigureSeries]
    total: FigureSeries | None


def recent_figures(answer: q.Figures) -> RecentFigures:
    """The figures of the broker's answer."""
    queues = {name: _series(found) for name, found in answer.queues.items()}
    times = tuple(datetime.fromtimestamp(at / 1000, UTC) for at in answer.times_ms)
    return RecentFigures(times, queues, None if answer.total is None else _series(answer.total))


def _series(found: Mapping[str, Any]) -> FigureSeries:
    return FigureSeries(**{one.name: tuple(found[one.name]) for one in fields(FigureSeries)})
