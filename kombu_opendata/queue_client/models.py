"""What the queue client hands out: plain values, the same for both clients. Moments are UTC datetimes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..errors import OpenDataError, from_wire
from ..protocol import messages as m
from ..protocol import queue_messages as q
from ..protocol.envelope import UNREADABLE
from ..protocol.envelope import decode as open_envelope
from . import bodies


def moment(ms: int) -> datetime | None:
    """A time in ms since the epoch; None for 0."""
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None


@dataclass(frozen=True)
class Message:
    """A message as a read, a delivery, a peek or a look by its id shows it.

    Attributes:
        id: its number, which is never used again; ids ascend with time.
        queue: where it was found.
        body: as it was sent: a JSON value, text, or bytes where the content type is none of these.
        headers: of the message, as they were sent.
        content_type, content_encoding: of the body.
        properties: AMQP's, as Kombu knows them.
        exchange, routing_key: where it was published to.
        attempts: how often it was handed out, this time included.
        redelivered: it was handed out before.
        token: of the lease; 0 where nothing holds it. It is good for one settlement.
        leased_until: when the lease of a read ends; None for a delivery of ``consume``, which its connection holds.
        received_at: when the broker took it; None in a delivery of ``consume``.
        visible_at: when it can be read, in a peek.
        raw: the bytes of the body as they are stored.
    """

    id: int
    queue: str
    body: Any
    headers: dict[str, Any] = field(default_factory=dict)
    content_type: str = ""
    content_encoding: str = ""
    properties: dict[str, Any] = field(default_factory=dict)
    exchange: str = ""
    routing_key: str = ""
    attempts: int = 0
    redelivered: bool = False
    token: int = 0
    leased_until: datetime | None = None
    received_at: datetime | None = None
    visible_at: datetime | None = None
    raw: bytes = field(default=b"", repr=False)
    #: the subscription that it came from, which settles it
    source: Any = field(default=None, repr=False, compare=False)


def message_of(id: int, queue: str, envelope: bytes, **fields: Any) -> Message:
    """A message from its envelope; bytes that are none are its body."""
    try:
        body, content_type, content_encoding, headers, properties, exchange, key = open_envelope(envelope)
    except UNREADABLE:
        return Message(id, queue, envelope, raw=envelope, **fields)
    return Message(
        id,
        queue,
        bodies.decode(body, content_type, content_encoding, headers),
        {str(name): value for name, value in headers.items()},
        content_type or "",
        content_encoding or "",
        {str(name): value for name, value in properties.items()},
        exchange,
        key,
        raw=body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body),
        **fields,
    )


def body_of(envelope: bytes) -> Any:
    """The body in an envelope, as it was sent."""
    return message_of(0, "", envelope).body


def messages_read(queue: str, answer: q.ReadMessages) -> list[Message]:
    """The messages of a Read."""
    received = answer.received_at_ms or [0] * len(answer.messages)  # an older broker does not say
    return [_message_read(queue, row, moment(at)) for row, at in zip(answer.messages, received, strict=True)]


def _message_read(queue: str, row: q.ReadRow, received_at: datetime | None) -> Message:
    id, token, attempts, until, envelope, redelivered = row
    fields = {"attempts": attempts, "redelivered": redelivered, "token": token, "leased_until": moment(until)}
    return message_of(id, queue, envelope, received_at=received_at, **fields)


def message_delivered(delivery: m.Delivery, source: Any) -> Message:
    """A message of a consumer."""
    _channel, _tag, queue, id, token, attempts, envelope, redelivered = delivery
    fields = {"attempts": attempts, "redelivered": redelivered, "token": token, "source": source}
    return message_of(id, queue, envelope, **fields)


@dataclass(frozen=True)
class MessageState:
    """Where a message is in a queue.

    Attributes:
        state: ``available``, ``delayed``, ``in_flight``, ``done``, ``failed`` or ``archived_failed``.
        priority: higher first; 0 for what is settled.
        attempts: how often it was handed out.
        visible_at: when it can be read.
        token: of the lease that holds it.
        leased_until, holder: when that ends at the latest, and who has it.
        settled_at: when it was done or failed.
    """

    id: int
    queue: str
    state: str
    priority: int
    attempts: int
    visible_at: datetime | None = None
    token: int = 0
    leased_until: datetime | None = None
    holder: str = ""
    settled_at: datetime | None = None


def state_of(queue: str, row: q.StateRow) -> MessageState:
    """A row of the broker."""
    id, state, priority, visible, attempts, token, until, holder, settled = row
    times = moment(visible), token, moment(until), holder, moment(settled)
    return MessageState(id, queue, state, priority, attempts, *times)


@dataclass(frozen=True)
class StoredMessage:
    """A message by its id, and where it is.

    Attributes:
        message: payload and headers; its ``queue`` is the first of ``states``, or empty.
        metadata: the headers as texts that filters see.
        created_at, received_at, visible_at: by the sender's clock, by the broker's, when it may be read first.
        states: for each queue that has it.
        complete: False if the search for its states ended at its bound.
    """

    message: Message
    metadata: dict[str, str]
    created_at: datetime | None
    received_at: datetime | None
    visible_at: datetime | None
    states: tuple[MessageState, ...]
    complete: bool


@dataclass(frozen=True)
class StatePage:
    """A page of messages in one state. ``after``: ask with it for the next page; None: there is no more."""

    messages: tuple[MessageState, ...]
    after: int | None


@dataclass(frozen=True)
class Published:
    """Where a message went.

    Attributes:
        id: None if no queue took it.
        queues: the names of those that did.
        repeated: the idempotency key was used before, and this is what was stored then.
    """

    id: int | None
    queues: tuple[str, ...]
    repeated: bool = False


@dataclass(frozen=True)
class SentOnce:
    """A message that was sent under a key of its own. ``new``: it was stored by this call."""

    id: int
    new: bool


@dataclass(frozen=True)
class Settled:
    """What became of a call for many messages.

    Attributes:
        done: the ids that were settled.
        refused: the others, each with the error that says why.
        until: when the leases end now, or the messages become visible; of ``set_vt``.
    """

    done: tuple[int, ...]
    refused: dict[int, OpenDataError]
    until: datetime | None = None

    @classmethod
    def of(cls, answer: q.SettledMessages) -> Settled:
        refused = {id: from_wire(code, text, values) for id, code, text, values in answer.refused}
        return cls(tuple(answer.done), refused, moment(answer.until_ms))


@dataclass(frozen=True)
class QueueInfo:
    """A queue as it was created.

    Attributes:
        arguments: the ``x-`` arguments of docs/queue-arguments.md.
        consumers: that are connected now.
        created_at: None for a queue of a store that was written before this was kept.
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
    """A queue gets what is published to an exchange with a routing key, or one that fits a pattern.

    Attributes:
        arguments: at a headers exchange, the headers that a message must have, and ``x-match``.
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
    """Figures of a queue; counts in messages.

    Attributes:
        length: visible + delayed + in_flight.
        visible: can be read now. delayed: later. in_flight: held by somebody.
        oldest_age_seconds, newest_age_seconds: since the broker took the oldest and the newest message of ``length``;
            None where there is none, and for queues that are not stored.
        total: sent to the queue since ``counted_since``.
        done, failed, archived_failed: settled and kept; exact up to 4,000,000, of more what was deleted from older ones
            may count.
        consumers: that are connected.
        sent_per_second, delivered_per_second, acked_per_second: over the last minute.
        counts: all counters since ``counted_since``, by the names of docs/client-api.md.
        counted_since: when the queue was created. Restarts of the broker change nothing of that; only in a store that
            was written before counters were kept, it is when this version of the broker opened it first.
        at: when this was.
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


#: what the broker calls alike
_SAME = (
    "length", "visible", "in_flight", "delayed", "oldest_age_seconds", "newest_age_seconds", "consumers", "done",
    "failed", "delivered_per_second", "acked_per_second",
)  # fmt: skip
_FIGURES = frozenset((*_SAME, "published_per_second", "counted_since_ms", "archived_failed"))


def metrics_of(queue: str, figures: Mapping[str, Any], at_ms: int) -> QueueMetrics:
    """The broker's figures of a queue."""
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
    """A client that is connected, was so a moment ago, or holds something still.

    Attributes:
        id: names it in the other calls.
        name: as the client calls itself.
        since: when it connected first; None for one that only holds something.
        connected: whether it has a connection now.
        connections: how many it has now. Each read that waits and each iterator has one of its own.
        suspended: it gets no messages until it is resumed.
        held: how many messages it holds.
        consumers: the queues that it consumes.
        reader: whether some of what it holds was read for a time.
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
