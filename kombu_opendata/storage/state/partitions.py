"""Partitions of a queue, and the fair order of delivery between them.

A queue with ``x-partition-by`` has a partition for each value of a header or an expression. A partition is a range of
the queue's buckets: bucket numbers from ``partition number << 32`` on. Partition 0 has the buckets of a queue without
partitions, and messages whose headers were not known when they came; :class:`.Repartitioner` moves them. It also moves
the messages of partitions of another expression, after an alteration. Until then none of these is delivered.

**Fair order.** Start-time fair queueing: each partition has a *tag* in virtual time, and the partition with the lowest
tag is next. A delivery adds 1 / weight to its tag. The virtual time is the tag of the last delivery. A partition that
becomes active begins at the virtual time, so it has no credit for the time without messages, and waits for at most
one message of each other partition. A partition that becomes empty keeps its place until its tag is the lowest:
otherwise a partition that always has a single message would begin again and again before the others.

A read by groups or by a condition delivers messages of partitions that are not next. Such a partition has a *debt*,
which is added to its tag when it is next, and which other reads by groups take into account. A debt is limited, so that
a partition that was read for long without a delivery in the fair order waits for a limited time.

**Priorities.** Each priority is a :class:`Level` with its own virtual time. Invariant: a partition that is neither
empty nor blocked is in the level of its best message. It may be in other levels, too: such a place is checked, and
dropped if it is stale, only when it has the lowest tag.

**Blocked partitions.** :class:`PartitionLimits` decides when a partition may deliver again. Until then it is in no
level, so that any number of blocked partitions cost nothing for a delivery. It keeps its tag.

**Order.** In a partition with a concurrency of 1, a message that was delivered, and returned with a delay, keeps the
slot until it is visible, so that no later message precedes it. A first delivery that is delayed takes no slot. After a
restart such a message is known by its attempts. A return that costs no attempt is known by its time, which the
partition's record has as the end of a delay.

Tags are not stored: after a restart all partitions begin at the same virtual time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from heapq import heapify, heappop, heappush, heapreplace
from itertools import repeat
from typing import Any, NamedTuple

from ...errors import RequestError
from ...protocol.queue_arguments import OTHER_PARTITIONS, PARTITION_BY, PARTITION_WEIGHTS
from ...selectors import compile_expression
from ..records import active
from .cold_summaries import PARTITION_BITS, ColdSummaries
from .flow_limits import NO_LIMITS, FlowLimits, FlowRules, limited
from .queue_buckets import QueueBucket, QueueEntry, Row

#: the time of a partition that waits for an event
NEVER = 1 << 63
#: limit for the bytes of a key; a longer one is represented by its first characters and a digest
MAX_KEY_BYTES = 255
_SHOWN_CHARACTERS = 32
#: the number of messages that stands for a full bucket
_FULL = 1 << 16
#: a heap is cleaned when it has twice as many pairs as messages, and this number
EXTRA_PAIRS = 64
#: empty partitions of a queue above which they are deleted when a new one is opened
_MANY_EMPTY = 1024
#: maximum number of deliveries that a partition owes: those of one read
_MAX_DEBT = 1000
#: the tag of partitions that are in no level
_LAST_TAG = float("inf")
#: the end of an iterator
_END = -1


def bounded_key(text: str | None) -> str:
    """Return the key of a partition for a value; "" for messages without a value.

    A key that is too long, or has control characters, is represented by its beginning and a digest.
    """
    if not text:
        return ""
    if len(text) <= MAX_KEY_BYTES // 4 and text.isprintable():
        return text
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= MAX_KEY_BYTES and text.isprintable():
        return text
    shown = "".join(character for character in text[:_SHOWN_CHARACTERS] if character.isprintable())
    return f"{shown}#{blake2b(raw, digest_size=8).hexdigest()}"


class PartitionRules(NamedTuple):
    """The arguments of a queue that partition its messages. ``by`` is empty if it has no partitions."""

    by: str = ""
    value_of: Callable[[Mapping[str, str]], str | None] = lambda _headers: None
    weights: Mapping[str, int] = {}

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> PartitionRules:
        """Return the rules in a queue's arguments; an invalid expression, of an older version, counts as missing."""
        by, weights = arguments.get(PARTITION_BY), arguments.get(PARTITION_WEIGHTS)
        if by is None:
            return NO_PARTITIONS
        try:
            value_of = compile_expression(by)
        except RequestError:
            return NO_PARTITIONS
        weights = weights if isinstance(weights, dict) else {}
        return cls(by, value_of, {bounded_key(key): weight for key, weight in weights.items()})

    def key_of(self, headers: Mapping[str, str]) -> str:
        """Return the key of the partition of a message with these headers."""
        return bounded_key(self.value_of(headers))

    def weight_of(self, key: str) -> int:
        return self.weights.get(key) or self.weights.get(OTHER_PARTITIONS) or 1


NO_PARTITIONS = PartitionRules()


class Partition:
    """One partition of a queue.

    Attributes:
        number: the number of its first bucket is ``number << PARTITION_BITS``.
        by: the expression that made the partition.
        key: the value of the expression; "" for messages without a value.
        first: no bucket of the partition is before this one.
        tail, tail_used: the bucket of new messages, and the number of messages that were added to it.
        tail_rows: the record of the tail if that is cold, so that a publish can load it without I/O; else empty. A cold
            tail with many messages counts as full instead.
        ready: a heap of (priority, id) of loaded messages, which may contain messages that are no longer ready.
        waiting: the number of ready and delayed messages.
        in_flight: the number of messages in flight.
        running: the number of tasks that run after their messages were acknowledged.
        is_blocked: True if the partition waits for its limits, or for its messages to be moved.
        blocked_until: the time at which it is unblocked; :data:`NEVER` if an event unblocks it.
        flow: the limits of the partition, whose state is in its record; None if there never were any.
        returning: when each message that returned with a delay is visible, by id, if the concurrency is 1.
    """

    __slots__ = (
        "blocked_until", "by", "debt", "first", "flow", "in_flight", "is_blocked", "key", "levels", "number", "ready",
        "returning", "running", "stride", "tag", "tail", "tail_rows", "tail_used", "waiting",
    )  # fmt: skip

    def __init__(self, number: int, by: str, key: str, weight: int = 1) -> None:
        self.number, self.by, self.key = number, by, key
        self.first = self.tail = number << PARTITION_BITS
        self.tail_used, self.tail_rows = 0, b""
        self.ready: list[tuple[int, int]] = []
        self.waiting = self.in_flight = self.running = 0
        self.is_blocked = False
        self.blocked_until = 0
        self.flow: FlowLimits | None = None
        self.returning: dict[int, int] | None = None
        self.stride = 1 / weight
        self.tag = 0.0  # of its last place in a level
        self.debt = 0.0  # of deliveries when it was not next
        self.levels = 0  # a bit for each priority in whose level it is

    def note_cold_tail(self, rows: bytes) -> None:
        """Record that the tail is only in the store, as ``rows``; empty for a tail with many messages."""
        self.tail_rows = rows
        if not rows:
            self.tail_used = _FULL

    @property
    def returns_at(self) -> int:
        """The time from which no returned message has the slot; a time in the past means now."""
        return max(self.returning.values()) if self.returning else 0

    @property
    def state(self) -> tuple[int, int]:
        """The times that are stored: of the tokens, and of the end of a delay or of :attr:`returning`."""
        full_at_ns, delayed_until_ms = (0, 0) if self.flow is None else self.flow.state
        return full_at_ns, max(delayed_until_ms, self.returns_at)


class PartitionLimits:
    """The limits of each partition of a queue, by the same rules."""

    def __init__(self, rules: FlowRules = NO_LIMITS) -> None:
        self.rules = rules

    def next_allowed_at(self, partition: Partition, now: int) -> int:
        """Return the time from which the partition may deliver its next message; :data:`NEVER` for after an event.

        The end of a lease or a task in the partition unblocks it in any case.
        """
        flow, used = partition.flow, partition.in_flight + partition.running
        if partition.returning and (returns_at := partition.returns_at) > now:
            return returns_at
        if flow is None:
            return NEVER if 0 < self.rules.concurrency <= used else 0
        if flow.room(used, now):
            return 0
        opens_at = flow.opens_at_ms(now)
        return opens_at if opens_at > now else NEVER

    def reason(self, partition: Partition, now: int) -> tuple[str, int]:
        """Return why a partition delivers nothing now, and until when, as :meth:`.FlowLimits.reason`."""
        if (returns_at := partition.returns_at) > now:
            return "concurrency", returns_at
        flow = partition.flow or FlowLimits(self.rules)
        return flow.reason(partition.in_flight + partition.running, now)

    def take(self, partition: Partition, at: int) -> bool:
        """Use a token of the rate; return True if the partition's record changes."""
        partition.flow = partition.flow or FlowLimits(self.rules)
        return partition.flow.take(1, at)

    def is_idle(self, partition: Partition, now: int) -> bool:
        """Return True if an empty partition has nothing to remember, so that it may be deleted."""
        return not partition.running and (partition.flow is None or partition.flow.is_idle(now))


class Level:
    """The partitions with messages of one priority, as a heap of (tag, order, partition); and their virtual time."""

    __slots__ = ("heap", "virtual_time")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Partition]] = []
        self.virtual_time = 0.0


class Choice(NamedTuple):
    """The next message of a queue or a partition: a loaded one, or a cold bucket that must be loaded first."""

    priority: int
    id: int
    entry: QueueEntry | None
    bucket: int | None


class Partitions(dict[int, Partition]):
    """The partitions of a queue by number, in their fair order.

    Attributes:
        rules: what makes the partitions now.
        by_key: the partitions of the current expression, by key.
        others: the partitions of other expressions, and partition 0, unless the queue has no partitions now.
        changed: numbers of partitions whose records the next checkpoint writes or deletes.
        empty: partitions without messages, which may be deleted.
        many_empty: the number of these above which :meth:`closable` is worth a call.
        misplaced: numbers of partitions whose messages have to be moved, found by :meth:`choose`.
        may_load: False if :meth:`upcoming` found no cold bucket, and no partition became active since.
    """

    def __init__(self, available: Mapping[int, QueueEntry], cold: ColdSummaries, tail_messages: int) -> None:
        super().__init__()
        self._available, self._cold, self._tail_messages = available, cold, tail_messages
        self.rules = NO_PARTITIONS
        self.limits = PartitionLimits()
        self.by_key: dict[str, Partition] = {}
        self.others: dict[int, Partition] = {}
        self.changed: set[int] = set()
        self.empty: dict[int, Partition] = {}
        self.many_empty = _MANY_EMPTY
        self.misplaced: set[int] = set()
        self.may_load = True
        self._levels: dict[int, Level] = {}
        self._priorities: list[int] = []  # of the levels
        self._blocked: list[tuple[int, int, Partition]] = []  # a heap of (until, order, partition)
        self._order = 0
        self._free: list[int] = []
        self._next_number = 1
        self.open(0, "", "")

    # ------------------------------------------------------------------ opening and closing
    def free_number(self) -> int:
        """Return the number for a new partition."""
        return self._free[0] if self._free else self._next_number

    def open(self, number: int, by: str, key: str) -> Partition:
        """Add a partition without messages."""
        partition = self[number] = Partition(number, by, key, self.rules.weight_of(key))
        self._next_number = max(self._next_number, number + 1)
        if self._free and self._free[0] == number:
            heappop(self._free)
        if number:
            self.changed.add(number)
            self.empty[number] = partition
        self._sort_in(partition)
        return partition

    def _sort_in(self, partition: Partition) -> None:
        """Add a partition to those of the current expression, or to the others."""
        if not self.fits(partition):
            self.others[partition.number] = partition
        elif partition.number:
            self.by_key[partition.key] = partition

    def close(self, number: int) -> None:
        """Remove a partition without messages."""
        partition = self.pop(number)
        partition.is_blocked, partition.blocked_until = True, -1  # for its places in levels
        self.empty.pop(number, None)
        self.misplaced.discard(number)
        self.changed.add(number)
        heappush(self._free, number)
        self.others.pop(number, None)
        if self.by_key.get(partition.key) is partition:
            del self.by_key[partition.key]

    def closable(self, now: int) -> list[int]:
        """Return the numbers of the empty partitions that can be deleted; remove the empty ones from their levels."""
        for priority, level in self._levels.items():
            for tag, _order, partition in level.heap:
                if partition.number in self.empty:
                    partition.levels &= ~(1 << priority)
                    partition.tag = tag
            level.heap = [place for place in level.heap if place[2].levels >> priority & 1]
            heapify(level.heap)
        numbers = [number for number, partition in self.empty.items() if self.limits.is_idle(partition, now)]
        self.many_empty = max(2 * (len(self.empty) - len(numbers)), _MANY_EMPTY)  # those with tokens to regain stay
        return numbers

    def apply(self, rules: PartitionRules, limits: FlowRules, at: int) -> None:
        """Change the rules, and the limits from a time on.

        If the expression changed, the messages of other partitions must be moved.
        """
        self.rules, self.limits = rules, PartitionLimits(limits)
        self.by_key, self.others = {}, {}
        self.misplaced.clear()
        for partition in self.values():
            self._sort_in(partition)
            partition.stride = 1 / rules.weight_of(partition.key)
            partition.flow = None if partition.flow is None else limited(partition.flow, limits, at)
            if partition.returning and limits.concurrency != 1:
                partition.returning = None
                self.changed.add(partition.number)
            self.unblock(partition)
        for entry in self._available.values():
            if entry.visible_at > at:
                self.delayed(entry)

    def fits(self, partition: Partition) -> bool:
        """Return True if the messages of a partition are where the rules place them."""
        return partition.by == self.rules.by

    @property
    def has_misplaced(self) -> bool:
        """True if messages wait that have to be moved before they are delivered."""
        return bool(self.rules.by) and any(partition.waiting for partition in self.others.values())

    # ------------------------------------------------------------------ messages
    def of_bucket(self, bucket: int) -> Partition:
        return self[bucket >> PARTITION_BITS]

    def add_ready(self, entry: QueueEntry) -> None:
        """Add a loaded message that is visible."""
        partition = self[entry.bucket >> PARTITION_BITS]
        heappush(partition.ready, (entry.priority, entry.id))
        if not partition.levels >> entry.priority & 1:
            self.activate(partition, entry.priority)

    def activate(self, partition: Partition, priority: int) -> None:
        """Place a partition in the level of a priority, unless it is there or blocked."""
        bit = 1 << priority
        if partition.is_blocked or partition.levels & bit:
            return
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = Level()
            insort(self._priorities, priority)
        tag = max(level.virtual_time, partition.tag) if partition.levels == 0 and partition.tag else level.virtual_time
        partition.levels |= bit
        partition.tag = 0.0
        self.may_load = True
        self._order += 1
        heappush(level.heap, (tag, self._order, partition))

    def came(self, partition: Partition, messages: int = 1) -> None:
        """Count messages that wait in a partition."""
        partition.waiting += messages
        self.empty.pop(partition.number, None)

    def went(self, entry: QueueEntry) -> None:
        """Count a message that no longer waits in its partition."""
        partition = self[entry.bucket >> PARTITION_BITS]
        partition.waiting -= 1
        if partition.returning and partition.returning.pop(entry.id, None):
            self.changed.add(partition.number)
            self._freed(partition)
        elif not partition.waiting and not partition.in_flight and partition.number:
            self.empty[partition.number] = partition

    def clean(self, partition: Partition) -> None:
        """Remove the pairs of messages that are no longer ready in a partition, if they are most pairs."""
        if not partition.waiting:
            partition.ready.clear()
        elif len(partition.ready) > 2 * min(partition.waiting, len(self._available)) + EXTRA_PAIRS:
            self.forget((partition.number,))

    def delayed(self, entry: QueueEntry) -> None:
        """Let a delayed message keep the only slot of its partition if it was delivered before."""
        number = entry.bucket >> PARTITION_BITS
        if number and self.limits.rules.concurrency == 1 and (entry.attempts or entry.returned):
            self._keep_slot(self[number], entry.id, entry.visible_at)
            self.changed.add(number)

    def restore_returning(self, number: int, rows: Iterable[Row], now: int) -> None:
        """Let returned messages in a bucket's record keep the only slot of their partition, as before a restart."""
        partition = self[number >> PARTITION_BITS]
        for id, _priority, visible_at, _deadline, attempts in rows:
            is_delay = partition.flow is not None and partition.flow.delayed_until_ms == visible_at
            if visible_at > now and (attempts or is_delay):
                self._keep_slot(partition, id, visible_at)
            if is_delay and partition.flow is not None:
                partition.flow.delayed_until_ms = 0

    def _keep_slot(self, partition: Partition, id: int, visible_at: int) -> None:
        if partition.returning is None:
            partition.returning = {}
        partition.returning[id] = visible_at

    def claimed(self, entry: QueueEntry, at: int) -> None:
        """Count a delivery at a time, and charge the partition for it."""
        partition = self[entry.bucket >> PARTITION_BITS]
        if self.limits.rules.interval_ns and self.limits.take(partition, at):
            self.changed.add(partition.number)
        if partition.returning:
            partition.returning.pop(entry.id, None)
        partition.waiting -= 1
        partition.in_flight += 1
        level = self._levels.get(entry.priority)
        if level is not None and (heap := level.heap) and heap[0][2] is partition:
            tag = level.virtual_time = heap[0][0]
            self._order += 1
            heapreplace(heap, (tag + partition.stride, self._order, partition))
        else:
            partition.debt = min(partition.debt + partition.stride, _MAX_DEBT * partition.stride)

    def returned(self, partition: Partition) -> None:
        """Count the end of a lease."""
        partition.in_flight -= 1
        self._freed(partition)

    def started(self, entry: QueueEntry) -> int:
        """Count a task that will run after its lease; return the number of its partition."""
        partition = self.of_bucket(entry.bucket)
        partition.running += 1
        return partition.number

    def finished(self, number: int) -> None:
        """Count the end of such a task."""
        partition = self.get(number)
        if partition is not None and partition.running:
            partition.running -= 1
            self._freed(partition)

    def delay(self, number: int, until_ms: int) -> None:
        """Deliver nothing of a partition before a time."""
        partition = self[number]
        partition.flow = partition.flow or FlowLimits(self.limits.rules)
        partition.flow.delayed_until_ms = until_ms
        self.changed.add(number)
        self.unblock(partition)

    def _freed(self, partition: Partition) -> None:
        if partition.is_blocked:
            self.unblock(partition)
        if not partition.waiting and not partition.in_flight and partition.number:
            self.empty[partition.number] = partition

    # ------------------------------------------------------------------ eviction
    def farthest(
        self, buckets: list[tuple[tuple[int, int], int]], loaded: Mapping[int, QueueBucket]
    ) -> list[tuple[tuple[int, int], int]]:
        """Return loaded buckets, given with their best messages, from the last one to be delivered to the next one."""
        tags = {partition.number: tag for level in self._levels.values() for tag, _order, partition in level.heap}
        order: list[tuple[int, float, tuple[tuple[int, int], int]]] = []
        for pair in sorted(buckets):
            (priority, _id), bucket = pair
            number = bucket >> PARTITION_BITS
            tag = tags.get(number, _LAST_TAG)
            order.append((priority, tag, pair))
            tags[number] = tag + self[number].stride * len(loaded[bucket].available)
        return [pair for _priority, _tag, pair in sorted(order, reverse=True)]

    def evicted(self, number: int, rows: list[Row]) -> None:
        """Record that a bucket with these rows is no longer loaded."""
        partition = self[number >> PARTITION_BITS]
        partition.waiting -= len(rows)  # noting the summary counts them again
        if number == partition.tail:
            partition.note_cold_tail(active.encode(rows, ()) if len(rows) <= self._tail_messages else b"")

    def forget(self, numbers: Iterable[int]) -> None:
        """Remove the pairs of messages that are no longer loaded, or have left, from these partitions."""
        available = self._available
        for partition in filter(None, map(self.get, numbers)):
            entries = {pair: available[pair[1]] for pair in partition.ready if pair[1] in available}
            number = partition.number
            partition.ready = [pair for pair, entry in entries.items() if entry.bucket >> PARTITION_BITS == number]
            heapify(partition.ready)

    # ------------------------------------------------------------------ choosing
    def choose(self, now: int) -> Choice | None:
        """Return the next message of all partitions; None if none is ready."""
        blocked = self._blocked
        while blocked and blocked[0][0] <= now:
            until, _order, partition = heappop(blocked)
            if partition.is_blocked and partition.blocked_until == until:
                self.unblock(partition)
        place = 0
        while place < len(self._priorities):
            priority = self._priorities[place]
            choice = self._first(self._levels[priority], priority, now)
            if choice is not None:
                return choice
            # partitions that left the level may have joined a better one
            place = 0 if any(self._levels[each].heap for each in self._priorities[: place + 1]) else place + 1
        return None

    def _first(self, level: Level, priority: int, now: int) -> Choice | None:
        """Return the next message of a level; remove the partitions that have none or are blocked."""
        heap, by = level.heap, self.rules.by
        while heap:
            tag, order, partition = heap[0]
            choice = None if partition.is_blocked else self.best_of(partition, now)
            if choice is not None and choice.priority == priority:
                if partition.by != by and by:
                    self.misplaced.add(partition.number)
                    until = NEVER
                else:
                    until = self.limits.next_allowed_at(partition, now)
                if until <= now:
                    if not partition.debt:
                        return choice
                    heapreplace(heap, (tag + partition.debt, order, partition))
                    partition.debt = 0.0
                    continue
                self._block(partition, until, tag)
            heappop(heap)
            partition.levels &= ~(1 << priority)
            if partition.is_blocked:
                continue
            level.virtual_time = max(level.virtual_time, tag)
            if choice is not None:
                self.activate(partition, choice.priority)
                if choice.priority < priority:
                    return None
        return None

    def best_of(self, partition: Partition, now: int) -> Choice | None:
        """Return the next message of a partition; None if none is ready."""
        ready, available, number = partition.ready, self._available, partition.number
        found: QueueEntry | None = None
        while ready:
            entry = available.get(ready[0][1])
            if (
                entry is not None
                and entry.bucket >> PARTITION_BITS == number
                and (entry.visible_at <= now or entry.is_visible(now))
            ):
                found = entry
                break
            heappop(ready)
        if self._cold:
            cold = self._cold.best(number)
            if cold is not None and (found is None or cold[:2] < (found.priority, found.id)):
                return Choice(cold[0], cold[1], None, cold[2])
        return None if found is None else Choice(found.priority, found.id, found, None)

    def oldest_ready(self, partition: Partition) -> int | None:
        """Return the id of the oldest ready message of a partition, by the best message of each cold bucket."""
        loaded = (id for _priority, id in partition.ready if id in self._available)
        cold = (id for _priority, id, _bucket in self._cold.all_of(partition.number))
        return min((*loaded, *cold), default=None)

    def upcoming(self, count: int) -> tuple[list[QueueEntry], list[int]]:
        """Return the loaded messages and the cold buckets among the next ``count`` messages, if no limit applies.

        The buckets have at most about four times as many messages.
        """
        entries: list[QueueEntry] = []
        buckets: list[int] = []
        limit, cold = 4 * count, self._cold
        for priority in self._priorities:
            heap = self._levels[priority].heap.copy()
            cursors: dict[int, Iterator[QueueEntry | int | None]] = {}
            while heap and count > 0 and limit > 0:
                tag, order, partition = heap[0]
                cursor = cursors.get(partition.number)
                if cursor is None:
                    cursor = cursors[partition.number] = self._following(partition, priority)
                item = next(cursor, _END)
                if item is _END:
                    heappop(heap)
                    continue
                if isinstance(item, int):
                    buckets.append(item)
                    limit -= cold[item].messages
                elif item is not None:
                    entries.append(item)
                count -= 1
                heapreplace(heap, (tag + partition.stride, order, partition))
        self.may_load = bool(buckets) or count <= 0
        return entries, buckets

    def in_turn(self, count: int) -> Iterator[Partition]:
        """Yield up to ``count`` partitions with messages in their fair order, which are not blocked."""
        seen: set[int] = set()
        for priority in self._priorities:
            heap = self._paid(priority).copy()
            owed: set[int] = set()
            while heap and len(seen) < count:
                tag, order, partition = heappop(heap)
                if not self.fits(partition):
                    self.misplaced.add(partition.number)
                elif partition.waiting and not partition.is_blocked and partition.number not in seen:
                    if partition.debt and partition.number not in owed:
                        owed.add(partition.number)
                        heappush(heap, (tag + partition.debt, order, partition))
                        continue
                    seen.add(partition.number)
                    yield partition

    def _paid(self, priority: int) -> list[tuple[float, int, Partition]]:
        """Return the heap of a level, whose first partition has messages and no debt."""
        level = self._levels[priority]
        heap = level.heap
        while heap:
            tag, order, partition = heap[0]
            if not partition.waiting or partition.is_blocked:
                heappop(heap)
                partition.levels &= ~(1 << priority)
                if not partition.is_blocked:
                    partition.tag = tag
            elif partition.debt:
                heapreplace(heap, (tag + partition.debt, order, partition))
                partition.debt = 0.0
            else:
                level.virtual_time = max(level.virtual_time, tag)
                break
        return heap

    def _following(self, partition: Partition, priority: int) -> Iterator[QueueEntry | int | None]:
        """Yield the next loaded messages and cold buckets of a partition and a priority, in the order of delivery.

        After a bucket, None stands for each of its further messages.
        """
        if partition.is_blocked:
            return
        available, number, cold = self._available, partition.number, self._cold
        loaded = partition.ready.copy()
        buckets = [triple for triple in cold.all_of(number) if triple[0] == priority] if cold else []
        last = -1
        while loaded or buckets:
            if buckets and (not loaded or buckets[0][:2] < loaded[0]):
                bucket = buckets.pop(0)[2]
                yield bucket
                yield from repeat(None, cold[bucket].messages - 1 if bucket in cold else 0)
                continue
            each, id = heappop(loaded)
            entry = available.get(id)
            if each == priority and id != last and entry is not None and entry.bucket >> PARTITION_BITS == number:
                last = id
                yield entry

    # ------------------------------------------------------------------ limits
    def _block(self, partition: Partition, until: int, tag: float) -> None:
        partition.is_blocked, partition.blocked_until, partition.tag = True, until, tag
        if until < NEVER:
            self._order += 1
            heappush(self._blocked, (until, self._order, partition))

    def unblock(self, partition: Partition) -> None:
        """Let a partition be considered again, after an event that may have changed its limits."""
        partition.is_blocked, partition.blocked_until = False, 0
        # the best pairs may be stale: the place in a level is checked when it has the lowest tag
        cold = self._cold.best(partition.number)
        priorities = [pair[0] for pair in (*partition.ready[:1], *([cold] if cold is not None else ()))]
        if priorities:
            self.activate(partition, min(priorities))

    def next_unblocked_at(self) -> int | None:
        """Return the time at which the next partition is unblocked."""
        blocked = self._blocked
        while blocked:
            until, _order, partition = blocked[0]
            if partition.is_blocked and partition.blocked_until == until:
                return until
            heappop(blocked)
        return None
