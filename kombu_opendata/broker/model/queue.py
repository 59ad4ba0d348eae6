"""Common base of stored and transient queues."""

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

#: maximum number of sends with idempotency keys that a queue holds
MAX_SENDS = 10_000
#: outcome of a lease in addition to those of the protocol: the message is deleted without a history
DELETED = -1


class QueueProperties(NamedTuple):
    """Properties of a queue's declaration."""

    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: dict[str, Any]

    @property
    def stored(self) -> bool:
        """True if the queue's messages are stored; the messages of other queues are only in memory."""
        return self.durable and not self.auto_delete and not self.exclusive


class Located(NamedTuple):
    """Row and payload of a message in a queue, None if they are unknown; and the number of remaining reads."""

    row: Row | None
    envelope: bytes | None
    reads: int


class BrokerQueue(ConsumedQueue):
    """Queue, stored or transient. The abstract methods are the differences between the two kinds."""

    kind: ClassVar[str]  # "stored" or "transient"
    stored: Queue | None = None  # the queue's state in the store; None for a transient queue

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
        self.properties, self.limits = properties, limits
        self.resumed = 0  # the number of times that its deliveries were resumed
        self._take_over(NO_OVERRIDES, arguments)
        self.counts = counts  # the counters of a transient queue are not stored
        self.tasks_failed = 0  # tasks that failed since startup although their messages were acknowledged
        self.owner: Session | None = None
        #: the user who declared the queue since startup; empty for an older queue, or if clients don't log in
        self.creator = ""
        #: the newest sends with idempotency keys that were routed to transient queues only
        self.sends: dict[bytes, Sending] = {}
        self.has_stored_sends = False  # True if the store has other sends with idempotency keys

    # ------------------------------------------------------------------ settings
    @property
    def effective(self) -> dict[str, Any]:
        """Arguments in effect, not parsed."""
        return self.overrides.over(self.properties.arguments)

    @abstractmethod
    def override(self, overrides: QueueOverrides, arguments: QueueArguments) -> None:
        """Replace the changes of an operator; ``arguments`` are the parsed arguments in effect after it."""

    def _take_over(self, overrides: QueueOverrides, arguments: QueueArguments) -> None:
        self.overrides = overrides  # changes of an operator
        self.arguments = arguments  # parsed arguments in effect
        self.resumed += self.is_paused and not overrides.paused & DELIVERIES
        self.is_paused = bool(overrides.paused & DELIVERIES)
        self.refuses_publishes = bool(overrides.paused & PUBLISHES)  # an operator has paused publishes
        self.is_bounded = arguments.is_bounded
        self.is_guarded = self.is_bounded or self.refuses_publishes  # a publish must check whether it is accepted
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
        """Return True if the queue exceeds its maximum length, with these additional messages and bytes."""
        limits, state = self.arguments, self.messages
        if 0 <= limits.max_length < len(state) + messages:
            return True
        return 0 <= limits.max_length_bytes < state.available_bytes + size

    # ------------------------------------------------------------------ leases
    @abstractmethod
    def claim(self, entry: QueueEntry, holder: Session, lease_ms: int) -> bytes | None:
        """Lease a message for a time, independent of connections; return its payload if that is in memory."""

    @abstractmethod
    def ack(self, entries: Collection[QueueEntry]) -> None:
        """End leases of tasks without a report, whose messages are done."""

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
        """End a lease by an outcome of the protocol, or by :data:`DELETED`; ``holder`` is the name of its session.

        ``report`` is the task's, if it is known. A returned message is visible after ``delay_ms``; -1 means by the
        queue's arguments. If the lease expired, the message was neither rejected nor released.
        """

    @abstractmethod
    def extend(self, entry: QueueEntry, lease_ms: int) -> None:
        """Set the end of a timed lease to ``lease_ms`` from now."""

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
        """Set the due time of a message to ``delay_ms`` from now."""

    @abstractmethod
    def delay_flow(self, partition: int, until_ms: int) -> None:
        """Deliver nothing of a partition before a time; -1 is the queue, and a time of 0 removes a delay."""

    @abstractmethod
    async def purge(self, call: Call) -> int:
        """Remove all ready and delayed messages; return their number.

        A repeated call continues an interrupted purge.
        """

    # ------------------------------------------------------------------ stored queues only
    async def delete(self, call: Call | None) -> int:
        """Delete the queue from the store; return the number of its messages. ``call`` is as for :meth:`purge`."""
        return 0

    async def load_bucket(self, number: int) -> None:
        """Load a cold bucket into memory."""

    async def drop_oldest(self) -> None:
        """Drop the oldest messages, which are in cold buckets, until the queue is no longer too long."""

    async def expire(self, now: int) -> None:
        """Remove expired messages from cold buckets."""

    async def age_seconds(self, id: int, now: int) -> float | None:
        """Return the age of a message that is not settled; None if it is unknown."""
        return None

    def repartition(self) -> None:
        """Move messages to their partitions, in the background."""

    def state(self) -> Queue:
        """Return the queue's state in the store; raise RequestError for a transient queue."""
        raise RequestError(
            f"queue {self.name!r} is not stored (it is not durable, or exclusive, or auto-delete): its messages are "
            "only in memory, so it has no history, and they can't be moved",
            queue=self.name,
        )

    # ------------------------------------------------------------------ reading without claiming
    @abstractmethod
    async def fetch(self, id: int) -> bytes | None:
        """Load a message into memory; return its payload, or None if it was deleted."""

    @abstractmethod
    async def peek(self, id: int) -> tuple[int, bytes] | None:
        """Return the time of a message's receipt (0: unknown) and its payload; None for a deleted message."""

    @abstractmethod
    async def page(self, states: tuple[str, ...], after: int, limit: int) -> tuple[list[Row], int]:
        """Return messages in these states with ids above ``after``, ordered by id, and ``after`` for the next page.

        That is -1 at the end. For a settled list, ``after`` is a position in the list.
        """

    @abstractmethod
    async def locate(self, id: int, envelope: bytes | None, received_at_ms: int, reads: int) -> Located:
        """Find a message, with its payload if the store has it, by at most ``reads`` reads of buckets."""

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
        """Return the definitions that contain the queue's bindings to an exchange: stored if both are durable."""

    # ------------------------------------------------------------------ sends
    def note_send(self, name: bytes, sending: Sending) -> None:
        """Record a send with an idempotency key that was not routed to a stored queue."""
        self.sends.pop(name, None)
        self.sends[name] = sending
        if len(self.sends) > MAX_SENDS:
            del self.sends[next(iter(self.sends))]
