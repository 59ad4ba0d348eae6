"""The messages of the queue client (docs/client-api.md): sending, reading by time, settling by id, looking, workers.

A call that changes something is done once: a client that lost the answer sends the same number again, and the broker
repeats its answer. The rest of the protocol, and how a message is laid out, is in :mod:`.messages`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from .frame_limits import Many, Texts
from .message_base import Message

#: envelope, metadata headers, priority (0–255, higher first), visible at (ms since the epoch, 0: at once), ttl in ms
#: (-1: none)
Outgoing = tuple[bytes, Texts, int, int, int]
#: message id, lease token (0 where nothing holds it), attempts, lease until ms, envelope, redelivered
ReadRow = tuple[int, int, int, int, bytes, bool]
#: message id, state, priority, visible at ms, attempts, lease token, lease until ms, holder, settled at ms
StateRow = tuple[int, str, int, int, int, int, int, str, int]
#: message id, token; a token of 0 is "whoever holds it for a time, or nobody"
Item = tuple[int, int]


class Ending(IntEnum):
    """What a SettleMessages does to each message."""

    ARCHIVE = 0  # to done, acknowledged
    DELETE = 1  # gone, without history
    REQUEUE = 2  # returned; costs an attempt
    REJECT = 3  # to failed, and to the dead-letter exchange where one is set
    RELEASE = 4  # handed back unstarted: costs no attempt
    SET_VT = 5  # its lease ends, or it becomes visible, so many ms from now


# ------------------------------------------------------------------ client → broker
class Send(Message, tag=70):
    """Store messages, all or none, in one commit. Answer: Sent or Failed, after it is durable.

    ``seq`` is one number of the session's publishes, as in Publish. Each message goes where exchange, routing key and
    the queues' filters send it; ``to_queue``: the queue that the routing key names must get all of them. ``key`` is an
    idempotency key (empty: none), ``digest`` says what the messages are: within ``key_ttl_ms`` a second Send with the
    same key and digest to the same exchange and routing key stores nothing and is answered as the first was; with
    another digest it is refused.

    ``keys`` and ``digests``, instead, are of each message (an empty key: none): those whose keys are known are not
    stored again, the others are, in one commit. A key that comes twice in the batch stores its message once.
    """

    rid: int
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


class Read(Message, tag=71):
    """Claim up to ``quantity`` messages for ``vt_ms``, whatever becomes of the connection. Answer: ReadMessages.

    Without one that is visible the answer waits up to ``wait_ms``. ``pop``: they are acknowledged in the same commit.
    ``selector`` (a filter's text) or ``equal`` (header values) choose; of a long queue only the first visible ones
    are looked at. ``grouped`` (fill, round_robin, head) hands out the messages that have the same text in
    ``group_header`` in the order of their ids, and none of a group that has one in flight.
    """

    rid: int
    queue: str
    quantity: int
    vt_ms: int
    wait_ms: int = 0
    pop: bool = False
    selector: str = ""
    equal: dict[str, str] = msgspec.field(default_factory=dict)
    grouped: str = ""
    group_header: str = ""


class StopReading(Message, tag=72):
    """Have the waiting Read of this number answered at once. Not answered itself."""

    read_rid: int


class SettleMessages(Message, tag=73):
    """End messages by their ids. Answer: SettledMessages. ``delay_ms`` is for RELEASE and SET_VT."""

    rid: int
    queue: str
    ending: int
    items: Many[Item]
    delay_ms: int = 0


class Peek(Message, tag=74):
    """Show messages that wait, by id from above ``after`` on, without claiming them. Answer: Peeked."""

    rid: int
    queue: str
    after: int
    limit: int


class GetMessage(Message, tag=75):
    """Answer: FoundMessage. An empty queue asks in all of them."""

    rid: int
    id: int
    queue: str = ""


class ListByState(Message, tag=76):
    """The messages of a queue in one state. Answer: StatePage.

    ``state``: available, in_flight, delayed, done or failed. The first three are ordered by id, from above ``after``
    on; the others by the time they were settled: ``after`` is then the position that the last page ended with.
    """

    rid: int
    queue: str
    state: str
    after: int
    limit: int


class GetMetrics(Message, tag=77):
    """Figures of these queues, of all if none is named. Answer: Metrics."""

    rid: int
    queues: Many[str]


class ListQueues(Message, tag=78):
    """Answer: QueueList."""

    rid: int


class AskRoutes(Message, tag=79):
    """Which queues would get such a message. Answer: Routed."""

    rid: int
    exchange: str
    routing_key: str
    envelope: bytes  # for a headers exchange
    texts: Texts  # the metadata headers


class ListWorkers(Message, tag=80):
    """Answer: Workers."""

    rid: int


class WorkerMessages(Message, tag=81):
    """What a worker holds, up to ``limit`` messages. Answer: HeldMessages."""

    rid: int
    session: bytes
    limit: int


class ControlWorker(Message, tag=82):
    """``action``: suspend, resume, shutdown or release. Answer: Count (of consumers, or of messages released)."""

    rid: int
    session: bytes
    action: str


class Reclaim(Message, tag=83):
    """Return at once what sessions hold that are gone. Answer: Count. An empty queue is all of them."""

    rid: int
    queue: str = ""


class Ping(Message, tag=84):
    """Answer: Ok, after the next commit: the broker is alive and its store takes writes."""

    rid: int


# ------------------------------------------------------------------ broker → client
class Sent(Message, tag=170):
    """The messages' ids (-1: no queue took it) and the names of the queues of each; one entry stands for all.

    With ``repeated`` nothing was stored now: the key was used before. No ids: they are durable, and no more is known.
    ``new``: of messages with keys of their own, which were stored now; ``queues`` is empty then.
    """

    rid: int
    ids: list[int]
    queues: list[list[str]]
    repeated: bool = False
    new: list[bool] = msgspec.field(default_factory=list)


class ReadMessages(Message, tag=171):
    """``received_at_ms`` has one for each of ``messages``, 0 where it is not known."""

    rid: int
    messages: list[ReadRow]
    received_at_ms: list[int] = msgspec.field(default_factory=list)


class SettledMessages(Message, tag=173):
    """The ids that were settled; of the others why not: id, code, text, values. ``until_ms``: when a SET_VT ends."""

    rid: int
    done: list[int]
    refused: list[tuple[int, str, str, dict[str, Any]]]
    until_ms: int = 0


class Peeked(Message, tag=174):
    """``more``: there are messages behind these."""

    rid: int
    messages: list[tuple[StateRow, int, bytes]]  # and received at ms, envelope
    more: bool


class FoundMessage(Message, tag=175):
    """``envelope`` None: there is no such message. ``states``: queue and row. ``complete``: nothing was left out."""

    rid: int
    envelope: bytes | None
    headers: dict[str, str]
    created_at_ms: int
    received_at_ms: int
    visible_at_ms: int
    states: list[tuple[str, StateRow]]
    complete: bool


class StatePage(Message, tag=176):
    """``after``: ask with this for the next page; -1: this is the last one."""

    rid: int
    rows: list[StateRow]
    after: int


class Metrics(Message, tag=177):
    rid: int
    at_ms: int
    queues: dict[str, dict[str, Any]]


class QueueList(Message, tag=178):
    """``created_at_ms`` has one for each of ``queues``, 0 where it is not known."""

    rid: int
    queues: list[tuple[str, bool, bool, bool, dict[str, Any], int]]  # name, durable, exclusive, auto delete, arguments,
    #                                                                  consumers
    created_at_ms: list[int] = msgspec.field(default_factory=list)


class Routed(Message, tag=179):
    rid: int
    queues: list[str]


class Workers(Message, tag=180):
    rid: int
    workers: list[dict[str, Any]]


class HeldMessages(Message, tag=181):
    rid: int
    messages: list[tuple[str, StateRow]]


ClientCall = (
    Send
    | Read
    | StopReading
    | SettleMessages
    | Peek
    | GetMessage
    | ListByState
    | GetMetrics
    | ListQueues
    | AskRoutes
    | ListWorkers
    | WorkerMessages
    | ControlWorker
    | Reclaim
    | Ping
)
BrokerAnswer = (
    Sent
    | ReadMessages
    | SettledMessages
    | Peeked
    | FoundMessage
    | StatePage
    | Metrics
    | QueueList
    | Routed
    | Workers
    | HeldMessages
)
