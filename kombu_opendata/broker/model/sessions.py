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
from ...storage.state.queue_buckets import QueueEntry
from ...storage.state.queue_state import QueueState
from ..access.quotas import UNLIMITED
from ..access.rights import ALL_RIGHTS, ANONYMOUS

#: after this many bytes in one turn, a client gets no more deliveries in it, because it may not read them
TURN_BYTES = 512 << 10
# plain numbers, compared for each message and report
_FAILED = frozenset(map(int, (TaskState.RAISED, TaskState.TIMED_OUT, TaskState.REJECTED, TaskState.LOST)))
_SUCCEEDED, _ACK, _REJECT = int(TaskState.SUCCEEDED), int(Outcome.ACK), int(Outcome.REJECT)


class SessionConnection(Protocol):
    """A session's connection."""

    @property
    def is_local(self) -> bool:
        """The connection is a Unix socket, which only the client's end closes, without a network in between."""

    @property
    def writable(self) -> bool:
        """The client reads as fast as the broker sends."""

    def send_all(self, outgoing: list[WireMessage]) -> None:
        """Send messages in order."""

    def leave(self) -> None:
        """Close the connection after the next messages are sent."""

    def abort(self) -> None:
        """Close the connection immediately."""


class SessionChannel:
    """A channel with ``held`` unsettled deliveries. A ``prefetch`` of 0 and a ``credit`` of None mean no limit.

    ``starved`` are the queues that had messages for it while it held as many as its prefetch, in this order.
    ``returned`` counts the deliveries that were returned since the last one that was handled; while the channel
    ``is_waiting`` because of them, its consumers get no deliveries.
    """

    __slots__ = ("consumers", "credit", "held", "is_waiting", "number", "prefetch", "returned", "starved", "waits")

    def __init__(self, number: int) -> None:
        self.number = number
        self.prefetch = 0
        self.held = 0
        self.credit: int | None = None
        self.returned = 0
        self.is_waiting = False
        self.waits = 0  # number of waits since the last delivery that was handled
        self.consumers: dict[str, Consumer] = {}
        self.starved: dict[ConsumedQueue, None] = {}

    @property
    def is_full(self) -> bool:
        """The channel holds as many deliveries as its prefetch allows."""
        return 0 < self.prefetch <= self.held


class Consumer:
    """A consumer of one queue. Consumers with the highest ``priority`` that have credit get its messages."""

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
    """A client, across reconnects. It has the ``leases`` of transient queues; the store's state has the others."""

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
        self.transient_publishes: dict[int, None] = {}  # publish numbers that are not in the store
        self.declared: Declared | None = None  # if the client wants notifications about deletions of these objects
        self.owned: set[ConsumedQueue] = set()  # its exclusive queues
        self.settled = 0
        self.reported_settled = 0
        self.done = self.failed = 0  # messages and tasks that ended in this session
        self.replies: list[WireMessage] = []
        self.deliveries: list[Delivery] = []
        self.turn_bytes = 0  # of the messages in ``deliveries``

    @property
    def described(self) -> str:
        """The client, for the audit log."""
        if not self.acting_as:
            return repr(self.name)
        return f"{self.name!r} of {f'user {self.login!r}' if self.login else 'anonymous'}"

    def note_transient(self, seq: int) -> None:
        """Remember a publish to transient queues only, for as many publishes as the store remembers."""
        publishes = self.transient_publishes
        publishes[seq] = None
        if len(publishes) > WINDOW:
            del publishes[next(iter(publishes))]

    def count(self, outcome: int, state: int = 0) -> None:
        """Count a message or a task that this client has ended; ``state`` is the outcome of the task, if known."""
        if state == _SUCCEEDED or (not state and outcome == _ACK):
            self.done += 1
        elif state in _FAILED or (not state and outcome == _REJECT):
            self.failed += 1

    def channel(self, number: int) -> SessionChannel:
        """Return the channel of this number, created on first use.

        Raises:
            LimitExceeded: the client has too many channels.
        """
        channel = self.channels.get(number)
        if channel is None:
            for quota in self.quotas:
                quota.check_channel()
            channel = self.channels[number] = SessionChannel(number)
        return channel


class Getter(Protocol):
    """A client that takes messages from a queue without being its consumer: a Get, or a Read of the queue client.

    Each deliverable message goes to the first getter of the queue, before its consumers.
    """

    session: Session

    def take(self, queue: ConsumedQueue, entry: QueueEntry) -> bool:
        """Claim a message; returns whether this getter has as many as it requested."""

    def nothing(self) -> bool:
        """Report that the queue has no message now; returns whether this getter is finished."""

    def end(self) -> None:
        """Reply, because the queue is being deleted."""

    def drop(self) -> None:
        """Discard the request of a lost connection; the client repeats it after reconnecting."""


class ConsumedQueue(ABC):
    """A queue with its consumers.

    ``consumers`` are ordered by priority, then by age. ``active`` identifies the single active consumer, which may be
    disconnected for the grace period of its session.
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
        #: sessions that held messages before a restart: one of these is active
        self.previous_holders: frozenset[bytes] = frozenset()
        self.getters: deque[Getter] = deque()
        self.turn = 0
        self.deleting = False
        self.is_paused = False  # consumers and getters get no messages
        self.used_at_ms = now_ms
        self.timer: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ delivering
    @abstractmethod
    def next_entry(self, now: int) -> tuple[QueueEntry | None, bool]:
        """Return the next message to deliver, or None and whether a message is being loaded."""

    @abstractmethod
    def lease(self, entry: QueueEntry, session: Session, channel: SessionChannel, tag: str, no_ack: bool) -> Delivery:
        """Claim a message for a session and return its delivery; without acknowledgements it is settled immediately."""

    @abstractmethod
    def drop(self) -> int | None:
        """Delete a transient queue; returns the number of its messages.

        Returns None, without effect, for a stored queue.
        """

    # ------------------------------------------------------------------ the next consumer
    def add_consumer(self, consumer: Consumer) -> None:
        """Insert a consumer behind those of its priority."""
        place = len(self.consumers)
        while place and self.consumers[place - 1].priority < consumer.priority:
            place -= 1
        self.consumers.insert(place, consumer)
        self.has_ranks = self.has_ranks or consumer.priority != 0

    def starve(self) -> None:
        """Register with the full channels of its consumers: the queue has messages, and no consumer has credit."""
        for consumer in self.consumers:
            if consumer.channel.is_full:
                consumer.channel.starved[self] = None
