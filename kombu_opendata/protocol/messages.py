"""The messages of the wire protocol, one struct each; those of a topic are in a module of their own: results, history,
replay, filters, staged batches, the queue client.

Each is a msgpack array whose first element is the message's number. ``rid`` is the request's number, chosen by the
client and repeated in the answer; messages without one are never answered. Times are milliseconds since the Unix
epoch, UTC. See docs/rfcs/0002-wire-protocol.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from .filter_messages import Explain as Explain
from .filter_messages import Explained as Explained
from .frame_limits import Held, Many, Texts
from .history_messages import AttemptPage as AttemptPage
from .history_messages import CountAttempts as CountAttempts
from .history_messages import CountMessages as CountMessages
from .history_messages import Counts as Counts
from .history_messages import ListAttempts as ListAttempts
from .history_messages import ListMessages as ListMessages
from .history_messages import MessagePage as MessagePage
from .history_messages import RetrieveAttempt as RetrieveAttempt
from .history_messages import RetrieveMessage as RetrieveMessage
from .instance_messages import CreateInstance as CreateInstance
from .instance_messages import InstanceCreated as InstanceCreated
from .instance_messages import InstanceList as InstanceList
from .instance_messages import ListInstances as ListInstances
from .message_base import Message as _Message
from .queue_messages import BrokerAnswer as BrokerAnswer
from .queue_messages import ClientCall as ClientCall
from .replay_messages import ArchiveFailed as ArchiveFailed
from .replay_messages import CursorList as CursorList
from .replay_messages import Cursors as Cursors
from .replay_messages import DeleteSettled as DeleteSettled
from .replay_messages import Redrive as Redrive
from .replay_messages import Redriven as Redriven
from .replay_messages import Replay as Replay
from .replay_messages import ReplayStarted as ReplayStarted
from .replay_messages import SettledDeleted as SettledDeleted
from .result_messages import ChordParts as ChordParts
from .result_messages import CloseChord as CloseChord
from .result_messages import ForgetResults as ForgetResults
from .result_messages import GetChord as GetChord
from .result_messages import GetResults as GetResults
from .result_messages import OpenChord as OpenChord
from .result_messages import Results as Results
from .result_messages import ResultsChanged as ResultsChanged
from .result_messages import ResultStored as ResultStored
from .result_messages import StoreResult as StoreResult
from .result_messages import UnwatchResults as UnwatchResults
from .result_messages import WatchResults as WatchResults
from .staging_messages import AbortJob as AbortJob
from .staging_messages import CommitJob as CommitJob
from .staging_messages import GetJob as GetJob
from .staging_messages import GetStagingTarget as GetStagingTarget
from .staging_messages import JobReport as JobReport
from .staging_messages import Jobs as Jobs
from .staging_messages import ListJobs as ListJobs
from .staging_messages import StagingInfo as StagingInfo

#: (queue, message id, lease token): what a delivery tag stands for. The token is the claim's time in ms.
Lease = tuple[str, int, int]


class Outcome(IntEnum):
    """How a lease ends."""

    ACK = 0
    REQUEUE = 1  # reject(requeue=True): costs an attempt
    REJECT = 2  # reject(requeue=False): to the failed list
    RELEASE = 3  # handed back unstarted: costs no attempt


# ------------------------------------------------------------------ client → broker
class Hello(_Message, tag=1):
    """First message of a connection, of 8 KiB at most. Answer: Welcome or Failed; nothing may follow it before.

    With ``resume`` the session existed before, and with ``resume_follows`` the answer to a login is LoggedIn: the
    client then sends what it holds as a Resume. A client that sets only ``resume`` gives ``held`` and ``settles`` here.
    """

    rid: int
    session: bytes  # 16 random bytes
    name: str  # consumer id, e.g. "celery@host:1234"
    instance: str = "default"
    user: str = ""
    secret: str = ""
    resume: bool = False
    held: list[tuple[int, str, int, int]] = msgspec.field(default_factory=list)  # channel, queue, id, token
    settles: list[tuple[int, str, int, int]] = msgspec.field(default_factory=list)  # outcome, queue, id, token
    heartbeat_ms: int = 0  # how often the client wants to hear of the broker; 0: it has no wish
    client: bytes = b""  # 16 random bytes; exclusive queues are for all sessions of one client. Empty: for this one
    resume_follows: bool = False

    def __repr__(self) -> str:
        """Without the secret, for tracebacks that show variables."""
        return f"Hello(name={self.name!r}, instance={self.instance!r}, user={self.user!r}, resume={self.resume})"


class Heartbeat(_Message, tag=2):
    """Proof of life, either way. Not answered."""


class Publish(_Message, tag=3):
    """Store one message in every queue it is routed to. Answer: Published or Failed, after it is durable.

    ``seq`` counts the session's publishes from 1 up; one that was applied already is answered again, not stored again.
    Several may be in flight: up to 1,024 numbers from the oldest unanswered one to the newest.
    ``headers`` are the message's metadata headers. ``visible_at_ms`` 0 is at once; ``ttl_ms`` -1 is none. A message is
    ``revocable`` if its envelope says which result it leaves when it expires in a queue: see
    :mod:`kombu_opendata.protocol.revocation`.
    """

    rid: int
    seq: int
    exchange: str
    routing_key: str
    envelope: bytes
    headers: Texts
    priority: int  # 0–255, Kombu's way: higher first
    created_at_ms: int
    visible_at_ms: int = 0
    ttl_ms: int = -1
    mandatory: bool = False
    revocable: bool = False


class DeclareQueue(_Message, tag=4):
    """Answer: QueueInfo. An empty name asks for a generated one (transient queues only).

    ``strict`` refuses unknown ``x-`` arguments, which otherwise are warnings of the answer.
    """

    rid: int
    queue: str
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]
    passive: bool
    strict: bool = False


class DeleteQueue(_Message, tag=5):
    """Answer: Count (messages removed)."""

    rid: int
    queue: str
    if_unused: bool
    if_empty: bool


class PurgeQueue(_Message, tag=6):
    """Answer: Count (messages removed)."""

    rid: int
    queue: str


class DeclareExchange(_Message, tag=7):
    """Answer: Ok."""

    rid: int
    exchange: str
    type: str
    durable: bool
    auto_delete: bool
    arguments: dict[str, Any]
    passive: bool


class DeleteExchange(_Message, tag=8):
    """Answer: Ok."""

    rid: int
    exchange: str
    if_unused: bool


class Bind(_Message, tag=9):
    """Answer: Ok. ``checked``: of a topic exchange the routing key must be a pattern by the rules of :mod:`.topics`."""

    rid: int
    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any]
    checked: bool = False


class Unbind(_Message, tag=10):
    """Answer: Ok, also when there was no such binding."""

    rid: int
    queue: str
    exchange: str
    routing_key: str
    arguments: dict[str, Any]


class Consume(_Message, tag=11):
    """Start a consumer. Answer: Ok. Deliveries follow as Deliver."""

    rid: int
    channel: int
    tag: str
    queue: str
    no_ack: bool
    exclusive: bool
    arguments: dict[str, Any]


class Cancel(_Message, tag=12):
    """Stop a consumer; what it holds stays leased. Answer: Ok."""

    rid: int
    channel: int
    tag: str


class Qos(_Message, tag=13):
    """How many unsettled deliveries a channel may hold over all its consumers; 0 is no limit. Answer: Ok if rid."""

    rid: int
    channel: int
    prefetch: int


class Get(_Message, tag=14):
    """Claim one message. Answer: Got."""

    rid: int
    channel: int
    queue: str
    no_ack: bool


class Settle(_Message, tag=15):
    """End leases. Not answered, but confirmed in bulk by ``settled`` in Deliver and Settled.

    ``seq`` counts the leases that the session has settled on this connection, this message's included.
    """

    seq: int
    outcome: int
    channel: int
    leases: Many[Lease]


class CloseChannel(_Message, tag=16):
    """Cancel a channel's consumers and release what it holds. Answer: Ok."""

    rid: int
    channel: int


class ListBindings(_Message, tag=17):
    """Answer: Bindings."""

    rid: int


class Goodbye(_Message, tag=18):
    """The session ends: its leases are released, its publish counter forgotten. Answer: Ok."""

    rid: int


class GetStatus(_Message, tag=19):
    """Answer: Status."""

    rid: int


class Resume(_Message, tag=20):
    """What a client has of a session that goes on; sent once, after LoggedIn. Answer: Welcome.

    ``held`` are the leases that the client still has, with the channel each belongs to, and ``settles`` the settlements
    that were sent but not yet confirmed, in order. All other leases of the session were never received and are
    returned to their queues.
    """

    rid: int
    held: Held[tuple[int, str, int, int]]  # channel, queue, id, token
    settles: Held[tuple[int, str, int, int]]  # outcome, queue, id, token


class Maintain(_Message, tag=60):
    """Do maintenance duties now; an empty list is all of them. Answer: Maintained.

    ``again_in_seconds`` is when the client means to ask again (0: it does not say); the broker's own collecting waits
    until that is overdue.
    """

    rid: int
    duties: list[str]
    again_in_seconds: float = 0.0


class Credit(_Message, tag=40):
    """How many more deliveries a channel's consumers may get, besides the prefetch limit; each one takes one away.

    Before the first there is no such limit. Not answered.
    """

    channel: int
    count: int


ClientMessage = (
    Hello
    | Heartbeat
    | Publish
    | DeclareQueue
    | DeleteQueue
    | PurgeQueue
    | DeclareExchange
    | DeleteExchange
    | Bind
    | Unbind
    | Consume
    | Cancel
    | Qos
    | Get
    | Settle
    | CloseChannel
    | ListBindings
    | Goodbye
    | GetStatus
    | Resume
    | Maintain
    | StoreResult
    | GetResults
    | WatchResults
    | UnwatchResults
    | ForgetResults
    | OpenChord
    | GetChord
    | CloseChord
    | Explain
    | Credit
    | CreateInstance
    | ListInstances
    | Cursors
    | Replay
    | Redrive
    | DeleteSettled
    | ArchiveFailed
    | ClientCall
    | GetStagingTarget
    | CommitJob
    | AbortJob
    | GetJob
    | ListJobs
    | ListMessages
    | ListAttempts
    | RetrieveMessage
    | RetrieveAttempt
    | CountAttempts
    | CountMessages
)

#: channel, consumer tag, queue, message id, lease token, attempts (1 + failed deliveries before), envelope, redelivered
Delivery = tuple[int, str, str, int, int, int, bytes, bool]


# ------------------------------------------------------------------ broker → client
class Welcome(_Message, tag=101):
    """Answer to Hello, or to Resume: the limits of this connection and how many held leases were taken over.

    ``last_seq`` is the last publish of this session that was applied. The broker sends something at least every
    ``heartbeat_ms``; 0: only when there is something to say.
    """

    rid: int
    broker_version: str
    max_frame_bytes: int
    max_message_bytes: int
    heartbeat_ms: int
    last_seq: int
    adopted: int


class LoggedIn(_Message, tag=115):
    """Answer to a Hello with ``resume_follows``: the client may send its Resume."""

    rid: int


class Ok(_Message, tag=102):
    rid: int
    warnings: list[str] = msgspec.field(default_factory=list)  # about a declaration that was accepted


class Failed(_Message, tag=103):
    """The call failed. rid 0: the connection as a whole, which the broker then closes. See kombu_opendata.errors."""

    rid: int
    code: str
    text: str
    values: dict[str, Any]


class Published(_Message, tag=104):
    """The message is durable. ``queues`` is how many queues got it; 0 means it was dropped.

    A repeated publish that was applied, but is not the session's last, is answered with ``message_id`` 0 and
    ``queues`` -1: no more is known of it.
    """

    rid: int
    message_id: int
    queues: int


class QueueInfo(_Message, tag=105):
    rid: int
    queue: str
    ready: int
    consumers: int
    warnings: list[str] = msgspec.field(default_factory=list)  # about the declaration, which was accepted


class Count(_Message, tag=106):
    rid: int
    count: int


class Got(_Message, tag=107):
    rid: int
    delivery: Delivery | None
    ready: int


class Deliver(_Message, tag=108):
    settled: int
    deliveries: list[Delivery]


class Settled(_Message, tag=109):
    """All settlements up to this count are applied."""

    settled: int


class Cancelled(_Message, tag=110):
    """The broker ended a consumer (its queue was deleted)."""

    channel: int
    tag: str
    reason: str


class BrokerHeartbeat(_Message, tag=111):
    pass


class BrokerGoodbye(_Message, tag=112):
    """The broker stops; reconnect later."""

    reason: str


class Bindings(_Message, tag=113):
    rid: int
    bindings: list[tuple[str, str, str]]  # queue, exchange, routing key
    arguments: list[dict[str, Any]] = msgspec.field(default_factory=list)  # of each binding
    #: name, type, durable, auto_delete, arguments; without the default exchange
    exchanges: list[tuple[str, str, bool, bool, dict[str, Any]]] = msgspec.field(default_factory=list)


class Status(_Message, tag=114):
    rid: int
    report: dict[str, Any]


class Maintained(_Message, tag=160):
    """What was done: see kombu_opendata.client.calls.maintain."""

    rid: int
    report: dict[str, Any]


BrokerMessage = (
    Welcome
    | LoggedIn
    | Ok
    | Failed
    | Published
    | QueueInfo
    | Count
    | Got
    | Deliver
    | Settled
    | Cancelled
    | BrokerHeartbeat
    | BrokerGoodbye
    | Bindings
    | Status
    | Maintained
    | ResultStored
    | Results
    | ChordParts
    | ResultsChanged
    | Explained
    | InstanceCreated
    | InstanceList
    | CursorList
    | ReplayStarted
    | Redriven
    | SettledDeleted
    | BrokerAnswer
    | StagingInfo
    | JobReport
    | Jobs
    | MessagePage
    | AttemptPage
    | Counts
)
