"""Messages that publish, deliver and settle."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from .. import permissions
from ..permissions import entry, on_queue
from ..task_reports import TaskReport
from .message_base import Many, Numbered, Request, Texts, WireMessage, operation
from .session_messages import Ok

#: (queue, message id, lease token), represented by a delivery tag. The token is the time of the lease in ms.
Lease = tuple[str, int, int]
#: settlement of a task's message, or REPORT; its lease: queue, message id, token; and the report of the task, None only
#: with START
Reported = tuple[int, str, int, int, TaskReport | None]
#: running task whose message is not acknowledged: its lease, and its age in ms
RunningLate = tuple[str, int, int, int]


class Outcome(IntEnum):
    """End of a lease."""

    ACK = 0
    REQUEUE = 1  # reject(requeue=True): counts an attempt
    REJECT = 2  # reject(requeue=False): to the failed list
    RELEASE = 3  # returned unstarted: counts no attempt
    START = 4  # as ACK; its task is running, and a REPORT follows
    REPORT = 5  # in ReportTasks only: a started task has ended


# ------------------------------------------------------------------ broker → client
class PublishConfirm(Numbered, tag=104):
    """Publisher confirm: the message is durable. ``queues`` counts the queues that received it; 0 means it was dropped.

    A repeated publish that was applied, but is not the session's last, gets ``message_id`` 0 and ``queues`` -1: the
    broker has no further record of it.
    """

    message_id: int
    queues: int


class Delivery(msgspec.Struct, array_like=True, gc=False):
    """Message with its lease, for a consumer or a Get; the tag of a Get is empty. ``attempts`` includes this one."""

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
        """The lease by which the message is settled."""
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
        """Split the message into several, whose envelopes have at most ``max_bytes`` bytes each, or one envelope."""
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

    ``headers`` are the message's metadata headers. A ``visible_at_ms`` of 0 means immediately; a ``ttl_ms`` of -1 means
    no TTL. A message is ``revocable`` if its envelope names the result to store when it expires in a queue; see
    :mod:`kombu_opendata.protocol.revocation`.
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


@operation("consume from a queue", on_queue("read"), definition=True)
class Consume(Request[Ok], tag=11):
    """Request to start a consumer. Deliveries follow as Deliver."""

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
    """Request to limit the unsettled deliveries that a channel's consumers may hold together; 0 means no limit.

    Reply: Ok if rid.
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

    ``seq`` counts the leases that the session has settled on this connection, those of this message included.
    """

    seq: int
    outcome: int
    channel: int
    leases: Many[Lease]


@operation("report the client's tasks", entry(), overtakes=True, large=True)
class ReportTasks(WireMessage, tag=200):
    """Settle messages with the outcomes of their tasks, or report started tasks; confirmed as Settle.

    ``seq`` counts these as Settle's does. ``running`` lists the session's tasks that have run for a second or more and
    whose messages it will acknowledge at their end; it replaces the previous list, and None keeps that.
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
    """Set the number of further deliveries to a channel's consumers, besides the prefetch limit.

    Each delivery uses one.

    A channel has no such limit before its first Credit. It gets no reply.
    """

    channel: int
    count: int
