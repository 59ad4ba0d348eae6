"""The messages that publish, deliver and settle."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from ..frame_limits import Many, Texts
from ..task_reports import TaskReport
from .message_base import Numbered, WireMessage

#: (queue, message id, lease token): what a delivery tag stands for. The token is the claim's time in ms.
Lease = tuple[str, int, int]
#: how a task's message is settled, or REPORT; its lease: queue, message id, token; and what became of the task, None
#: with START only
Reported = tuple[int, str, int, int, TaskReport | None]
#: a task that runs although its message is not acknowledged: its lease, and for how many ms
RunningLate = tuple[str, int, int, int]
#: channel, consumer tag, queue, message id, lease token, attempts (this one included), envelope, redelivered
Delivery = tuple[int, str, str, int, int, int, bytes, bool]


class Outcome(IntEnum):
    """How a lease ends."""

    ACK = 0
    REQUEUE = 1  # reject(requeue=True): costs an attempt
    REJECT = 2  # reject(requeue=False): to the failed list
    RELEASE = 3  # returned unstarted: costs no attempt
    START = 4  # as ACK; its task runs now, and a REPORT follows
    REPORT = 5  # in ReportTasks only: a task that was started has ended


# ------------------------------------------------------------------ client → broker
class Publish(Numbered, tag=3):
    """Store a message in every queue that it is routed to. Answer: Published or Failed, after it is durable.

    ``seq`` numbers the session's publishes from 1. A repeated number is answered again but not stored again. Several
    publishes may be in flight: at most 1,024 numbers from the oldest unanswered one to the newest.

    ``headers`` are the message's metadata headers. A ``visible_at_ms`` of 0 means at once; a ``ttl_ms`` of -1 means no
    TTL. A message is ``revocable`` if its envelope says which result it leaves when it expires in a queue; see
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


class Consume(Numbered, tag=11):
    """Start a consumer. Answer: Ok. Deliveries follow as Deliver."""

    channel: int
    tag: str
    queue: str
    no_ack: bool
    exclusive: bool
    arguments: dict[str, Any]


class Cancel(Numbered, tag=12):
    """Stop a consumer; what it holds stays leased. Answer: Ok."""

    channel: int
    tag: str


class Qos(Numbered, tag=13):
    """How many unsettled deliveries a channel's consumers may hold together; 0 means no limit. Answer: Ok if rid."""

    channel: int
    prefetch: int


class Get(Numbered, tag=14):
    """Claim one message. Answer: Got."""

    channel: int
    queue: str
    no_ack: bool


class Settle(WireMessage, tag=15):
    """End leases. Not answered, but confirmed in bulk by ``settled`` in Deliver and Settled.

    ``seq`` counts the leases that the session has settled on this connection, those of this message included.
    """

    seq: int
    outcome: int
    channel: int
    leases: Many[Lease]


class ReportTasks(WireMessage, tag=200):
    """Settle messages with what became of their tasks, or report tasks that were started. Confirmed as Settle is.

    ``seq`` counts these as Settle's does. ``running`` lists the session's tasks that have run for a second or more and
    whose messages it will acknowledge at their end; it replaces the list before, and None leaves that.
    """

    seq: int
    items: Many[Reported]
    running: Many[RunningLate] | None = None


class CloseChannel(Numbered, tag=16):
    """Cancel a channel's consumers and release what it holds. Answer: Ok."""

    channel: int


class Credit(WireMessage, tag=40):
    """How many more deliveries a channel's consumers may get, besides the prefetch limit; each delivery uses one.

    A channel has no such limit before its first Credit. Not answered.
    """

    channel: int
    count: int


# ------------------------------------------------------------------ broker → client
class PublishConfirm(Numbered, tag=104):
    """The message is durable. ``queues`` is how many queues got it; 0 means it was dropped.

    A repeated publish that was applied, but is not the session's last, is answered with ``message_id`` 0 and
    ``queues`` -1: the broker knows no more about it.
    """

    message_id: int
    queues: int


class Got(Numbered, tag=107):
    """The message that was claimed, or None; and how many are ready behind it."""

    delivery: Delivery | None
    ready: int


class Deliver(WireMessage, tag=108):
    """Messages for consumers. ``settled`` is as in Settled."""

    settled: int
    deliveries: list[Delivery]

    def cut(self, max_bytes: int) -> list[Deliver]:
        """The same in several messages, whose envelopes have at most so many bytes each, or one envelope."""
        parts: list[list[Delivery]] = [[]]
        size = 0
        for delivery in self.deliveries:
            size += len(delivery[6])
            if size > max_bytes and parts[-1]:
                parts.append([])
                size = len(delivery[6])
            parts[-1].append(delivery)
        return [Deliver(self.settled, part) for part in parts]


class SettleConfirm(WireMessage, tag=109):
    """All settlements up to this count are applied."""

    settled: int


class Cancelled(WireMessage, tag=110):
    """The broker ended a consumer, because its queue was deleted."""

    channel: int
    tag: str
    reason: str
