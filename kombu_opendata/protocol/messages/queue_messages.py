"""The messages of the queue client (docs/client-api.md): send, read for a time, settle by id, peek, control workers.

A call that changes something is done once: a client that lost the answer sends the same number again, and the broker
repeats its answer.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from ..frame_limits import Many, Texts
from .message_base import Numbered, WireMessage

#: envelope, metadata headers, priority (0–255, higher first), visible at ms (0: at once), TTL in ms (-1: no TTL)
Outgoing = tuple[bytes, Texts, int, int, int]
#: message id, lease token (0 if nothing holds it), attempts, lease until ms, envelope, redelivered
ReadRow = tuple[int, int, int, int, bytes, bool]
#: message id, state, priority, visible at ms, attempts, lease token, lease until ms, holder, settled at ms
StateRow = tuple[int, str, int, int, int, int, int, str, int]
#: the code, text and values of an error
Refusal = tuple[str, str, dict[str, Any]]
#: message id, token; a token of 0 means whoever read it for a time, or nobody
Item = tuple[int, int]


class Ending(IntEnum):
    """What a SettleMessages does to each message."""

    ARCHIVE = 0  # acknowledged: to the done list
    DELETE = 1  # removed without history
    REQUEUE = 2  # returned; costs an attempt
    REJECT = 3  # to the failed list, and to the dead-letter exchange if there is one
    RELEASE = 4  # returned unstarted: costs no attempt
    SET_VT = 5  # sets when its lease ends, or when it becomes visible, in ms from now


# ------------------------------------------------------------------ client → broker
class Send(Numbered, tag=70):
    """Store messages, all or none, in one commit. Answer: Sent or Failed, after they are durable.

    ``seq`` is one number of the session's publishes, as in Publish. Each message goes where exchange, routing key and
    the queues' filters send it. With ``to_queue``, the queue that the routing key names must get all of them.

    ``key`` is an idempotency key for the batch (empty: no key), and ``digest`` identifies its content. Within
    ``key_ttl_ms``, a second Send with the same key and digest to the same exchange and routing key stores nothing and
    gets the first one's answer; with another digest it is refused.

    ``keys`` and ``digests`` are instead for each message (an empty key: no key). Messages whose keys are known are not
    stored again; the others are stored in one commit. A key that occurs twice in the batch stores its message once.
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


class Read(Numbered, tag=71):
    """Claim up to ``quantity`` messages for ``vt_ms``; the claim outlives the connection. Answer: ReadMessages.

    If no message is visible, the answer waits up to ``wait_ms``. ``pop`` acknowledges the messages in the same commit.
    ``selector`` (a filter) or ``equal`` (header values) restrict the choice; in a long queue, only the first visible
    messages are examined. ``grouped`` (fill, round_robin, head) hands out messages with the same text in
    ``group_header`` in the order of their ids, and none from a group that has a message in flight.
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


class StopReading(WireMessage, tag=72):
    """Answer the waiting Read with this number at once. Not answered itself."""

    read_rid: int


class SettleMessages(Numbered, tag=73):
    """Settle messages by their ids. Answer: SettledMessages. ``delay_ms`` is for RELEASE and SET_VT."""

    queue: str
    ending: int
    items: Many[Item]
    delay_ms: int = 0


class Peek(Numbered, tag=74):
    """Show waiting messages with ids above ``after``, without claiming them. Answer: Peeked."""

    queue: str
    after: int
    limit: int


class GetMessage(Numbered, tag=75):
    """Show a message in one queue, or in all queues if none is named. Answer: FoundMessage."""

    id: int
    queue: str = ""


class ListByState(Numbered, tag=76):
    """List the messages of a queue in one state. Answer: StatePage.

    ``state`` is available, in_flight, delayed, done, failed or archived_failed. The first three are ordered by id, and
    ``after`` is the last id of the previous page. The others are ordered by the time they were settled, and ``after``
    is the position with which the previous page ended.
    """

    queue: str
    state: str
    after: int
    limit: int


class GetMetrics(Numbered, tag=77):
    """Get figures of these queues, or of all if none is named. Answer: Metrics.

    ``since`` is the mark of an earlier answer about all queues, to get only what has changed since then; 0 to get all
    queues and a mark; -1 to get no mark.
    """

    queues: Many[str]
    since: int = -1


class GetFigures(Numbered, tag=85):
    """Get the recent figures of these queues, later than a time, and the sums of all queues. Answer: Figures."""

    queues: list[str]
    since_ms: int = 0


class ListQueues(Numbered, tag=78):
    """List all queues. Answer: QueueList."""


class AskRoutes(Numbered, tag=79):
    """Ask which queues would get such a message. Answer: Routed."""

    exchange: str
    routing_key: str
    envelope: bytes  # for a headers exchange
    texts: Texts  # the metadata headers


class ListWorkers(Numbered, tag=80):
    """List the clients that are connected or hold messages. Answer: Workers."""


class WorkerMessages(Numbered, tag=81):
    """List up to ``limit`` messages that a worker holds. Answer: HeldMessages."""

    session: bytes
    limit: int


class ControlWorker(Numbered, tag=82):
    """Suspend, resume or shut down a worker, or release what it holds. Answer: Count (of consumers, or of messages)."""

    session: bytes
    action: str


class Reclaim(Numbered, tag=83):
    """Return what lost sessions hold, in one queue or in all if none is named. Answer: Count."""

    queue: str = ""


class Ping(Numbered, tag=84):
    """Ask whether the broker is alive and its store takes writes. Answer: Ok, after the next commit."""


# ------------------------------------------------------------------ broker → client
class Sent(Numbered, tag=170):
    """The messages' ids (-1: no queue took it) and the queues of each; a single entry stands for all.

    ``repeated`` says that the key was used before and nothing was stored now. Without ids, the messages are durable
    and the broker knows no more about them. For messages with keys of their own, ``new`` says which ones were stored
    now, and ``queues`` is empty.
    """

    ids: list[int]
    queues: list[list[str]]
    repeated: bool = False
    new: list[bool] = msgspec.field(default_factory=list)


class ReadMessages(Numbered, tag=171):
    """The messages that were claimed. ``received_at_ms`` has one time for each; 0 if it is not known."""

    messages: list[ReadRow]
    received_at_ms: list[int] = msgspec.field(default_factory=list)


class SettledMessages(Numbered, tag=173):
    """The ids that were settled, and the others with an error: id, code, text, values. ``until_ms`` is for SET_VT."""

    done: list[int]
    refused: list[tuple[int, str, str, dict[str, Any]]]
    until_ms: int = 0


class Peeked(Numbered, tag=174):
    """Waiting messages; ``more`` says that others follow.

    A message of which ``errors`` has one, by its id, can't be read: its envelope is empty.
    """

    messages: list[tuple[StateRow, int, bytes]]  # and received at ms, envelope
    more: bool
    errors: dict[int, Refusal] = msgspec.field(default_factory=dict)


class FoundMessage(Numbered, tag=175):
    """A message and its state in each queue. There is no such message if ``envelope`` is None.

    ``complete`` is False if the search for its states stopped early. With an ``error`` the message can't be read: its
    envelope is empty.
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
    """A page of messages. ``after`` is where the next page begins; -1 means that this is the last one."""

    rows: list[StateRow]
    after: int


class Metrics(Numbered, tag=177):
    """Figures by queue.

    Attributes:
        mark: for a later call; 0 if none was asked for.
        gone: the queues that were deleted since the mark of the request; None if all queues are here.
    """

    at_ms: int
    queues: dict[str, dict[str, Any]]
    mark: int = 0
    gone: list[str] | None = None


class Figures(Numbered, tag=182):
    """Recent figures. Each line of a queue has a value for each of the times, or None where that is not known.

    Attributes:
        queues: by the queue's name, then by the line's: rates per second (``published_per_second``, and the same of
            delivered, acked and failed), and ``ready``, ``in_flight`` and ``delayed``.
        total: the sums of all queues; None if the user may not see all.
    """

    times_ms: list[int]
    queues: dict[str, dict[str, list[int | float | None]]]
    total: dict[str, list[int | float | None]] | None


class QueueList(Numbered, tag=178):
    """All queues. ``created_at_ms`` has one time for each; 0 if it is not known.

    ``overrides`` has what operators have changed of each, and ``paused`` whether its deliveries and its publishes are
    paused, and since when. An older broker sends neither.
    """

    #: name, durable, exclusive, auto delete, arguments, consumers
    queues: list[tuple[str, bool, bool, bool, dict[str, Any], int]]
    created_at_ms: list[int] = msgspec.field(default_factory=list)
    overrides: list[dict[str, Any]] = msgspec.field(default_factory=list)
    paused: list[tuple[bool, bool, int]] = msgspec.field(default_factory=list)


class Routed(Numbered, tag=179):
    """The names of the queues that the user may see, and how many others there are."""

    queues: list[str]
    hidden: int = 0


class Workers(Numbered, tag=180):
    """Clients; see :class:`kombu_opendata.queue_client.queue_models.Worker`."""

    workers: list[dict[str, Any]]


class HeldMessages(Numbered, tag=181):
    """Messages that a worker holds, with their queues."""

    messages: list[tuple[str, StateRow]]
