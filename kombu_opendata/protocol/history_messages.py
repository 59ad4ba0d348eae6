"""The messages about history: lists of messages and attempts, and single ones of them.

See docs/rfcs/0007-history.md. The rest of the protocol, and how a message is laid out, is in :mod:`.messages`.
"""

from __future__ import annotations

import msgspec

from .message_base import Message

#: queue, status, attempts, claimed or settled at, consumer, visible at
MessageInQueue = tuple[str, str, int, int, str, int]


class StoredMessage(msgspec.Struct, array_like=True, gc=False):
    """A message as a list shows it; times are ms since the epoch."""

    id: int
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    retention_seconds: int
    headers: dict[str, str]
    queues: list[MessageInQueue]


class StoredEvent(msgspec.Struct, array_like=True, gc=False):
    """The message of an attempt; times are ms since the epoch. The envelope is there if it was asked for."""

    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    headers: dict[str, str]
    envelope: bytes | None = None


class StoredAttempt(msgspec.Struct, array_like=True, gc=False):
    """An attempt as a list shows it; ``id`` is a text that says nothing to a client. ``event``: while it is stored."""

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
class ListMessages(Message, tag=62, kw_only=True):
    """A page of messages. Answer: MessagePage.

    An empty filter is none. ``order`` is ``desc`` or ``asc``; ``next`` and ``prev`` are cursors of an earlier page.
    """

    rid: int
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


class ListAttempts(Message, tag=63, kw_only=True):
    """A page of attempts. Answer: AttemptPage.

    ``ids`` are those of messages; ``bodies``: with the messages' envelopes; the rest is as in ListMessages.
    """

    rid: int
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


class RetrieveMessage(Message, tag=64):
    """Answer: MessagePage, with one message or none."""

    rid: int
    id: int


class RetrieveAttempt(Message, tag=65):
    """Answer: AttemptPage, with one attempt or none. ``bodies``: with the message's envelope."""

    rid: int
    id: str
    bodies: bool = False


class CountAttempts(Message, tag=66, kw_only=True):
    """How many attempts ended, by time. Answer: Counts. The filters are as in ListAttempts.

    Buckets are ``bucket_ms`` long and aligned to the epoch; from ``gte`` to ``lt``, at most 1,000 of them.
    """

    rid: int
    gte: int
    lt: int
    bucket_ms: int
    queues: list[str] = msgspec.field(default_factory=list)
    outcomes: list[str] = msgspec.field(default_factory=list)
    headers: dict[str, list[str]] = msgspec.field(default_factory=dict)
    ids: list[int] = msgspec.field(default_factory=list)
    consumers: list[str] = msgspec.field(default_factory=list)
    manual: bool | None = None


class CountMessages(Message, tag=67, kw_only=True):
    """How many messages were received and are still stored, by time. Answer: Counts. Else as CountAttempts."""

    rid: int
    gte: int
    lt: int
    bucket_ms: int
    queues: list[str] = msgspec.field(default_factory=list)
    statuses: list[str] = msgspec.field(default_factory=list)
    headers: dict[str, list[str]] = msgspec.field(default_factory=dict)
    ids: list[int] = msgspec.field(default_factory=list)


# ------------------------------------------------------------------ broker → client
class MessagePage(Message, tag=162):
    """Messages, and the cursors of the pages after and before, if there are such."""

    rid: int
    items: list[StoredMessage]
    next: str | None = None
    prev: str | None = None


class AttemptPage(Message, tag=163):
    """Attempts, and the cursors of the pages after and before, if there are such."""

    rid: int
    items: list[StoredAttempt]
    next: str | None = None
    prev: str | None = None


class Counts(Message, tag=166):
    """A count for each bucket, the first of which begins at ``start_ms``; a bucket without any has 0."""

    rid: int
    start_ms: int
    bucket_ms: int
    counts: list[int]
