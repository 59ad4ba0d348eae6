"""Messages that publish, deliver and settle."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from .. import permissions
from ..permissions import entry, on_queue
from ..task_reports import TaskReport
from ..unique_key import UniqueKey
from .message_base import Many, Numbered, Request, Texts, WireMessage, operation
from .session_messages import Ok

#: queue, message id, lease token; a delivery tag stands for it. The token is the time of the lease in ms.
Lease = tuple[str, int, int]
#: outcome; queue, message id and token of the lease; report of the task, None only with START
Reported = tuple[int, str, int, int, TaskReport | None]
#: running task with an unacknowledged message: queue, message id and token of the lease; runtime so far in ms
RunningLate = tuple[str, int, int, int]


#: limit for the leases of settlements that the broker joins, so that each step of its loop stays short
_JOINED_LEASES = 16


class Outcome(IntEnum):
    """End of a lease."""

    ACK = 0
    REQUEUE = 1  # reject(requeue=True): counts an attempt
    REJECT = 2  # reject(requeue=False): to the failed list
    RELEASE = 3  # returned unstarted: counts no attempt
    START = 4  # as ACK; its task is running, and a REPORT follows
    REPORT = 5  # only in ReportTasks: a started task has ended


# ------------------------------------------------------------------ broker → client
class PublishConfirm(Numbered, tag=104):
    """Publisher confirm: the message is durable. ``queues`` is the number of queues that received it.

    The broker stores the reply only to the session's last publish. For an earlier one that is repeated, ``message_id``
    is 0 and ``queues`` is -1.

    ``holder`` is None unless another message holds the unique key, so that nothing was stored. Then ``message_id`` is
    that message's id, and ``holder`` its Celery id, or empty.
    """

    message_id: int
    queues: int
    holder: str | None = None


class Delivery(msgspec.Struct, array_like=True, gc=False):
    """Message with its lease, for a consumer or a Get (whose ``tag`` is empty). ``attempts`` includes this delivery."""

    channel: int
    tag: str
    queue: str
    id: int
    token: int
    attempts: int
    envelope: bytes
    redelivered: bool

    @property
    def lease(self) -> Lease:
        """Lease that settles the message."""
        return self.queue, self.id, self.token


class Got(Numbered, tag=107):
    """Leased message, or None; and the number of ready messages after it."""

    delivery: Delivery | None
    ready: int


class Deliver(WireMessage, tag=108):
    """Messages for consumers. ``settled`` is as in SettleConfirm."""

    settled: int
    deliveries: list[Delivery]

    def cut(self, max_bytes: int) -> list[Deliver]:
        """Split into messages with at most ``max_bytes`` bytes of envelopes each, or a single larger envelope."""
        if sum([len(delivery.envelope) for delivery in self.deliveries]) <= max_bytes:
            return [self]
        parts: list[list[Delivery]] = [[]]
        size = 0
        for delivery in self.deliveries:
            size += len(delivery.envelope)
            if size > max_bytes and parts[-1]:
                parts.append([])
                size = len(delivery.envelope)
            parts[-1].append(delivery)
        return [Deliver(self.settled, part) for part in parts]


class SettleConfirm(WireMessage, tag=109):
    """Confirmation that all settlements up to this count are applied."""

    settled: int


class Cancelled(WireMessage, tag=110):
    """Notice that the broker ended a consumer, because its queue was deleted."""

    channel: int
    tag: str
    reason: str


# ------------------------------------------------------------------ client → broker
@operation("publish a message", permissions.publish, stores=True, large=True)
class Publish(Request[PublishConfirm], tag=3):
    """Request to store a message in every queue that it is routed to.

    Reply: PublishConfirm or Failed, after it is durable.

    ``seq`` numbers the session's publishes from 1. A repeated number gets its reply again but is not stored again.
    Several publishes may be in flight: at most 1,024 numbers from the oldest unanswered publish to the newest.

    ``headers`` is not used: the broker derives the metadata headers from the envelope. A ``visible_at_ms`` of 0 means
    immediately; a ``ttl_ms`` of -1 means no TTL. ``revocable`` means that the envelope describes the result to store
    when the message expires in a queue; see :mod:`kombu_opendata.protocol.revocation`. A message with ``unique`` is
    stored unless another one holds the key.
    """

    seq: int
    exchange: str
    routing_key: str
    envelope: bytes
    headers: Texts
    priority: int  # 0–255, higher first as in Kombu
    created_at_ms: int
    visible_at_ms: int = 0
    ttl_ms: int = -1
    mandatory: bool = False
    revocable: bool = False
    unique: UniqueKey | None = None


@operation("consume from a queue", on_queue("read"), definition=True)
class Consume(Request[Ok], tag=11):
    """Request to start a consumer. The broker sends its messages as Deliver."""

    channel: int
    tag: str
    queue: str
    no_ack: bool
    exclusive: bool
    arguments: dict[str, Any]


@operation("cancel a consumer", entry(), overtakes=True)
class Cancel(Request[Ok], tag=12):
    """Request to cancel a consumer; its deliveries stay leased."""

    channel: int
    tag: str


@operation("limit a channel's unsettled deliveries", entry(), overtakes=True)
class Qos(Request[Ok], tag=13):
    """Request to limit the total unsettled deliveries of a channel's consumers; 0 means no limit.

    Reply: Ok, unless ``rid`` is 0.
    """

    channel: int
    prefetch: int


@operation("get a message of a queue", on_queue("read"), definition=True)
class Get(Request[Got], tag=14):
    """Request to lease one message."""

    channel: int
    queue: str
    no_ack: bool


@operation("settle the client's deliveries", entry(), overtakes=True, large=True)
class Settle(WireMessage, tag=15):
    """End leases, without a reply; ``settled`` in Deliver and SettleConfirm confirms them in bulk.

    ``seq`` is the number of leases that the session has settled on this connection, including those of this message.
    """

    seq: int
    outcome: int
    channel: int
    leases: Many[Lease]

    def join(self, following: Settle) -> bool:
        """Add the leases of the message that follows; return False if it differs, or there would be many leases."""
        if (following.outcome, following.channel) != (self.outcome, self.channel):
            return False
        if len(self.leases) + len(following.leases) > _JOINED_LEASES:
            return False
        self.seq = following.seq
        self.leases += following.leases
        return True


@operation("report the client's tasks", entry(), overtakes=True, large=True)
class ReportTasks(WireMessage, tag=200):
    """Settle messages and report the states of their tasks, without a reply.

    ``seq`` counts the items as in Settle. ``running`` lists the tasks of the session that have run for a second or more
    and whose messages it acknowledges at their end. The list replaces the previous list; None leaves it unchanged.
    """

    seq: int
    items: Many[Reported]
    running: Many[RunningLate] | None = None


@operation("close a channel", entry())
class CloseChannel(Request[Ok], tag=16):
    """Request to cancel a channel's consumers and release its leases."""

    channel: int


@operation("grant credit to a channel", entry(), overtakes=True)
class Credit(WireMessage, tag=40):
    """Set the number of further deliveries to a channel's consumers, in addition to the prefetch limit.

    Each delivery decrements it. A channel has no such limit before its first Credit. The message gets no reply.
    """

    channel: int
    count: int
