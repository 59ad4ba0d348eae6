"""What history shows: messages, attempts, pages of them, counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...protocol.envelope import UNREADABLE, decode
from ...protocol.history_messages import AttemptPage, Counts, MessagePage, StoredAttempt, StoredEvent, StoredMessage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What a message is in one queue.

    Attributes:
        status: ``available``, ``in_flight``, ``done``, ``failed``; or, where it left without being claimed,
            ``expired``, ``dropped`` (the queue was full) or ``removed``.
        attempts: how often it was claimed.
        at_ms: when it was claimed, settled or left; 0 while it is available.
        consumer: who has it, while it is in flight.
        visible_at_ms: from when on it is delivered, while it is available.
    """

    queue: str
    status: str
    attempts: int
    at_ms: int
    consumer: str
    visible_at_ms: int


@dataclass(frozen=True, slots=True)
class MessageInfo:
    """A stored message: its metadata and what it is in each queue that it was routed to."""

    id: int
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    retention_seconds: int
    headers: dict[str, str]
    queues: tuple[QueueStatus, ...]

    def status(self, queue: str) -> str | None:
        """What it is in a queue; None if it was not routed to it."""
        return next((one.status for one in self.queues if one.queue == queue), None)


@dataclass(frozen=True, slots=True)
class EventInfo:
    """The message that an attempt was about.

    Attributes:
        exchange, topic: where it was published to; the topic is its routing key.
        headers: of its metadata, as texts.
        created_at_ms, received_at_ms, visible_at_ms: by the sender's clock, by the broker's, when it could be read.
        body: if it was asked for; as it was sent, or bytes in :mod:`kombu_opendata.client`.
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
        consumer: the name of who had claimed the message.
        number: how often the message had been claimed in this queue, this attempt included.
        outcome: ``acked``, ``failed`` (given up: no attempts left), ``rejected``, ``expired`` (the lease ended),
            ``released`` (handed back unstarted) or ``redriven`` (made available again after it had failed).
        requeued: the message went back to its queue.
        manual: it was brought about by hand.
        event: the message; None if it was collected: attempts are kept for longer.
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
    """Some items of a list. ``next`` and ``prev`` ask for the pages after and before; None where there is none."""

    items: tuple[T, ...]
    next: str | None
    prev: str | None


@dataclass(frozen=True, slots=True)
class Bucket:
    """A count of one stretch of time."""

    start_ms: int
    count: int


def raw_body(envelope: bytes) -> bytes:
    """The bytes of the body in an envelope; of bytes that are none, all."""
    try:
        body = decode(envelope)[0]
    except UNREADABLE:
        return envelope
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)


def messages_of(page: MessagePage) -> Page[MessageInfo]:
    """The page in an answer."""
    return Page(tuple(map(_message, page.items)), page.next, page.prev)


def attempts_of(page: AttemptPage, body_of: Callable[[bytes], Any] = raw_body) -> Page[AttemptInfo]:
    """The page in an answer; ``body_of`` makes an envelope a body."""
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
