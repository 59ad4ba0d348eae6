"""A queue as the broker serves it: what both kinds of queue can do, stored and transient ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from ...storage.operations.queue_removals import Call
from ...storage.read.queue_pages import Row
from ...storage.records.idempotency import Sending
from ...storage.routing.exchange import Exchange
from ...storage.state.queue_buckets import Entry
from ...storage.state.queue_counters import QueueCounts
from ...storage.state.queue_limits import Limits
from ...storage.state.queue_state import QueueState
from ...storage.state.store_state import Queue
from .queue_arguments import QueueArguments
from .sessions import ConsumedQueue, Session

#: sends with idempotency keys that a queue remembers
MAX_SENDS = 10_000
#: ends a lease, as the outcomes of the protocol do: the message is gone without a trace
DELETED = -1


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


class Located(NamedTuple):
    """Where a message is in a queue: its row, or None; its payload, as far as it is known; the reads that are left."""

    row: Row | None
    envelope: bytes | None
    reads: int


class BrokerQueue(ConsumedQueue):
    """A queue of either kind. What differs between the kinds is a method.

    ``counts`` say what happened in it; those of a transient queue are not stored. ``sends`` are the newest with
    idempotency keys that only transient queues got; of the others, which the store has, ``has_stored_sends`` says
    whether there were any.
    """

    #: stored or transient, for people
    kind: ClassVar[str]

    def __init__(
        self,
        properties: QueueProperties,
        arguments: QueueArguments,
        limits: Limits,
        messages: QueueState,
        counts: QueueCounts,
        now_ms: int,
    ) -> None:
        super().__init__(
            messages.name,
            messages,
            single_active=arguments.single_active_consumer,
            auto_delete=properties.auto_delete,
            now_ms=now_ms,
        )
        self.properties = properties
        self.arguments = arguments
        self.is_bounded = arguments.is_bounded
        self.limits = limits
        self.counts = counts
        self.owner: Session | None = None
        self.sends: dict[bytes, Sending] = {}
        self.has_stored_sends = False

    # ------------------------------------------------------------------ leases
    @abstractmethod
    def claim(self, entry: Entry, holder: Session, lease_ms: int) -> bytes | None:
        """Claim a message for a time, whatever becomes of connections; returns its payload if that is at hand."""

    @abstractmethod
    def end(self, entry: Entry, outcome: int, holder: str, *, delay_ms: int = -1, lease_expired: bool = False) -> None:
        """End a lease by an outcome of the protocol, or by :data:`DELETED`.

        Args:
            holder: the name of the session that held it.
            delay_ms: after how long a returned message is visible; -1: as the queue says.
            lease_expired: the lease ended by itself; nobody rejected or released the message.
        """

    @abstractmethod
    def extend(self, entry: Entry, lease_ms: int) -> None:
        """Have a lease that nobody renews end in so many ms."""

    # ------------------------------------------------------------------ messages that wait
    @abstractmethod
    def remove(self, entries: Collection[Entry], reason: str) -> None:
        """Take them out because they expired or the queue is too long; they may become dead letters."""

    @abstractmethod
    def archive(self, entry: Entry, operator: str) -> None:
        """Settle one as done, without a delivery."""

    @abstractmethod
    def discard(self, entry: Entry) -> None:
        """Take one out without a trace."""

    @abstractmethod
    def delay(self, entry: Entry, delay_ms: int) -> None:
        """Make one visible in so many ms, sooner or later than it was."""

    @abstractmethod
    async def purge(self, call: Call) -> int:
        """Take out all; returns how many. A call that is made again goes on with what it did before."""

    @abstractmethod
    async def delete(self, call: Call | None) -> int:
        """Delete what is stored of it; returns how many messages were waiting. ``call`` as for a purge."""

    # ------------------------------------------------------------------ cold buckets
    @abstractmethod
    async def load_bucket(self, number: int) -> None:
        """Bring a cold bucket into memory."""

    @abstractmethod
    async def drop_oldest(self, is_too_long: Callable[[], bool]) -> None:
        """Drop the oldest messages, which are in cold buckets, as long as the queue is too long."""

    @abstractmethod
    async def expire(self, now: int) -> None:
        """Remove what has expired in cold buckets."""

    # ------------------------------------------------------------------ looking
    @abstractmethod
    async def fetch(self, id: int) -> bytes | None:
        """The payload of a message, which is in memory afterwards; None if it is gone."""

    @abstractmethod
    async def peek(self, id: int) -> tuple[int, bytes] | None:
        """When a waiting message was received, 0 if that is not known, and its payload; None if it is gone."""

    @abstractmethod
    async def page(self, states: tuple[str, ...], after: int, limit: int) -> tuple[list[Row], int]:
        """Messages in this state, or in these of waiting, above an id, by id; and from where to go on, -1 at the end.

        Of a settled list, ``after`` and from where to go on are positions.
        """

    @abstractmethod
    async def locate(self, id: int, envelope: bytes | None, received_at_ms: int, reads: int) -> Located:
        """Where a message is.

        Args:
            envelope: its payload, if the store has it.
            reads: how many buckets may be read.
        """

    @abstractmethod
    async def headers(self, rows: Sequence[tuple[int, int]]) -> list[Mapping[str, str] | None]:
        """The metadata headers of messages, given as (id, stored priority); None for one that is gone."""

    @abstractmethod
    async def settled(self) -> dict[str, int]:
        """How long its settled lists are, by name."""

    @abstractmethod
    async def age_seconds(self, id: int, now: int) -> float | None:
        """How old a message is; None if that is not known."""

    # ------------------------------------------------------------------ what only some queues can
    @abstractmethod
    def state(self) -> Queue:
        """What the store has of it.

        Raises:
            RequestError: it is not stored.
        """

    @abstractmethod
    def bind(self, exchange: Exchange, routing_key: str, arguments: dict[str, Any]) -> None:
        """Bind it; what is durable on both sides is stored."""

    @abstractmethod
    def unbind(self, exchange: Exchange, routing_key: str, arguments: dict[str, Any]) -> None:
        """Take a binding away."""

    # ------------------------------------------------------------------ sends
    def note_send(self, name: bytes, sending: Sending) -> None:
        """Something was sent under a key, and no stored queue got it."""
        self.sends.pop(name, None)
        self.sends[name] = sending
        if len(self.sends) > MAX_SENDS:
            del self.sends[next(iter(self.sends))]
