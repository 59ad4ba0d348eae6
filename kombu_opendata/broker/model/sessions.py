"""Sessions of clients, their channels and consumers, and the queues that they consume from."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Protocol

from ...protocol.declared import Declared
from ...protocol.messages import Delivery, Outcome
from ...protocol.messages.message_base import WireMessage
from ...protocol.task_reports import TaskState
from ...storage.records.session_records import WINDOW
from ...storage.state.flow_limits import UNLIMITED as NO_LIMIT
from ...storage.state.flow_limits import FlowLimits
from ...storage.state.queue_buckets import QueueEntry
from ...storage.state.queue_state import QueueState
from ..access.quotas import UNLIMITED
from ..access.rights import ALL_RIGHTS, ANONYMOUS

#: limit for the bytes of deliveries to a client in one turn of the event loop, because the client may not read them
TURN_BYTES = 512 << 10
# plain numbers, compared for each message and report
_FAILED = frozenset(map(int, (TaskState.RAISED, TaskState.TIMED_OUT, TaskState.REJECTED, TaskState.LOST)))
_SUCCEEDED, _ACK, _REJECT = int(TaskState.SUCCEEDED), int(Outcome.ACK), int(Outcome.REJECT)


class SessionConnection(Protocol):
    """A session's connection."""

    @property
    def is_local(self) -> bool:
        """True for a Unix socket: without a network, only the end of the client closes the connection."""

    @property
    def writable(self) -> bool:
        """True if the client reads as fast as the broker sends."""

    def hold(self, is_held: bool) -> None:
        """Let the messages that follow the current one wait, or run them."""

    def send_all(self, outgoing: list[WireMessage]) -> None:
        """Send messages in order."""

    def leave(self) -> None:
        """Close the connection after the next messages are sent."""

    def abort(self) -> None:
        """Close the connection immediately."""


class SessionChannel:
    """Channel with ``held`` unsettled deliveries. A ``prefetch`` of 0 and a ``credit`` of None mean no limit.

    ``starved`` has the queues, in order, that had messages for the channel while its prefetch was used up.
    ``returned`` is the number of returned deliveries since a delivery was last handled. The channel ``is_waiting`` for
    a time after too many of them; its consumers then get no deliveries.
    """

    __slots__ = ("consumers", "credit", "held", "is_waiting", "number", "prefetch", "returned", "starved", "waits")

    def __init__(self, number: int) -> None:
        self.number = number
        self.prefetch = 0
        self.held = 0
        self.credit: int | None = None
        self.returned = 0
        self.is_waiting = False
        self.waits = 0  # number of such waits since a delivery was last handled
        self.consumers: dict[str, Consumer] = {}
        self.starved: dict[ConsumedQueue, None] = {}

    @property
    def is_full(self) -> bool:
        """True if the channel holds as many deliveries as its prefetch allows."""
        return 0 < self.prefetch <= self.held


class Consumer:
    """Consumer of one queue. The consumers with credit and the highest ``priority`` get the queue's messages."""

    __slots__ = ("channel", "exclusive", "no_ack", "priority", "queue", "session", "tag")

    def __init__(
        self,
        session: Session,
        channel: SessionChannel,
        tag: str,
        queue: ConsumedQueue,
        no_ack: bool,
        exclusive: bool,
        priority: int = 0,
    ) -> None:
        self.session = session
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority

    @property
    def key(self) -> tuple[bytes, int, str]:
        """Session, channel and tag, which identify the consumer across reconnects."""
        return self.session.id, self.channel.number, self.tag


class Session:
    """Client, across reconnects. ``leases`` are those of transient queues; the store's state has the other leases."""

    def __init__(self, id: bytes, name: str) -> None:
        self.id = id
        self.name = name
        self.user = ANONYMOUS
        self.login = ""  # the name of the user who logged in
        self.acting_as = ""  # the user that the client acts as
        self.rights = ALL_RIGHTS
        self.quotas = UNLIMITED
        self.client = id  # connections of one client share exclusive queues
        self.connection: SessionConnection | None = None
        self.is_local = False  # of the last connection
        self.lost_at_ms = 0
        self.since_ms = 0
        self.suspended = False  # the session gets no messages until it is resumed
        self.channels: dict[int, SessionChannel] = {}
        self.lease_channels: dict[tuple[str, int], SessionChannel] = {}
        self.leases: dict[tuple[str, int], QueueEntry] = {}
        self.newest_publish = 0  # the highest publish number received
        self.transient_publishes: dict[int, None] = {}  # publish numbers that are not in the store
        self.declared: Declared | None = None  # None if the client does not support Undeclared
        self.owned: set[ConsumedQueue] = set()  # its exclusive queues
        self.settled = 0
        self.reported_settled = 0
        self.done = self.failed = 0  # messages and tasks that ended in this session
        self.replies: list[WireMessage] = []
        self.deliveries: list[Delivery] = []
        self.turn_bytes = 0  # of the messages in ``deliveries``

    @property
    def described(self) -> str:
        """Name and user of the client, for the audit log."""
        if not self.acting_as:
            return repr(self.name)
        return f"{self.name!r} of {f'user {self.login!r}' if self.login else 'anonymous'}"

    def note_transient(self, seq: int) -> None:
        """Record a publish to transient queues only, in the same window of publishes as the store."""
        publishes = self.transient_publishes
        publishes[seq] = None
        if len(publishes) > WINDOW:
            del publishes[next(iter(publishes))]

    def count(self, outcome: int, state: int = 0) -> None:
        """Count a message or a task that this client has ended; a ``state`` of 0 is unknown."""
        if state == _SUCCEEDED or (not state and outcome == _ACK):
            self.done += 1
        elif state in _FAILED or (not state and outcome == _REJECT):
            self.failed += 1

    def channel(self, number: int) -> SessionChannel:
        """Return the channel of this number, or create it; raise LimitExceeded if the client has too many."""
        channel = self.channels.get(number)
        if channel is None:
            for quota in self.quotas:
                quota.check_channel()
            channel = self.channels[number] = SessionChannel(number)
        return channel


class Getter(Protocol):
    """Request for messages by a client that is not a consumer: a Get, or a Read of the queue client.

    Each deliverable message goes to the first getter of the queue, before its consumers.
    """

    session: Session

    def take(self, queue: ConsumedQueue, entry: QueueEntry, now: int) -> bool:
        """Lease a message; return True if the request is complete."""

    def nothing(self) -> bool:
        """Handle that the queue has no message now; return True if the request is complete."""

    def end(self) -> None:
        """Reply before the queue is deleted."""

    def drop(self) -> None:
        """Discard the request of a lost connection; the client repeats it after reconnecting."""


class ConsumedQueue(ABC):
    """Queue with its consumers.

    ``consumers`` are ordered by priority, then by age. ``active`` is the key of the single active consumer, which may
    be disconnected for the grace period of its session.
    """

    def __init__(self, messages: QueueState, *, single_active: bool, auto_delete: bool, now_ms: int) -> None:
        self.name = messages.name
        self.messages = messages
        self.consumers: list[Consumer] = []
        self.has_ranks = False
        self.single_active = single_active
        self.auto_delete = auto_delete
        self.active: tuple[bytes, int, str] | None = None
        self.active_missing = False
        #: sessions that held messages before a restart; one of them has the single active consumer
        self.previous_holders: frozenset[bytes] = frozenset()
        self.getters: deque[Getter] = deque()
        self.turn = 0
        self.deleting = False
        self.is_paused = False  # consumers and getters get no messages
        self.flow: FlowLimits | None = None
        self.used_at_ms = now_ms
        self.timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ delivering
    @abstractmethod
    def next_entry(self, now: int) -> tuple[QueueEntry | None, bool]:
        """Return the next message to deliver, or None; and True if a message is being loaded."""

    @abstractmethod
    def lease(
        self, entry: QueueEntry, session: Session, channel: SessionChannel, tag: str, no_ack: bool, now: int
    ) -> Delivery:
        """Lease a message for a session and return its delivery; with ``no_ack`` it is settled immediately."""

    @property
    @abstractmethod
    def running(self) -> int:
        """Number of tasks that run after their messages were acknowledged."""

    def room(self, now: int) -> int:
        """Return the number of messages that the queue's limits allow to deliver now."""
        if self.flow is None:
            return NO_LIMIT
        return self.flow.room(len(self.messages.in_flight) + self.running, now)

    @abstractmethod
    def drop(self) -> int | None:
        """Delete a transient queue and return the number of its messages; do nothing for a stored queue."""

    # ------------------------------------------------------------------ the next consumer
    def add_consumer(self, consumer: Consumer) -> None:
        """Insert a consumer after the consumers of its priority."""
        index = len(self.consumers)
        while index and self.consumers[index - 1].priority < consumer.priority:
            index -= 1
        self.consumers.insert(index, consumer)
        self.has_ranks = self.has_ranks or consumer.priority != 0

    def starve(self) -> None:
        """Register with each full channel of a consumer that this queue has messages for it."""
        for consumer in self.consumers:
            if consumer.channel.is_full:
                consumer.channel.starved[self] = None
