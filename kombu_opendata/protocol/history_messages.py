"""The messages about history (docs/rfcs/0007-history.md): list, retrieve and count messages and attempts."""

from __future__ import annotations

import msgspec

from .message_base import Numbered

#: queue, status, attempts, claimed or settled at, consumer, visible at
MessageInQueue = tuple[str, str, int, int, str, int]


class StoredMessage(msgspec.Struct, array_like=True, gc=False):
    """A message in a list."""

    id: int
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    retention_seconds: int
    headers: dict[str, str]
    queues: list[MessageInQueue]


class StoredEvent(msgspec.Struct, array_like=True, gc=False):
    """The message of an attempt, with its envelope if that was requested."""

    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    headers: dict[str, str]
    envelope: bytes | None = None


class StoredAttempt(msgspec.Struct, array_like=True, gc=False):
    """An attempt in a list. Its ``id`` is opaque to clients; ``event`` is there while the message is stored."""

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
    event: StoredEvent | None = None


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

    ``ids`` are message ids; ``bodies`` asks for the messages' envelopes; the rest is as in ListMessages.
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

    items: list[StoredMessage]
    next: str | None = None
    prev: str | None = None


class AttemptPage(Numbered, tag=163):
    """Attempts, and the cursors of the next and the previous page, if any."""

    items: list[StoredAttempt]
    next: str | None = None
    prev: str | None = None


class Counts(Numbered, tag=166):
    """A count for each bucket, empty ones included; the first bucket begins at ``start_ms``."""

    start_ms: int
    bucket_ms: int
    counts: list[int]
