"""Messages about history (docs/rfcs/0007-history.md): list, retrieve and count messages and attempts."""

from __future__ import annotations

from typing import Any

import msgspec

from .. import permissions
from ..permissions import SHOWN
from .message_base import Numbered, Request, WireRecord, operation


class QueueStatus(WireRecord, frozen=True):
    """Status of a message in one queue.

    Attributes:
        status: ``available``, ``in_flight``, ``running`` (its task began), ``done`` or ``failed``; if it left the queue
            without a lease, ``expired``, ``dropped`` (the queue was full), ``moved`` (to another queue) or ``removed``.
        attempts: the number of its leases.
        at_ms: the start of the status: the time of the lease, the start of the task, the settlement, or the removal
            from the queue; 0 for ``available``.
        consumer: the name of the consumer, for ``in_flight`` and ``running``.
        visible_at_ms: the earliest time of delivery, for ``available``.
    """

    queue: str
    status: str
    attempts: int
    at_ms: int
    consumer: str
    visible_at_ms: int


class MessageInfo(WireRecord, frozen=True):
    """Stored message: its metadata, and its status in each queue that it was routed to.

    Attributes:
        created_at_ms: the time of sending, by the sender's clock.
        received_at_ms: the time of receipt, by the broker's clock.
        visible_at_ms: the earliest time of delivery.
        retention_seconds: the time to live from its receipt; 0 means that it does not expire.
        headers: its metadata headers.
    """

    id: int
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    retention_seconds: int
    headers: dict[str, str]
    queues: tuple[QueueStatus, ...]

    def status(self, queue: str) -> str | None:
        """Return the status in a queue; None if the message was not routed to that queue."""
        return next((entry.status for entry in self.queues if entry.queue == queue), None)

    @property
    def trace_id(self) -> str:
        """Trace of the publish, as 32 hexadecimal digits; empty if it has none."""
        return self.headers.get("trace_id", "")


class EventInfo(WireRecord, frozen=True):
    """Message of an attempt.

    Attributes:
        created_at_ms, received_at_ms, visible_at_ms, headers: as in :class:`MessageInfo`.
        body: the body as it was sent; None unless requested. On the wire it is the envelope.
        body_error: the reason why the body can't be read.
    """

    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    headers: dict[str, str]
    body: Any = None
    body_error: str = ""

    @property
    def exchange(self) -> str:
        """Exchange to which it was published."""
        return self.headers.get("exchange", "")

    @property
    def topic(self) -> str:
        """Routing key with which it was published."""
        return self.headers.get("routing_key", "")


class AttemptInfo(WireRecord, frozen=True):
    """Finished attempt.

    Attributes:
        id: opaque to clients.
        consumer: the name of the consumer that held the lease.
        number: the number of the message's leases in this queue so far, including this attempt.
        outcome: ``acked``, ``failed`` (no attempts were left), ``rejected``, ``expired`` (the lease ended),
            ``released`` (returned before it was started) or ``redriven`` (made ready again after a failure).
        requeued: True if the message returned to its queue.
        manual: True if a user ended the attempt manually.
        event: the message; None if it is no longer stored, because attempts are stored longer than messages.
        state: the state of the task that a worker reported: ``succeeded``, ``raised``, ``retried``, ``revoked``,
            ``timed_out``, ``rejected``, ``ignored``, or ``lost`` (its worker or pool process ended while it ran);
            otherwise empty.
        runtime_ms: the runtime of the task.
        pid: the id of the process that ran the task.
        exception: the type of the exception.
        error: the message of the exception, at most 2 KiB.
        traceback: at most 16 KiB; in a list empty unless requested.
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

    @property
    def trace_id(self) -> str:
        """Trace of the message's publish, while the message is stored; empty if it has none."""
        return self.event.headers.get("trace_id", "") if self.event is not None else ""


# ------------------------------------------------------------------ broker → client
class MessagePage(Numbered, tag=162):
    """Page of messages, and the cursors of the next and the previous page, if any."""

    items: tuple[MessageInfo, ...]
    next: str | None = None
    prev: str | None = None


class AttemptPage(Numbered, tag=163):
    """Page of attempts, and the cursors of the next and the previous page, if any."""

    items: tuple[AttemptInfo, ...]
    next: str | None = None
    prev: str | None = None


class Counts(Numbered, tag=166):
    """Counts of all buckets, including empty ones; the first bucket begins at ``start_ms``."""

    start_ms: int
    bucket_ms: int
    counts: list[int]


# ------------------------------------------------------------------ client → broker
@operation("list messages of the history", permissions.history, query=True)
class ListMessages(Request[MessagePage], tag=62, kw_only=True):
    """Request to list a page of messages.

    An empty filter matches everything. ``order`` is ``desc`` or ``asc``; ``next`` and ``prev`` are the cursors in an
    earlier reply.
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


@operation("list attempts", permissions.history, query=True)
class ListAttempts(Request[AttemptPage], tag=63, kw_only=True):
    """Request to list a page of attempts.

    ``ids`` are message ids; ``bodies`` requests the messages' envelopes, ``tracebacks`` the tracebacks of failed
    tasks; the other fields are as in ListMessages.
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


@operation("retrieve a message of the history", SHOWN, query=True)
class RetrieveMessage(Request[MessagePage], tag=64):
    """Request to get a message. Reply: MessagePage, with one message or none."""

    id: int


@operation("retrieve an attempt", SHOWN, query=True)
class RetrieveAttempt(Request[AttemptPage], tag=65):
    """Request to get an attempt; ``bodies`` requests the message's envelope.

    Reply: AttemptPage, with one attempt or none.
    """

    id: str
    bodies: bool = False


@operation("count attempts", permissions.history, query=True)
class CountAttempts(Request[Counts], tag=66, kw_only=True):
    """Request to count the attempts that ended, by time. The filters are as in ListAttempts.

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


@operation("count messages", permissions.history, query=True)
class CountMessages(Request[Counts], tag=67, kw_only=True):
    """Request to count the stored messages by the time of receipt.

    The other fields are as in CountAttempts.
    """

    gte: int
    lt: int
    bucket_ms: int
    queues: list[str] = msgspec.field(default_factory=list)
    statuses: list[str] = msgspec.field(default_factory=list)
    headers: dict[str, list[str]] = msgspec.field(default_factory=dict)
    ids: list[int] = msgspec.field(default_factory=list)
