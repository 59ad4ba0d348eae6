"""The common base of stored and transient queues."""

from __future__ import annotations

import shlex
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from ...errors import QueuePaused, RequestError
from ...protocol.queue_arguments import QueueArguments
from ...protocol.task_reports import TaskReport
from ...storage.operations.definitions import Definitions
from ...storage.operations.repeated_requests import Call
from ...storage.read.queue_pages import Row
from ...storage.records.definitions import DELIVERIES, NO_OVERRIDES, PUBLISHES, QueueOverrides
from ...storage.records.idempotency import Sending
from ...storage.routing.exchange import Exchange
from ...storage.routing.topology import Topology
from ...storage.state.queue_buckets import DeadlineRules, QueueEntry
from ...storage.state.queue_counters import QueueCounts
from ...storage.state.queue_state import QueueState
from ...storage.state.store_state import Queue
from .sessions import ConsumedQueue, Session

#: maximum number of sends with idempotency keys that a queue remembers
MAX_SENDS = 10_000
#: an outcome of a lease besides those of the protocol: the message is deleted without a history
DELETED = -1


class QueueProperties(NamedTuple):
    """The properties of a queue's declaration."""

    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]

    @property
    def stored(self) -> bool:
        """The queue's messages are stored. Those of other queues are only in memory."""
        return self.durable and not self.auto_delete and not self.exclusive


class Located(NamedTuple):
    """The location of a message in a queue: its row and payload, None if not known; and the remaining reads."""

    row: Row | None
    envelope: bytes | None
    reads: int


class BrokerQueue(ConsumedQueue):
    """A queue of either kind. Its methods define the differences between the kinds.

    Attributes:
        kind: "stored" or "transient".
        stored: the queue's state in the store; None if it is not stored.
        properties: the properties of its declaration.
        overrides: the changes of an operator.
        arguments: the arguments in effect, parsed.
        is_guarded: a publish must check whether the queue accepts messages.
        resumed: how often its deliveries were resumed.
        refuses_publishes: an operator has paused publishes.
        creator: the user who declared it since startup; empty if it is older, or if clients don't log in.
        counts: its counters; those of a transient queue are not stored.
        tasks_failed: tasks that failed since startup although their messages were acknowledged.
        sends: the newest sends with idempotency keys that were routed to transient queues only.
        has_stored_sends: it had other sends with idempotency keys, which are in the store.
    """

    kind: ClassVar[str]
    stored: Queue | None = None

    def __init__(
        self,
        properties: QueueProperties,
        arguments: QueueArguments,
        limits: DeadlineRules,
        messages: QueueState,
        counts: QueueCounts,
        now_ms: int,
    ) -> None:
        super().__init__(
            messages, single_active=arguments.single_active_consumer, auto_delete=properties.auto_delete, now_ms=now_ms
        )
        self.properties = properties
        self.limits = limits
        self.resumed = 0
        self._take_over(NO_OVERRIDES, arguments)
        self.counts = counts
        self.tasks_failed = 0
        self.owner: Session | None = None
        self.creator = ""
        self.sends: dict[bytes, Sending] = {}
        self.has_stored_sends = False

    # ------------------------------------------------------------------ settings
    @property
    def effective(self) -> dict[str, Any]:
        """The arguments in effect."""
        return self.overrides.over(self.properties.arguments)

    @abstractmethod
    def override(self, overrides: QueueOverrides, arguments: QueueArguments) -> None:
        """Replace the changes of an operator; ``arguments`` are then in effect."""

    def _take_over(self, overrides: QueueOverrides, arguments: QueueArguments) -> None:
        self.overrides = overrides
        self.arguments = arguments
        self.resumed += self.is_paused and not overrides.paused & DELIVERIES
        self.is_paused = bool(overrides.paused & DELIVERIES)
        self.refuses_publishes = bool(overrides.paused & PUBLISHES)
        self.is_bounded = arguments.is_bounded
        self.is_guarded = self.is_bounded or self.refuses_publishes
        if self.single_active != arguments.single_active_consumer:
            self.single_active = arguments.single_active_consumer
            self.active, self.previous_holders = None, frozenset()

    def check_open(self) -> None:
        """Raise :class:`QueuePaused` if publishes are paused."""
        if self.refuses_publishes:
            raise QueuePaused(
                f"queue {self.name!r} is paused and takes no publishes: nothing was stored; publish again after "
                f"'opendata-queue queue resume {shlex.quote(self.name)}'",
                queue=self.name,
            )

    def is_too_long(self, messages: int = 0, size: int = 0) -> bool:
        """Return whether the queue exceeds its maximum length, or would with this many more messages and bytes."""
        limits, state = self.arguments, self.messages
        return (
            0 <= limits.max_length < len(state) + messages
            or 0 <= limits.max_length_bytes < state.available_bytes + size
        )  # fmt: skip

    # ------------------------------------------------------------------ leases
    @abstractmethod
    def claim(self, entry: QueueEntry, holder: Session, lease_ms: int) -> bytes | None:
        """Claim a message for a time, independent of connections; returns its payload if that is in memory."""

    @abstractmethod
    def end(
        self,
        entry: QueueEntry,
        outcome: int,
        holder: str,
        *,
        report: TaskReport | None = None,
        delay_ms: int = -1,
        lease_expired: bool = False,
    ) -> None:
        """End a lease by an outcome of the protocol, or by :data:`DELETED`.

        Args:
            holder: the name of the session that held it.
            report: the outcome of its task; None if it is not known.
            delay_ms: after how long a returned message is visible; -1 means by the queue's arguments.
            lease_expired: the lease ended by its time; the message was neither rejected nor released.
        """

    @abstractmethod
    def extend(self, entry: QueueEntry, lease_ms: int) -> None:
        """Extend a timed lease to end this many ms from now."""

    # ------------------------------------------------------------------ ready and delayed messages
    @abstractmethod
    def remove(self, entries: Collection[QueueEntry], reason: str) -> None:
        """Remove messages that expired or exceed the maximum length; they may become dead letters."""

    @abstractmethod
    def archive(self, entry: QueueEntry, operator: str) -> None:
        """Settle a message as done, without a delivery."""

    @abstractmethod
    def discard(self, entry: QueueEntry) -> None:
        """Delete a message without a history."""

    @abstractmethod
    def delay(self, entry: QueueEntry, delay_ms: int) -> None:
        """Make a message visible after this many ms, earlier or later than before."""

    @abstractmethod
    async def purge(self, call: Call) -> int:
        """Remove all ready and delayed messages; returns their number.

        A repeated call continues where it was interrupted.
        """

    # ------------------------------------------------------------------ stored queues only
    async def delete(self, call: Call | None) -> int:
        """Delete the queue from the store; returns the number of its messages. ``call`` as for a purge."""
        return 0

    async def load_bucket(self, number: int) -> None:
        """Load a cold bucket into memory."""

    async def drop_oldest(self) -> None:
        """Drop the oldest messages, which are in cold buckets, until the queue is no longer too long."""

    async def expire(self, now: int) -> None:
        """Remove expired messages from cold buckets."""

    async def age_seconds(self, id: int, now: int) -> float | None:
        """Return the age of a message that is not settled; None if it is not known."""
        return None

    def state(self) -> Queue:
        """Return the queue's state in the store.

        Raises:
            RequestError: the queue is not stored.
        """
        raise RequestError(
            f"queue {self.name!r} is not stored (it is not durable, or exclusive, or auto-delete): its messages are "
            "only in memory, so it has no history, and they can't be moved",
            queue=self.name,
        )

    # ------------------------------------------------------------------ reading without claiming
    @abstractmethod
    async def fetch(self, id: int) -> bytes | None:
        """Load a message into memory; returns its payload, or None if it was deleted."""

    @abstractmethod
    async def peek(self, id: int) -> tuple[int, bytes] | None:
        """Return the time when a message was received (0 if not known) and its payload; None if it was deleted."""

    @abstractmethod
    async def page(self, states: tuple[str, ...], after: int, limit: int) -> tuple[list[Row], int]:
        """Return messages in these states with larger ids, ordered by id, and the next page's start (-1 at the end).

        For a settled list, ``after`` and the start of the next page are positions.
        """

    @abstractmethod
    async def locate(self, id: int, envelope: bytes | None, received_at_ms: int, reads: int) -> Located:
        """Find a message.

        Args:
            envelope: its payload, if the store has it.
            reads: the maximum number of buckets to read.
        """

    @abstractmethod
    async def headers(self, rows: Sequence[tuple[int, int]]) -> list[Mapping[str, str] | None]:
        """Return the metadata headers of messages, given as (id, stored priority); None for a deleted message."""

    @abstractmethod
    async def settled(self) -> dict[str, int]:
        """Return the lengths of the queue's settled lists, by name."""

    def settled_version(self) -> int:
        """Return a number that changes with the lengths of the queue's settled lists."""
        return 0

    @abstractmethod
    def binds_in(self, exchange: Exchange) -> Definitions | Topology:
        """Return the holder of the queue's bindings to an exchange: the store if both are durable."""

    # ------------------------------------------------------------------ sends
    def note_send(self, name: bytes, sending: Sending) -> None:
        """Remember a send with an idempotency key that was not routed to a stored queue."""
        self.sends.pop(name, None)
        self.sends[name] = sending
        if len(self.sends) > MAX_SENDS:
            del self.sends[next(iter(self.sends))]
