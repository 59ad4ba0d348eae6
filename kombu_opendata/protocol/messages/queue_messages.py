"""Messages of the queue client (docs/client-api.md): send, read for a time, settle by id, peek, control workers.

A call that changes state runs once: a client that lost the reply sends the call with the same number again, and the
broker repeats the reply.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from .. import permissions
from ..permissions import entry, on_queue, role
from ..unique_key import UniqueKey
from .message_base import Many, Numbered, Request, Texts, WireMessage, operation
from .session_messages import Ok
from .topology_messages import Count

#: envelope, metadata headers, priority (0–255, higher first), visible at ms (0: immediately), TTL in ms (-1: no TTL)
Outgoing = tuple[bytes, Texts, int, int, int]
#: message id, lease token (0 if it is not leased), attempts, lease until ms, envelope, redelivered
ReadRow = tuple[int, int, int, int, bytes, bool]
#: message id, state, priority, visible at ms, attempts, lease token, lease until ms, holder, settled at ms
StateRow = tuple[int, str, int, int, int, int, int, str, int]
#: the code, text and values of an error
Refusal = tuple[str, str, dict[str, Any]]
#: message id, token; a token of 0 stands for the lease of any timed read, and for a message without a lease
Item = tuple[int, int]


class Ending(IntEnum):
    """Settlement of each message by a SettleMessages."""

    ARCHIVE = 0  # acknowledged: to the done list
    DELETE = 1  # removed without history
    REQUEUE = 2  # returned to the queue; counts an attempt
    REJECT = 3  # to the failed list, and to the dead-letter exchange if there is one
    RELEASE = 4  # returned unstarted: counts no attempt
    SET_VT = 5  # sets the end of the lease, or the due time if it is not leased, in ms from now


# ------------------------------------------------------------------ broker → client
class Sent(Numbered, tag=170):
    """Ids of the messages (-1: no queue accepted the message), and the queues of each.

    A single entry of ``queues`` applies to all messages. ``repeated`` is True if the idempotency key was used before,
    so that nothing was stored now. An empty ``ids`` means that the messages are durable, but the broker has no further
    record of them. For messages with their own keys, ``new`` is True for each message that was stored now, and
    ``queues`` is empty.
    """

    ids: list[int]
    queues: list[list[str]]
    repeated: bool = False
    new: list[bool] = msgspec.field(default_factory=list)


class ReadMessages(Numbered, tag=171):
    """Leased messages. ``received_at_ms`` has the time of each message; 0 if it is unknown."""

    messages: list[ReadRow]
    received_at_ms: list[int] = msgspec.field(default_factory=list)


class SettledMessages(Numbered, tag=173):
    """Ids of the settled messages, and for each refused message its id, and the code, text and values of the error.

    ``until_ms`` is the time that SET_VT has set; 0 for other settlements.
    """

    done: list[int]
    refused: list[tuple[int, str, str, dict[str, Any]]]
    until_ms: int = 0


class Peeked(Numbered, tag=174):
    """Ready and delayed messages; ``more`` is True if there are further messages.

    If a message can't be read, its envelope is empty and ``errors`` has the reason by message id.
    """

    messages: list[tuple[StateRow, int, bytes]]  # state, received at ms, envelope
    more: bool
    errors: dict[int, Refusal] = msgspec.field(default_factory=dict)


class FoundMessage(Numbered, tag=175):
    """Message and its state in each queue; ``envelope`` is None if there is no such message.

    ``complete`` is False if the search for its states stopped early. If the message can't be read, its envelope is
    empty and ``error`` has the reason.
    """

    envelope: bytes | None
    headers: dict[str, str]
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    states: list[tuple[str, StateRow]]
    complete: bool
    error: Refusal | None = None


class MessageStatePage(Numbered, tag=176):
    """Page of messages. ``after`` is the position of the next page; -1 means that this is the last page."""

    rows: list[StateRow]
    after: int


class Workers(Numbered, tag=180):
    """Clients that are connected or hold messages: :class:`kombu_opendata.queue_client.administration.Worker`."""

    workers: list[dict[str, Any]]


class HeldMessages(Numbered, tag=181):
    """Messages that a worker holds, with their queues."""

    messages: list[tuple[str, StateRow]]


# ------------------------------------------------------------------ client → broker
@operation("send messages", permissions.publish, once=True, stores=True, large=True)
class Send(Request[Sent], tag=70):
    """Request to store messages, all or none, in one commit. Reply: Sent or Failed, after they are durable.

    ``seq`` is the next number of the session's publishes, as in Publish. Each message is routed by exchange, routing
    key and the queues' filters. With ``to_queue``, the queue named by ``routing_key`` must receive all messages.

    ``key`` is an idempotency key for the batch (empty: no key), and ``digest`` identifies its content. Within
    ``key_ttl_ms``, a second Send with the same key and digest to the same exchange and routing key stores nothing and
    gets the first reply again. A Send with the same key and another digest is refused.

    ``keys`` and ``digests`` have an idempotency key (empty: no key) and a digest for each message. Messages whose keys
    were used before are not stored again; the others are stored in one commit. Of messages in the batch with the same
    key, only the first one is stored.

    ``unique`` is as in Publish, for a single message; a message that is not stored is ``repeated``.
    """

    seq: int
    exchange: str
    routing_key: str
    messages: Many[Outgoing]
    created_at_ms: int
    to_queue: bool = False
    key: str = ""
    digest: bytes = b""
    key_ttl_ms: int = 0
    keys: Many[str] = msgspec.field(default_factory=list)
    digests: Many[bytes] = msgspec.field(default_factory=list)
    unique: UniqueKey | None = None


@operation("read messages of a queue", on_queue("read"), once=True, overtakes=True, filter="selector")
class Read(Request[ReadMessages], tag=71):
    """Request to lease up to ``quantity`` messages for ``vt_ms``; the lease outlives the connection.

    If no message is ready, the broker delays the reply for up to ``wait_ms``. ``pop`` acknowledges the messages in the
    same commit. Messages must match ``selector`` (a filter) or ``equal`` (header values); in a long queue, only the
    first ready messages are examined. With ``grouped`` (fill, round_robin, head), the partitions of the queue are
    groups: their messages are delivered in the order of their ids, and no message of a group is delivered while another
    is in flight. ``group_header`` must be its ``x-partition-by``.
    """

    queue: str
    quantity: int
    vt_ms: int
    wait_ms: int = 0
    pop: bool = False
    selector: str = ""
    equal: dict[str, str] = msgspec.field(default_factory=dict)
    grouped: str = ""
    group_header: str = ""


@operation("stop a waiting read", entry(), overtakes=True)
class StopReading(WireMessage, tag=72):
    """Request an immediate reply to the waiting Read with this number. This message itself gets no reply."""

    read_rid: int


@operation("settle messages by their ids", on_queue("read", or_role="operator"), once=True, overtakes=True, large=True)
class SettleMessages(Request[SettledMessages], tag=73):
    """Request to settle messages by their ids. ``delay_ms`` is for RELEASE and SET_VT."""

    queue: str
    ending: int
    items: Many[Item]
    delay_ms: int = 0


@operation("peek at messages", on_queue("read", or_role="monitor"), query=True)
class Peek(Request[Peeked], tag=74):
    """Request to show ready and delayed messages with ids above ``after``, without leasing them."""

    queue: str
    after: int
    limit: int


@operation("get a message by its id", permissions.get_message, query=True)
class GetMessage(Request[FoundMessage], tag=75):
    """Request to show a message in one queue, or in all queues if ``queue`` is empty."""

    id: int
    queue: str = ""


@operation("list messages by state", on_queue("read", or_role="monitor"), query=True)
class ListByState(Request[MessageStatePage], tag=76):
    """Request to list the messages of a queue in one state.

    ``state`` is available, in_flight, delayed, done, failed or archived_failed. For the first three, messages are
    ordered by id, and ``after`` is the last id of the previous page. For the others, messages are ordered by the time
    of settlement, and ``after`` is the ``after`` of the previous reply.
    """

    queue: str
    state: str
    after: int
    limit: int


@operation("see the workers", role("monitor"), query=True)
class ListWorkers(Request[Workers], tag=80):
    """Request to list the clients that are connected or hold messages."""


@operation("see the messages of workers", role("monitor"))
class WorkerMessages(Request[HeldMessages], tag=81):
    """Request to list up to ``limit`` messages that a worker holds."""

    session: bytes
    limit: int


@operation("control workers", role("operator"), once=True)
class ControlWorker(Request[Count], tag=82):
    """Request to suspend, resume or shut down a worker, or release its messages.

    Reply: Count (of consumers, or of messages).
    """

    session: bytes
    action: str


@operation("take messages from lost workers", role("operator"), once=True)
class Reclaim(Request[Count], tag=83):
    """Request to release the messages of lost sessions, in one queue or in all queues if ``queue`` is empty."""

    queue: str = ""


@operation("test the connection", entry(), overtakes=True)
class Ping(Request[Ok], tag=84):
    """Request to check that the broker is alive and its store accepts writes. Reply: Ok, after the next commit."""
