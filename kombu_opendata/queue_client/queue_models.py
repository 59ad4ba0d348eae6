"""What the clients return about queues, exchanges and workers. Times are UTC datetimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..protocol.messages import queue_messages as q
from .message_models import moment


@dataclass(frozen=True)
class QueueInfo:
    """A queue as it was created.

    Attributes:
        arguments: the ``x-`` arguments of docs/queue-arguments.md.
        consumers: how many are connected now.
        created_at: None if the store is from a version that did not keep this.
    """

    name: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]
    consumers: int
    created_at: datetime | None = None


def queue_infos(answer: q.QueueList) -> list[QueueInfo]:
    """All queues, by name."""
    created = answer.created_at_ms or [0] * len(answer.queues)  # an older broker does not say
    found = [QueueInfo(*queue, moment(at)) for queue, at in zip(answer.queues, created, strict=True)]
    return sorted(found, key=lambda info: info.name)


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
        oldest_age_seconds, newest_age_seconds: the time since the broker received the oldest and the newest message of
            ``length``; None if there is none, and for queues that are not stored.
        total: messages sent to the queue since ``counted_since``.
        done, failed, archived_failed: settled messages that are kept. Exact up to 4,000,000; above that, deleted older
            messages may be included.
        consumers: how many are connected.
        sent_per_second, delivered_per_second, acked_per_second: rates of the last minute.
        counts: all counters since ``counted_since``, by the names of docs/client-api.md.
        counted_since: when the queue was created; for a store from a version that did not keep counters, when a broker
            that does first opened it. Restarts of the broker do not change it.
        at: when these figures were taken.
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


#: figures that have the same name in the broker's answer
_SAME = (
    "length", "visible", "in_flight", "delayed", "oldest_age_seconds", "newest_age_seconds", "consumers", "done",
    "failed", "delivered_per_second", "acked_per_second",
)  # fmt: skip
_FIGURES = frozenset((*_SAME, "published_per_second", "counted_since_ms", "archived_failed"))


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
        archived_failed=figures.get("archived_failed", 0),  # an older broker has none
        **known,
    )


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
        held: how many messages it holds.
        consumers: the queues that it consumes.
        reader: whether it holds messages by reads and not only as a consumer.
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

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Worker:
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
        )
