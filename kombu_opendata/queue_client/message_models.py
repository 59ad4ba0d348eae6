"""Models of messages that the clients return: plain values, the same for both clients. Times are UTC datetimes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from ..errors import BodyTooLarge, OpenDataError, from_wire
from ..protocol import messages as m
from ..protocol.envelope import UNREADABLE
from ..protocol.envelope import decode as open_envelope
from ..protocol.messages import Refusal, StateRow
from ..protocol.messages.message_base import moment
from . import body_codec


@dataclass(frozen=True)
class Message:
    """Message, as returned by reads, deliveries, peeks and look-ups by id.

    Attributes:
        id: the message id, which is never reused; ids ascend with time.
        queue: the queue from which it was read.
        properties: the properties of AMQP, as Kombu names them.
        exchange, routing_key: as it was published.
        attempts: the number of its deliveries, including this one.
        redelivered: whether it was delivered before.
        token: the token of the lease, which is valid for one settlement; 0 if the message is not leased.
        leased_until: the end of a read's lease; None for a delivery of ``consume``, which its connection holds.
        received_at: the time of its receipt by the broker; None in a delivery of ``consume``.
        visible_at: the time from which it can be read; only in a peek.
        raw: the bytes of the body as they are stored.
        error: the reason why the message can't be read, such as a missing batch object. ``body`` then raises it, and
            the other contents of the message are empty.
    """

    id: int
    queue: str
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
    error: OpenDataError | None = None
    #: the subscription that received the message, which settles it
    source: Any = field(default=None, repr=False, compare=False)

    @cached_property
    def body(self) -> Any:
        """Body as it was sent: a JSON value, text, or bytes if it has another content type.

        A compressed body that would become larger than 64 MiB or have more than 2,000,000 elements is returned as
        bytes.

        Raises:
            CorruptRecord: the message can't be read.
        """
        if self.error is not None:
            raise self.error
        return body_codec.decode(self.raw, self.content_type, self.content_encoding, self.headers)

    def displayed(self, budget: body_codec.Budget | None = None) -> Any:
        """Return the body for display.

        Raises:
            BodyTooLarge: it would become larger than 4 MiB, have more than 250,000 elements, or be nested more than 100
                levels deep.
        """
        return body_codec.displayed(self.raw, self.content_type, self.content_encoding, self.headers, budget)

    def __repr__(self) -> str:
        content = f"body={self.body!r}" if self.error is None else f"error={self.error!r}"
        return f"Message(id={self.id}, queue={self.queue!r}, {content}, headers={self.headers!r})"


def message_of(id: int, queue: str, envelope: bytes, *, error: OpenDataError | None = None, **fields: Any) -> Message:
    """Return a message from its envelope. If the bytes are no envelope, they are its body."""
    if error is not None:
        return Message(id, queue, error=error, **fields)
    try:
        body, content_type, content_encoding, headers, properties, exchange, key = open_envelope(envelope)
    except UNREADABLE:
        return Message(id, queue, raw=envelope, **fields)
    return Message(
        id,
        queue,
        {str(name): value for name, value in headers.items()},
        content_type or ("text/plain" if isinstance(body, str) else ""),
        content_encoding or "",
        {str(name): value for name, value in properties.items()},
        exchange,
        key,
        raw=body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body),
        **fields,
    )


def bodies_of_page() -> Callable[[bytes], Any]:
    """Return a function that decodes the body of an envelope, or returns its bytes above the limit of a page."""
    budget = body_codec.Budget.of_display()

    def body_of(envelope: bytes) -> Any:
        message = message_of(0, "", envelope)
        try:
            return message.displayed(budget)
        except BodyTooLarge:
            return message.raw

    return body_of


def messages_read(queue: str, answer: m.ReadMessages) -> list[Message]:
    """Return the messages in the reply to a Read."""
    received = answer.received_at_ms or [0] * len(answer.messages)  # absent from an older broker
    return [
        message_of(
            id,
            queue,
            envelope,
            attempts=attempts,
            redelivered=redelivered,
            token=token,
            leased_until=moment(until),
            received_at=moment(at),
        )
        for (id, token, attempts, until, envelope, redelivered), at in zip(answer.messages, received, strict=True)
    ]


def message_delivered(delivery: m.Delivery, source: Any) -> Message:
    """Return a message that was delivered to a consumer."""
    fields = {name: getattr(delivery, name) for name in ("attempts", "redelivered", "token")}
    return message_of(delivery.id, delivery.queue, delivery.envelope, source=source, **fields)


@dataclass(frozen=True)
class MessageState:
    """State of a message in a queue.

    Attributes:
        state: ``available`` (that is, ready), ``delayed``, ``in_flight``, ``running`` (its task began), ``done``,
            ``failed`` or ``archived_failed``.
        priority: higher comes first; 0 for settled messages.
        attempts: the number of its deliveries.
        visible_at: the time from which it can be read.
        token: the token of its lease, or of the last lease before its task began.
        leased_until: the latest end of the lease.
        holder: the name of the client that holds it, or runs its task.
        settled_at: the time at which it was done or failed.
        running_since: the time at which its task began.
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
    running_since: datetime | None = None


def state_of(queue: str, row: StateRow) -> MessageState:
    """Return a state from a row of the broker's reply."""
    id, state, priority, visible, attempts, token, until, holder, settled = row
    ended, since = (None, moment(settled)) if state == "running" else (moment(settled), None)
    return MessageState(
        id, queue, state, priority, attempts, moment(visible), token, moment(until), holder, ended, since
    )


def messages_peeked(queue: str, answer: m.Peeked) -> list[Message]:
    """Return the messages in the reply to a Peek."""
    return [
        message_of(
            id,
            queue,
            envelope,
            error=_error_of(answer.errors.get(id)),
            attempts=attempts,
            received_at=moment(received),
            visible_at=moment(visible),
        )
        for (id, _state, _priority, visible, attempts, *_), received, envelope in answer.messages
    ]


def _error_of(refusal: Refusal | None) -> OpenDataError | None:
    return None if refusal is None else from_wire(*refusal)


@dataclass(frozen=True)
class StoredMessage:
    """Message by its id, and its state in each queue.

    Attributes:
        message: payload and headers, or its ``error``; its ``queue`` is the first queue in ``states``, or empty.
        metadata: the headers that filters see, as texts.
        created_at: the time of sending, by the sender's clock.
        received_at: the time of its receipt, by the broker's clock.
        visible_at: the first time at which it can be read.
        states: its state in each queue that has it.
        complete: False if the search for its states stopped early.
    """

    message: Message
    metadata: dict[str, str]
    created_at: datetime | None
    received_at: datetime | None
    visible_at: datetime | None
    states: tuple[MessageState, ...]
    complete: bool


def stored_message_of(id: int, queue: str, answer: m.FoundMessage) -> StoredMessage:
    """Return a message from the broker's reply."""
    states = tuple(state_of(name, row) for name, row in answer.states)
    return StoredMessage(
        message_of(id, states[0].queue if states else queue, answer.envelope or b"", error=_error_of(answer.error)),
        answer.headers,
        moment(answer.created_at_ms),
        moment(answer.received_at_ms),
        moment(answer.visible_at_ms),
        states,
        answer.complete,
    )


@dataclass(frozen=True)
class StatePage:
    """Page of messages in one state. Use ``after`` to request the next page; None means there is none."""

    messages: tuple[MessageState, ...]
    after: int | None


@dataclass(frozen=True)
class Published:
    """Destination of a message.

    Attributes:
        id: the message id; None if no queue received the message.
        queues: the names of the queues that received it.
        repeated: True if the idempotency key was used before; the values are those of the first publish. Also True if
            another message holds the unique key; ``id`` is that message.
    """

    id: int | None
    queues: tuple[str, ...]
    repeated: bool = False

    @property
    def new(self) -> bool:
        """True if this call stored the message."""
        return not self.repeated


@dataclass(frozen=True)
class Settled:
    """Result of a call for many messages.

    Attributes:
        done: the ids that were settled.
        refused: the other ids, each with its error.
        until: for ``set_vt``, the end of the leases, or the due time of the messages.
    """

    done: tuple[int, ...]
    refused: dict[int, OpenDataError]
    until: datetime | None = None

    @classmethod
    def of(cls, answer: m.SettledMessages) -> Settled:
        refused = {id: from_wire(code, text, values) for id, code, text, values in answer.refused}
        return cls(tuple(answer.done), refused, moment(answer.until_ms))


def together(parts: list[Settled]) -> Settled:
    """Return the result of a call that was sent in parts."""
    done: list[int] = []
    refused: dict[int, OpenDataError] = {}
    until = None
    for part in parts:
        done += part.done
        refused |= part.refused
        until = part.until or until
    return Settled(tuple(done), refused, until)
