"""The durable state of an instance in memory. It is changed by effects (:mod:`kombu_opendata.storage.effects`).

The live engine and recovery apply the same effects, so a replay of the journal results in the state that clients have
seen. The state also records the changes since the last checkpoint, for :mod:`kombu_opendata.storage.commit.checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from ...protocol import queue_arguments
from ..engine_sizes import SIZES, EngineSizes
from ..records import idempotency, keys, store_records
from ..records.dead_letter import REVOKED, DeadLetter
from ..records.definitions import NO_OVERRIDES, QueueOverrides
from ..records.idempotency import Sending, Until
from ..records.routing_cursor import Cursor
from ..records.session_records import Producer, Removal
from ..records.store_records import FOREVER, LogRetention
from ..routing.queue_filters import have_same_filter
from ..routing.topology import Topology
from ..slatedb.ffi import WriteBatch
from .flow_limits import PARTITION, FlowLimits, FlowRules, limited
from .history_log import HistoryLog
from .name_filter import NameFilter
from .partitions import PartitionRules
from .queue_buckets import DeadlineRules, QueueEntry
from .queue_counters import QueueCounts
from .queue_state import QueueState
from .result_state import ResultState
from .segment_state import SegmentState
from .settled_list import LISTS, ListName, SettledList
from .staged_state import StagedState
from .task_state import HandledFailures, RunningTasks
from .write_back_cache import WriteBackCache

#: the fields of :class:`QueueSettings` that are arguments as well
_FIELDS = {argument.name: argument.setting for argument in queue_arguments.KNOWN if argument.setting}


class QueueSettings(NamedTuple):
    """The settings of a durable queue. A retention of 0 keeps messages indefinitely."""

    max_attempts: int = queue_arguments.DEFAULT_MAX_ATTEMPTS
    done_retention_seconds: int = queue_arguments.DEFAULT_DONE_RETENTION_SECONDS
    failed_retention_seconds: int = queue_arguments.DEFAULT_FAILED_RETENTION_SECONDS
    lease_seconds: int = queue_arguments.DEFAULT_LEASE_SECONDS
    arguments: dict[str, Any] = {}  # noqa: RUF012 - a field's default; never changed

    @classmethod
    def of(cls, parsed: queue_arguments.QueueArguments, arguments: Mapping[str, Any]) -> QueueSettings:
        values = {
            argument.setting: getattr(parsed, argument.field) for argument in queue_arguments.KNOWN if argument.setting
        }
        if parsed.delivery_limit < 0:
            values["max_attempts"] = queue_arguments.UNLIMITED_ATTEMPTS
        return cls(**values, arguments=dict(arguments))

    def overridden(self, overrides: QueueOverrides) -> QueueSettings:
        """Return these settings with an operator's values in their place."""
        values = {field: overrides.arguments[name] for name, field in _FIELDS.items() if name in overrides.arguments}
        for field, value in values.items():
            if value is None:
                values[field] = self._field_defaults[field]
            elif value < 0:
                values[field] = queue_arguments.UNLIMITED_ATTEMPTS
        return self._replace(arguments=overrides.over(self.arguments), **values)


class Queue:
    """A durable queue: its messages, settled lists, options and counters.

    Attributes:
        declared: the settings in its declaration.
        flow: the limits on its deliveries; None if it never had any.
        overrides: the changes by an operator.
        options: the settings in effect.
    """

    __slots__ = (
        "archived_failed", "at_hand", "counts", "dead_letters_to", "declared", "done", "failed", "flow", "limits",
        "messages", "name", "options", "overrides",
    )  # fmt: skip

    def __init__(
        self, name: str, options: QueueSettings, created_at_ms: int, changed: set[str], sizes: EngineSizes
    ) -> None:
        """Create the queue. Its name is added to ``changed`` if there are changes for a checkpoint."""
        self.name = name
        self.declared = self.options = options
        self.overrides = NO_OVERRIDES
        self.limits = DeadlineRules.of(options.arguments)
        self.flow = limited(None, FlowRules.of(options.arguments), 0)
        self.messages = QueueState(name, counts_bytes=self.limits.counts_bytes, changed=changed, sizes=sizes)
        self._partition(options.arguments, 0)
        self.at_hand = 0  # estimate of the messages whose payloads were loaded ahead and that are not delivered yet
        new_list = partial(SettledList, name, changed=changed, bucket_entries=sizes.settled_entries)
        self.done, self.failed, self.archived_failed = new_list(), new_list(), new_list(optional=True)
        self.dead_letters_to = dead_letters_to(options.arguments)
        self.counts = QueueCounts(created_at_ms)

    def override(self, overrides: QueueOverrides, at: int) -> None:
        """Change the settings in effect; nothing was delivered since ``at``."""
        self.overrides = overrides
        self.options = self.declared.overridden(overrides)
        self.limits = DeadlineRules.of(self.options.arguments)
        self.dead_letters_to = dead_letters_to(self.options.arguments)
        self.messages.count_bytes(self.limits.counts_bytes)
        self.flow = limited(self.flow, FlowRules.of(self.options.arguments), at)
        self._partition(self.options.arguments, at)

    def _partition(self, arguments: Mapping[str, Any], at: int) -> None:
        self.messages.partition(PartitionRules.of(arguments), FlowRules.of(arguments, PARTITION), at)

    def settled_list(self, which: ListName) -> SettledList:
        if which == "done":
            return self.done
        return self.failed if which == "failed" else self.archived_failed

    def forget_at_hand(self) -> None:
        """Remove the buckets that were read from the store to take messages from them."""
        for which in LISTS:
            self.settled_list(which).at_hand.clear()


def dead_letters_to(arguments: dict[str, Any]) -> tuple[str, str | None] | None:
    """Return a queue's dead-letter exchange and routing key (None: the message's own); None without an exchange."""
    exchange = arguments.get(queue_arguments.DEAD_LETTER_EXCHANGE)
    routing_key = arguments.get(queue_arguments.DEAD_LETTER_ROUTING_KEY)
    if not isinstance(exchange, str):
        return None
    return exchange, routing_key if isinstance(routing_key, str) else None


class DeletedQueue(NamedTuple):
    """The part of a deleted queue that was in memory; the rest is in the store's records of its settled lists."""

    ids: set[int]
    buckets: dict[ListName, set[int]]  # buckets that differ from the store: their messages are in `ids` or deleted
    dead_letters: set[int]  # ids that a dead letter still needs


class Dirty:
    """The changes that the next checkpoint writes, besides the queues' own dirty sets."""

    def __init__(self) -> None:
        self.block: tuple[int, int] | None = None
        self.queues: set[str] = set()  # changed configs and options; for their messages see StoreState.changed
        self.overrides: set[str] = set()  # queues with changed overrides
        self.flow: set[str] = set()  # queues whose tokens or delay changed
        self.deleted_queues: dict[str, list[DeletedQueue]] = {}  # by name: it may be declared and deleted again
        #: deleted and declared again: the keys of the new queue's records
        self.redeclared: dict[str, frozenset[bytes]] = {}
        self.touched: list[Queue] = []  # queues that the current checkpoint writes
        self.exchanges: set[str] = set()
        self.bindings: set[tuple[str, str, str, str]] = set()  # queue, exchange, key, identity
        self.producers: set[bytes] = set()
        self.removals: set[bytes] = set()  # sessions
        self.sessions: set[bytes] = set()
        self.attempts: dict[int, list[str]] = {}
        self.whole_attempts: set[int] = set()  # ids without an older attempts record
        self.routes: dict[int, int] = {}  # number of queues of new messages in several queues or in chunks
        self.garbage: list[int] = []  # settled or removed permanently in one queue
        self.dead_letters: set[tuple[str, int]] = set()  # queue, id
        self.joined: dict[int, int] = {}  # stored messages that moved, and the number of queues that they gained
        self.cursors: set[str] = set()
        self.outdated: set[int] = set()  # messages that the log kept until now
        self.log = False  # True if the log's retention or the progress of its sweep changed

    def __bool__(self) -> bool:
        return any(bool(value) for value in vars(self).values())


class IdempotencyState(WriteBackCache[Sending]):
    """The keys of one instance in memory, and the changes by effects.

    Attributes:
        used: True if there is a key in memory, or if the last :meth:`.Idempotency.look` found one.
        stored: the names that the store may have, or None while they are unknown. So a new key needs no read.
        added: the number of keys that were added since the last sweep, and not removed by :meth:`ended`.
        unique: the unique keys in memory whose message is in one queue, by message id.
    """

    def __init__(self) -> None:
        super().__init__(lambda sending: 100 + 40 * len(sending.ids) + 60 * sum(map(len, sending.queues)))
        self.used = False
        self.stored: NameFilter | None = None
        self._next_stored = NameFilter()  # all that were added since the last sweep began, and those that it found
        self.added = 0
        self._unstored: set[bytes] = set()  # pending, and surely without a record: their end needs no deletion
        self.unique: dict[int, bytes] = {}

    def _is_absent(self, name: bytes) -> bool:
        return name in self._absent or (self.stored is not None and name not in self.stored)

    def remember(self, name: bytes, sending: Sending) -> None:
        """Add the publish under a key."""
        self.used = True
        self.added += 1
        is_absent = name in self._absent
        self.put(name, sending)
        is_new = self._next_stored.add(name)
        if self.stored is not None:
            is_absent |= is_new if self.stored is self._next_stored else self.stored.add(name)
        if is_absent:
            self._unstored.add(name)
        if sending.hold is not None and sending.hold.until != Until.TIME and len(sending.hold.buckets) == 1:
            self.unique[sending.ids[0]] = name

    def ended(self, id: int) -> None:
        """Delete the unique key of a message that its only queue no longer needs, if the key is in memory."""
        name = self.unique.pop(id, None)
        if name is not None:
            _is_known, sending = self.find(name)
            if sending is not None and sending.ids[0] == id:
                if name in self._unstored:
                    self.discard(name)
                    self._keep(name, None, 0)
                else:
                    self.put(name, None)
                self.added -= 1

    def evicted(self, value: Sending) -> None:
        self.unique.pop(value.ids[0], None)

    def begin_sweep(self) -> None:
        """Begin to collect the names that the store may have: those to come, and those that it will get."""
        self._next_stored = NameFilter(2 * self._next_stored.count)
        for name in (*self._pending, *self._flushing):
            self._next_stored.add(name)

    def found(self, name: bytes) -> None:
        """Record a name that the store has."""
        self._next_stored.add(name)

    def end_sweep(self) -> None:
        """Use the collected names, as the whole store was read since :meth:`begin_sweep`."""
        self.stored = self._next_stored

    def snapshot(self, batch: WriteBatch) -> None:
        """Add the changes to a checkpoint's batch."""
        self._unstored.clear()
        for name, sending in self.begin_flush().items():
            value = None if sending is None else idempotency.encode(sending)
            batch.put_or_delete(keys.idempotency_key(name), value)


class LogState:
    """The retention of one instance's log.

    Attributes:
        record: the record, as the next checkpoint writes it; None if the log never kept a message.
    """

    def __init__(self) -> None:
        self.record: LogRetention | None = None

    @property
    def kept_from(self) -> int:
        """The first id from which the log keeps messages that no queue needs."""
        if self.record is None or not self.record.retention_ms:
            return keys.MAX_MESSAGE_ID
        return 0 if self.record.retention_ms == FOREVER else self.record.position

    @property
    def kept(self) -> int:
        """The number of messages that only the log keeps, at the last checkpoint."""
        return self.record.kept if self.record is not None else 0

    def count(self, more: int) -> bool:
        """Change the number of kept messages; return True if the record changed."""
        if not more or self.record is None:
            return False
        self.record = self.record._replace(kept=max(self.record.kept + more, 0))
        return True

    def put_into(self, batch: WriteBatch) -> None:
        """Add the record to a checkpoint's batch."""
        value = None if self.record is None else store_records.encode_log_retention(self.record)
        batch.put_or_delete(keys.LOG_RETENTION_KEY, value)


class StoreState:
    """The part of an instance's state that must survive a restart."""

    def __init__(self, sizes: EngineSizes = SIZES) -> None:
        self.sizes = sizes
        self.queues: dict[str, Queue] = {}
        self.changed: set[str] = set()  # queues with changes for the next checkpoint; always the same set
        self.topology = Topology()
        self.producers: dict[bytes, Producer] = {}
        self.removals: dict[bytes, Removal] = {}  # by session: its last purge or deletion of a queue
        self.session_names: dict[bytes, str] = {}
        self.session_owners: dict[bytes, str] = {}  # the names of their users; empty if unknown
        self.leases: dict[bytes, dict[tuple[str, int], QueueEntry]] = {}
        self.dead_letters: dict[tuple[str, int], DeadLetter] = {}  # by queue and id, the oldest first
        self.cursors: dict[str, Cursor] = {}  # by queue: current and finished background routing
        self.newest_ms = 0  # ms since the epoch: no time in a commit is after it
        self.next_id = 0
        self.block_end = 0
        self.dirty = Dirty()
        self.idempotency = IdempotencyState()
        self.staged = StagedState()
        self.segments = SegmentState()
        self.results = ResultState(self.segments)
        self.log = LogState()
        self.running = RunningTasks()
        self.handled = HandledFailures()
        self.history: HistoryLog | None = None  # None: history is off

    # ------------------------------------------------------------------ messages
    def unlease(self, entry: QueueEntry) -> None:
        """End the lease of a message."""
        leases = self.leases.get(entry.session)
        if leases is not None:
            leases.pop((entry.queue, entry.id), None)
            self.dirty.sessions.add(entry.session)
            if not leases:
                del self.leases[entry.session]

    def use_tokens(self, queue: Queue, count: int, at: int) -> None:
        """Use tokens of a queue with limits, for deliveries at a time."""
        if queue.flow is not None and queue.flow.take(count, at):
            self.dirty.flow.add(queue.name)

    def delay_flow(self, queue: Queue, partition: int, until_ms: int) -> None:
        """Deliver nothing of a partition before a time; -1 is the queue."""
        if partition >= 0:
            if queue.messages.partitions is not None and partition in queue.messages.partitions:
                queue.messages.partitions.delay(partition, until_ms)
                self.changed.add(queue.name)
            return
        queue.flow = queue.flow or FlowLimits()
        queue.flow.delayed_until_ms = until_ms
        self.dirty.flow.add(queue.name)

    def record_attempt(self, entry: QueueEntry, consumer: str) -> None:
        """Add a consumer to the message's attempts record.

        If it is the first attempt of a message in a single queue, no older record has to be read.
        """
        first = entry.attempts == 1 and entry.id not in self.dirty.joined
        if first and entry.id not in self.dirty.attempts:
            self.dirty.whole_attempts.add(entry.id)
        self.dirty.attempts.setdefault(entry.id, []).append(consumer)

    # ------------------------------------------------------------------ dead letters
    def add_dead_letter(self, queue: Queue, entry: QueueEntry, at: int, reason: str, *, last_use: bool) -> None:
        """Add a dead letter, which will be published to the queue's dead-letter exchange.

        ``last_use``: the queue itself no longer needs the message.
        """
        exchange, routing_key = queue.dead_letters_to or ("", None)
        place = (queue.name, entry.id)
        self.dead_letters[place] = DeadLetter(reason, at, entry.priority, exchange, routing_key, last_use)
        self.dirty.dead_letters.add(place)
        queue.counts.dead_lettered += reason != REVOKED

    def collect(self, name: str, id: int) -> None:
        """Record that a queue no longer needs its settled message.

        The message is deleted if no queue or dead letter needs it.
        """
        if not self.keep_for_dead_letter(name, id):
            self.dirty.garbage.append(id)

    def keep_for_dead_letter(self, name: str, id: int) -> bool:
        """Return True if a dead letter still needs a message that its queue does not.

        If so, the publish of the dead letter becomes the last use of the message.
        """
        letter = self.dead_letters.get((name, id))
        if letter is None:
            return False
        self.dead_letters[(name, id)] = letter._replace(last_use=True)
        self.dirty.dead_letters.add((name, id))
        return True

    # ------------------------------------------------------------------ queues, exchanges, bindings
    def declare_queue(self, name: str, options: QueueSettings, at: int = 0) -> Queue:
        """Create a queue. ``at`` is in ms since the epoch; 0 means that the time is unknown."""
        queue = self.queues[name] = Queue(name, options, at, self.changed, self.sizes)
        self.topology.add_queue(name, options.arguments)
        self.dirty.queues.add(name)
        return queue

    def override_queue(self, name: str, overrides: QueueOverrides) -> None:
        """Change the settings of a queue that are in effect."""
        queue, topology = self.queues[name], self.topology
        before = queue.options.arguments
        queue.override(overrides, self.newest_ms)
        if queue.flow is not None:
            self.dirty.flow.add(name)
        self.dirty.overrides.add(name)
        if not have_same_filter(before, queue.options.arguments):
            topology.filters.add(name, queue.options.arguments)
            topology.changed()
            self.dirty.queues.add(name)  # its config has the filter

    def bind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        self.topology.bind(queue, exchange, routing_key, arguments)
        self._binding_changed(queue, exchange, routing_key, arguments)

    def unbind(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        self.topology.unbind(queue, exchange, routing_key, arguments)
        self._binding_changed(queue, exchange, routing_key, arguments)

    def _binding_changed(self, queue: str, exchange: str, routing_key: str, arguments: dict[str, Any]) -> None:
        if queue in self.queues:
            identity = self.topology.get(exchange).identity(arguments)
            self.dirty.queues.add(queue)
            self.dirty.bindings.add((queue, exchange, routing_key, identity))

    def time(self, at: int) -> None:
        """Record a time; ``newest_ms`` is the latest one."""
        self.newest_ms = max(self.newest_ms, at)
