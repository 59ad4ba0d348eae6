"""What the broker knows of its clients and queues: sessions, channels, consumers, queues. Plain objects, no I/O."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..protocol.message_base import Message
from ..protocol.messages import Delivery
from ..storage.counts import QueueCounts
from ..storage.limits import Limits
from ..storage.queue_buckets import Entry
from ..storage.queue_state import QueueState
from ..storage.records.idempotency import Sending
from ..storage.records.producer import WINDOW
from ..storage.state import Queue
from .arguments import QueueArguments

if TYPE_CHECKING:
    from .getters import Getter

#: idempotency keys that a transient queue remembers
MAX_SENDS = 10_000


class Peer(Protocol):
    """What a session knows of its connection."""

    @property
    def writable(self) -> bool:
        """Whether the client reads what it is sent."""

    def send_all(self, outgoing: list[Message]) -> None:
        """Send messages in order."""

    def abort(self) -> None:
        """Close at once."""


class Channel:
    """A channel of a session: ``held`` deliveries are unsettled; a ``prefetch`` of 0 and no ``credit`` set no limit."""

    __slots__ = ("consumers", "credit", "held", "number", "prefetch")

    def __init__(self, number: int) -> None:
        self.number = number
        self.prefetch = 0
        self.held = 0
        self.credit: int | None = None
        self.consumers: dict[str, Consumer] = {}


class Consumer:
    """A consumer of one queue; of those with credit the ones with the highest ``priority`` get messages."""

    __slots__ = ("channel", "exclusive", "no_ack", "priority", "queue", "session", "tag")

    def __init__(
        self,
        session: Session,
        channel: Channel,
        tag: str,
        queue: BrokerQueue,
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
        """What names it, also over a reconnect: session, channel, tag."""
        return self.session.id, self.channel.number, self.tag

    @property
    def has_credit(self) -> bool:
        """Whether a delivery may be sent to it now."""
        connection = self.session.connection
        if connection is None or not connection.writable or self.session.suspended:
            return False
        channel = self.channel
        if channel.credit is not None and channel.credit <= 0:
            return False
        return self.no_ack or channel.prefetch == 0 or channel.held < channel.prefetch


class Session:
    """A client, over reconnects. ``leases`` are those of transient queues; the store's state has the others."""

    def __init__(self, id: bytes, name: str) -> None:
        self.id = id
        self.name = name
        self.client = id  # whose exclusive queues it may use
        self.connection: Peer | None = None
        self.lost_at_ms = 0
        self.since_ms = 0
        self.suspended = False  # it is handed nothing until it is resumed
        self.channels: dict[int, Channel] = {}
        self.lease_channels: dict[tuple[str, int], Channel] = {}
        self.leases: dict[tuple[str, int], Entry] = {}
        self.transient_publishes: dict[int, None] = {}  # numbers of publishes that no record remembers
        self.settled = 0
        self.reported_settled = 0
        self.replies: list[Message] = []
        self.deliveries: list[Delivery] = []

    def note_transient(self, seq: int) -> None:
        """This publish went to transient queues only; as far back as the record of the others goes."""
        noted = self.transient_publishes
        noted[seq] = None
        if len(noted) > WINDOW:
            del noted[next(iter(noted))]

    def channel(self, number: int) -> Channel:
        """The channel of this number, made when it is new."""
        found = self.channels.get(number)
        if found is None:
            found = self.channels[number] = Channel(number)
        return found


class QueueProperties(NamedTuple):
    """How a queue was declared."""

    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]

    @property
    def stored(self) -> bool:
        """Whether its messages are stored; the others' live in memory."""
        return self.durable and not self.auto_delete and not self.exclusive


class BrokerQueue:
    """A queue as the broker serves it; ``stored`` is its durable state, None for a transient queue.

    ``consumers`` are in order of priority, then of age. ``active`` names the single active consumer; it may be away for
    the grace of its session. ``counts`` say what happened in it; those of a transient queue are not stored.
    ``sends`` are those with idempotency keys to a transient queue and no stored one, the newest; of the others, which
    the store has, ``has_stored_sends`` says whether there were any.
    """

    def __init__(
        self, name: str, properties: QueueProperties, arguments: QueueArguments, stored: Queue | None, now_ms: int
    ) -> None:
        self.name = name
        self.properties = properties
        self.arguments = arguments
        self.is_bounded = arguments.is_bounded
        self.stored = stored
        self.limits = stored.limits if stored is not None else Limits.of(properties.arguments)
        self.messages = (
            stored.messages
            if stored is not None
            else QueueState(name, durable=False, counts_bytes=self.limits.counts_bytes)
        )
        self.counts = stored.counts if stored is not None else QueueCounts(now_ms)
        self.consumers: list[Consumer] = []
        self.has_ranks = False
        self.active: tuple[bytes, int, str] | None = None
        self.active_missing = False
        self.heirs: frozenset[bytes] = frozenset()  # held messages before a restart: the active one is theirs
        self.getters: deque[Getter] = deque()
        self.turn = 0
        self.owner: Session | None = None
        self.deleting = False
        self.sends: dict[bytes, Sending] = {}
        self.has_stored_sends = False
        self.used_at_ms = now_ms
        self.timer: asyncio.TimerHandle | None = None

    def note_send(self, name: bytes, sending: Sending) -> None:
        """Something was sent to this transient queue under a key."""
        self.sends.pop(name, None)
        self.sends[name] = sending
        if len(self.sends) > MAX_SENDS:
            del self.sends[next(iter(self.sends))]

    def add_consumer(self, consumer: Consumer) -> None:
        """Put a consumer behind those of its priority."""
        place = len(self.consumers)
        while place and self.consumers[place - 1].priority < consumer.priority:
            place -= 1
        self.consumers.insert(place, consumer)
        self.has_ranks = self.has_ranks or consumer.priority != 0

    def next_consumer(self) -> Consumer | None:
        """The next consumer with credit, in turn."""
        if self.arguments.single_active_consumer:
            return self._active_consumer()
        if self.has_ranks:
            return self._ranked_consumer()
        consumers = self.consumers
        count = len(consumers)
        turn = self.turn
        for step in range(count):
            consumer = consumers[(turn + step) % count]
            if consumer.has_credit:
                self.turn = (turn + step + 1) % count
                return consumer
        return None

    def _active_consumer(self) -> Consumer | None:
        if self.active is None:
            heirs = self.heirs
            chosen = next((each for each in self.consumers if not heirs or each.session.id in heirs), None)
            if chosen is None:
                return None
            self.active, self.heirs = chosen.key, frozenset()
        for consumer in self.consumers:
            if consumer.key == self.active:
                return consumer if consumer.has_credit else None
        return None

    def _ranked_consumer(self) -> Consumer | None:
        for place, consumer in enumerate(self.consumers):
            if consumer.has_credit:
                del self.consumers[place]
                self.add_consumer(consumer)  # behind its equals
                return consumer
        return None
