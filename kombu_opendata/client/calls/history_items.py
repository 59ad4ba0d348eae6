"""Items of history: messages, attempts, their pages and counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...protocol.envelope import UNREADABLE, decode
from ...protocol.history_messages import AttemptPage, Counts, MessagePage, StoredAttempt, StoredEvent, StoredMessage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The status of a message in one queue.

    Attributes:
        status: ``available``, ``in_flight``, ``done`` or ``failed``; if it left the queue without being claimed,
            ``expired``, ``dropped`` (the queue was full) or ``removed``.
        attempts: how often it was claimed.
        at_ms: when it was claimed or settled, or left the queue; 0 while it is available.
        consumer: the name of the consumer that has it, while it is in flight.
        visible_at_ms: when it may be delivered, while it is available.
    """

    queue: str
    status: str
    attempts: int
    at_ms: int
    consumer: str
    visible_at_ms: int


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A stored message: its metadata, and its status in each queue that it was routed to."""

    id: int
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    retention_seconds: int
    headers: dict[str, str]
    queues: tuple[QueueStatus, ...]

    def status(self, queue: str) -> str | None:
        """Its status in a queue; None if it was not routed to that queue."""
        return next((one.status for one in self.queues if one.queue == queue), None)


@dataclass(frozen=True, slots=True)
class EventInfo:
    """The message of an attempt.

    Attributes:
        exchange, topic: where it was published to; the topic is its routing key.
        headers: its metadata headers, as texts.
        created_at_ms: when it was sent, by the sender's clock.
        received_at_ms: when the broker received it, by the broker's clock.
        visible_at_ms: when it could first be delivered.
        body: if it was asked for, as it was sent; bytes in :mod:`kombu_opendata.client`.
    """

    exchange: str
    topic: str
    headers: dict[str, str]
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    body: Any = None


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """An attempt that ended.

    Attributes:
        consumer: the name of the consumer that had claimed the message.
        number: how often the message had been claimed in this queue, this attempt included.
        outcome: ``acked``, ``failed`` (no attempts were left), ``rejected``, ``expired`` (the lease ended),
            ``released`` (given back before it was started) or ``redriven`` (made available again after a failure).
        requeued: the message went back to its queue.
        manual: a person ended the attempt by hand.
        event: the message; None if it was collected, as attempts are kept longer than messages.
    """

    id: str
    message_id: int
    queue: str
    consumer: str
    claimed_at_ms: int
    ended_at_ms: int
    number: int
    outcome: str
    requeued: bool
    manual: bool
    event: EventInfo | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some items of a list. ``next`` and ``prev`` are the cursors of the next and the previous page, or None."""

    items: tuple[T, ...]
    next: str | None
    prev: str | None


@dataclass(frozen=True, slots=True)
class Bucket:
    """The count of one period."""

    start_ms: int
    count: int


def raw_body(envelope: bytes) -> bytes:
    """The bytes of the body in an envelope; all bytes if they are not an envelope."""
    try:
        body = decode(envelope)[0]
    except UNREADABLE:
        return envelope
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)


def messages_of(page: MessagePage) -> Page[MessageInfo]:
    """The page in an answer."""
    return Page(tuple(map(_message, page.items)), page.next, page.prev)


def attempts_of(page: AttemptPage, body_of: Callable[[bytes], Any] = raw_body) -> Page[AttemptInfo]:
    """The page in an answer; ``body_of`` turns an envelope into a body."""
    return Page(tuple(_attempt(one, body_of) for one in page.items), page.next, page.prev)


def buckets_of(counts: Counts) -> tuple[Bucket, ...]:
    """The counts in an answer."""
    starts = range(counts.start_ms, counts.start_ms + len(counts.counts) * counts.bucket_ms, counts.bucket_ms)
    return tuple(Bucket(start, count) for start, count in zip(starts, counts.counts, strict=True))


def _message(stored: StoredMessage) -> MessageInfo:
    return MessageInfo(
        stored.id,
        stored.created_at_ms,
        stored.received_at_ms,
        stored.visible_at_ms,
        stored.retention_seconds,
        stored.headers,
        tuple(QueueStatus(*one) for one in stored.queues),
    )


def _event(stored: StoredEvent, body_of: Callable[[bytes], Any]) -> EventInfo:
    return EventInfo(
        stored.headers.get("exchange", ""),
        stored.headers.get("routing_key", ""),
        stored.headers,
        stored.created_at_ms,
        stored.received_at_ms,
        stored.visible_at_ms,
        None if stored.envelope is None else body_of(stored.envelope),
    )


def _attempt(stored: StoredAttempt, body_of: Callable[[bytes], Any]) -> AttemptInfo:
    return AttemptInfo(
        stored.id,
        stored.message_id,
        stored.queue,
        stored.consumer,
        stored.claimed_at_ms,
        stored.ended_at_ms,
        stored.number,
        stored.outcome,
        stored.requeued,
        stored.manual,
        None if stored.event is None else _event(stored.event, body_of),
    )
