"""The messages about history (docs/rfcs/0007-history.md): list, retrieve and count messages and attempts."""

from __future__ import annotations

from typing import Any

import msgspec

from .message_base import Numbered


class QueueStatus(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The status of a message in one queue.

    Attributes:
        status: ``available``, ``in_flight``, ``running`` (its task began), ``done`` or ``failed``; if
            it left the queue without being claimed, ``expired``, ``dropped`` (the queue was full), ``moved`` (to
            another queue) or ``removed``.
        attempts: how often it was claimed.
        at_ms: when it was claimed or settled, or its task began, or it left the queue; 0 while it is available.
        consumer: the name of the consumer that has it, while it is in flight or running.
        visible_at_ms: when it may be delivered, while it is available.
    """

    queue: str
    status: str
    attempts: int
    at_ms: int
    consumer: str
    visible_at_ms: int


class MessageInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A stored message: its metadata, and its status in each queue that it was routed to.

    Attributes:
        created_at_ms: when it was sent, by the sender's clock.
        received_at_ms: when the broker received it, by the broker's clock.
        visible_at_ms: when it could first be delivered.
        retention_seconds: its time to live since it was received; 0 means that it does not expire.
        headers: its metadata headers, as texts.
        queues: its status in each queue.
    """

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


class EventInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The message of an attempt.

    Attributes:
        created_at_ms: when it was sent, by the sender's clock.
        received_at_ms: when the broker received it, by the broker's clock.
        visible_at_ms: when it could first be delivered.
        headers: its metadata headers, as texts.
        body: if it was asked for, as it was sent. On the wire it is the envelope.
        body_error: why the body can't be read.
    """

    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    headers: dict[str, str]
    body: Any = None
    body_error: str = ""

    @property
    def exchange(self) -> str:
        """Where it was published to."""
        return self.headers.get("exchange", "")

    @property
    def topic(self) -> str:
        """Its routing key."""
        return self.headers.get("routing_key", "")


class AttemptInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An attempt that ended.

    Attributes:
        id: opaque to clients.
        consumer: the name of the consumer that had claimed the message.
        number: how often the message had been claimed in this queue, this attempt included.
        outcome: ``acked``, ``failed`` (no attempts were left), ``rejected``, ``expired`` (the lease ended),
            ``released`` (given back before it was started) or ``redriven`` (made available again after a failure).
        requeued: the message went back to its queue.
        manual: a person ended the attempt by hand.
        event: the message; None if it was collected, as attempts are kept longer than messages.
        state: what became of the task, if a worker reported it: ``succeeded``, ``raised``, ``retried``, ``revoked``,
            ``timed_out``, ``rejected``, ``ignored``, or ``lost`` (its worker or pool process ended while it ran);
            otherwise empty.
        runtime_ms: how long the task ran.
        pid: the process that ran it.
        exception: the exception's type.
        error: the exception's message, of at most 2 KiB.
        traceback: of at most 16 KiB; in a list only if it was asked for.
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
    state: str = ""
    runtime_ms: float = 0.0
    pid: int = 0
    exception: str = ""
    error: str = ""
    traceback: str = ""


# ------------------------------------------------------------------ client → broker
class ListMessages(Numbered, tag=62, kw_only=True):
    """List a page of messages. Answer: MessagePage.

    An empty filter lets everything pass. ``order`` is ``desc`` or ``asc``; ``next`` and ``prev`` are cursors of an
    earlier page.
    """

    queues: list[str] = msgspec.field(default_factory=list)
    statuses: list[str] = msgspec.field(default_factory=list)
    headers: dict[str, list[str]] = msgspec.field(default_factory=dict)
    ids: list[int] = msgspec.field(default_factory=list)
    gte: int | None = None
    lte: int | None = None
    gt: int | None = None
    lt: int | None = None
    order: str = "desc"
    limit: int = 100
    next: str | None = None
    prev: str | None = None


class ListAttempts(Numbered, tag=63, kw_only=True):
    """List a page of attempts. Answer: AttemptPage.

    ``ids`` are message ids; ``bodies`` asks for the messages' envelopes, ``tracebacks`` for those of failed tasks; the
    rest is as in ListMessages.
    """

    queues: list[str] = msgspec.field(default_factory=list)
    outcomes: list[str] = msgspec.field(default_factory=list)
    headers: dict[str, list[str]] = msgspec.field(default_factory=dict)
    ids: list[int] = msgspec.field(default_factory=list)
    consumers: list[str] = msgspec.field(default_factory=list)
    manual: bool | None = None
    gte: int | None = None
    lte: int | None = None
    gt: int | None = None
    lt: int | None = None
    order: str = "desc"
    limit: int = 100
    next: str | None = None
    prev: str | None = None
    bodies: bool = False
    states: list[str] = msgspec.field(default_factory=list)
    exceptions: list[str] = msgspec.field(default_factory=list)
    tracebacks: bool = False


class RetrieveMessage(Numbered, tag=64):
    """Get a message. Answer: MessagePage, with one message or none."""

    id: int


class RetrieveAttempt(Numbered, tag=65):
    """Get an attempt; ``bodies`` asks for the message's envelope. Answer: AttemptPage, with one attempt or none."""

    id: str
    bodies: bool = False


class CountAttempts(Numbered, tag=66, kw_only=True):
    """Count the attempts that ended, by time. Answer: Counts. The filters are as in ListAttempts.

    The time from ``gte`` to ``lt`` is divided into at most 1,000 buckets of ``bucket_ms``, aligned to the epoch.
    """

    gte: int
    lt: int
    bucket_ms: int
    queues: list[str] = msgspec.field(default_factory=list)
    outcomes: list[str] = msgspec.field(default_factory=list)
    headers: dict[str, list[str]] = msgspec.field(default_factory=dict)
    ids: list[int] = msgspec.field(default_factory=list)
    consumers: list[str] = msgspec.field(default_factory=list)
    manual: bool | None = None
    states: list[str] = msgspec.field(default_factory=list)
    exceptions: list[str] = msgspec.field(default_factory=list)


class CountMessages(Numbered, tag=67, kw_only=True):
    """Count the stored messages by the time they were received. Answer: Counts. The rest is as in CountAttempts."""

    gte: int
    lt: int
    bucket_ms: int
    queues: list[str] = msgspec.field(default_factory=list)
    statuses: list[str] = msgspec.field(default_factory=list)
    headers: dict[str, list[str]] = msgspec.field(default_factory=dict)
    ids: list[int] = msgspec.field(default_factory=list)


# ------------------------------------------------------------------ broker → client
class MessagePage(Numbered, tag=162):
    """Messages, and the cursors of the next and the previous page, if any."""

    items: tuple[MessageInfo, ...]
    next: str | None = None
    prev: str | None = None


class AttemptPage(Numbered, tag=163):
    """Attempts, and the cursors of the next and the previous page, if any."""

    items: tuple[AttemptInfo, ...]
    next: str | None = None
    prev: str | None = None


class Counts(Numbered, tag=166):
    """A count for each bucket, empty ones included; the first bucket begins at ``start_ms``."""

    start_ms: int
    bucket_ms: int
    counts: list[int]
