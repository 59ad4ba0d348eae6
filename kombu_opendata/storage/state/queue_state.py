"""The messages of one queue in memory: its buckets, the next message to deliver, the messages in flight.

A queue's messages are spread over buckets (docs/rfcs/0001-records.md). A bucket is *loaded*, its entries in memory, or
*cold*, represented by a :class:`~.queue_buckets.Summary`, so that millions of messages use a few megabytes. This
module changes memory only: it reads no clock and does no I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from operator import attrgetter

from ..engine_sizes import SIZES, EngineSizes
from ..records import active
from .cold_summaries import PARTITION_BITS, ColdSummaries, Summary
from .flow_limits import NO_LIMITS, FlowRules
from .partitions import EXTRA_PAIRS, Partition, PartitionRules, Partitions
from .queue_buckets import QueueBucket, QueueEntry, Row

_order = attrgetter("priority", "id")
#: entries of a partition's first bucket, and how often this number doubles with the next ones
_FIRST_BUCKET_ENTRIES, _DOUBLINGS = 8, 5


class QueueState:
    """All messages of one queue.

    Invariants:

    - A message is in exactly one of ``available``, ``in_flight`` and a cold bucket.
    - The bucket of each entry in ``available`` and ``in_flight`` is loaded.
    - The tail, and each bucket with messages in flight, is always loaded.
    - No message expires before ``next_deadline``.

    The heaps ``_ready``, ``_delayed`` and ``_oldest`` may contain messages that are no longer there, and some of them
    twice; ``_deadlines`` such buckets. Such pairs are removed at the head of a heap, or, in a queue without consumers,
    when most pairs are such.

    Attributes:
        partitions: the partitions of a queue that has them or had them, whose heaps take the place of ``_ready``.
    """

    def __init__(
        self,
        name: str,
        *,
        durable: bool = True,
        counts_bytes: bool = False,
        changed: set[str] | None = None,
        sizes: EngineSizes = SIZES,
    ) -> None:
        """Create the queue. Its name is added to ``changed`` if there are changes for a checkpoint or :meth:`evict`."""
        self.name = name
        self._changed: set[str] = set() if changed is None else changed
        self._changed.add(name)
        self.durable = durable
        self.bucket_entries, self._loaded_buckets = sizes.bucket_entries, sizes.loaded_buckets
        self._tail_messages = sizes.tail_messages
        self._loaded_entries = sizes.partitioned_factor * sizes.loaded_buckets * sizes.bucket_entries
        self.buckets: dict[int, QueueBucket] = {0: QueueBucket()}
        self.cold = ColdSummaries()
        self.dirty: set[int] = {0}
        self.dropped: set[int] = set()  # empty buckets whose records the next checkpoint deletes
        self.tail = 0
        self.tail_used = 0
        self.watchers: list[Callable[[int, Iterable[int]], None]] = []  # called with (bucket, ids) of evicted messages
        self.available: dict[int, QueueEntry] = {}
        self.in_flight: dict[int, QueueEntry] = {}
        self.next_deadline = 0  # 0: no message expires
        self.fresh: set[int] = set()  # published in this turn with a TTL of 0: may still be delivered
        self.counts_bytes = counts_bytes
        self.available_bytes = 0  # of all available messages, if ``counts_bytes``
        self.partitions: Partitions | None = None
        self.delays = 0  # number of changes of the time at which a waiting message is visible
        self._oldest: list[int] | None = None  # a heap of loaded ids, once :meth:`oldest` was called
        self._ready: list[tuple[int, int]] = []
        self._delayed: list[tuple[int, int, int]] = []
        self._deadlines: list[tuple[int, int]] = []  # a heap of (next deadline, loaded bucket)

    def __len__(self) -> int:
        """Return the number of available messages, visible or not."""
        return len(self.available) + self.cold.messages

    # ------------------------------------------------------------------ adding
    def place(self) -> int:
        """Return the bucket for the next new message."""
        if self.tail_used >= self.bucket_entries and self.durable:
            self.open_tail(self.tail + 1)
        return self.tail

    def open_tail(self, number: int) -> None:
        """Make bucket ``number`` the tail."""
        old = self.tail
        self.tail, self.tail_used = number, 0
        self.buckets[number] = QueueBucket()
        bucket = self.buckets[old]
        if not bucket.available and not bucket.in_flight:
            self._drop_empty(old, bucket)

    def add(
        self, bucket: int, id: int, priority: int, visible_at: int, deadline: int, now: int, size: int = 0
    ) -> QueueEntry:
        """Add a new message, available from ``visible_at``."""
        if bucket == self.tail:
            self.tail_used += 1
        else:
            self._open_bucket(bucket, now)
        entry = QueueEntry(self.name, bucket, id, priority, visible_at, deadline, size=size)
        self._make_available(entry, now)
        return entry

    def place_in(self, partition: Partition) -> int:
        """Return the bucket for the next new message of a partition."""
        if not partition.number:
            return self.place()
        return partition.tail if partition.tail_used < self.capacity_of(partition.tail) else partition.tail + 1

    def capacity_of(self, bucket: int) -> int:
        """Return the number of entries of a full bucket.

        The first ones of a partition are small: a checkpoint rewrites the buckets that changed, which are those of all
        partitions.
        """
        if not bucket >> PARTITION_BITS:
            return self.bucket_entries
        index = bucket & (1 << PARTITION_BITS) - 1
        return min(self.bucket_entries, _FIRST_BUCKET_ENTRIES << min(index, _DOUBLINGS))

    def _open_bucket(self, number: int, now: int) -> None:
        """Make a bucket the loaded tail of its partition, for one more message."""
        if not number >> PARTITION_BITS:
            if number > self.tail:
                self.open_tail(number)
            self.tail_used += 1
            return
        assert self.partitions is not None
        partition = self.partitions.of_bucket(number)
        if number > partition.tail:
            partition.tail, partition.tail_used, partition.tail_rows = number, 0, b""
        partition.tail_used += 1
        if number in self.buckets:
            return
        if number in self.cold:
            self.restore(number, *active.decode(b"", partition.tail_rows), now)
            return
        bucket = self.buckets[number] = QueueBucket()
        if number in self.dropped:
            self.dropped.discard(number)
            bucket.stored = True

    def buckets_in(self, partition: Partition) -> Iterator[tuple[int, int]]:
        """Yield the lowest id, and the number, of each bucket of a partition with available messages."""
        buckets, cold = self.buckets, self.cold
        while partition.first < partition.tail and partition.first not in buckets and partition.first not in cold:
            partition.first += 1
        for number in range(partition.first, partition.tail + 1):
            if number in cold:
                yield cold[number].lowest_id, number
            elif number in buckets and buckets[number].available:
                yield min(buckets[number].available), number

    def restore_tail(self, number: int, used: int, rows: bytes) -> None:
        """Make a stored bucket of a partition its tail; ``rows`` is the bucket's record if that stays cold."""
        if self.partitions is None or number >> PARTITION_BITS not in self.partitions:
            self.open_partition(number >> PARTITION_BITS, "", "")  # its record is lost
        assert self.partitions is not None
        partition = self.partitions.of_bucket(number)
        if not partition.tail_used:
            partition.first = number
        partition.tail, partition.tail_used, partition.tail_rows = number, used, b""
        if rows:
            partition.note_cold_tail(rows if used <= self._tail_messages else b"")

    def partition(self, rules: PartitionRules, limits: FlowRules = NO_LIMITS, at: int = 0) -> None:
        """Change the rules by which messages have partitions, and the limits of these from a time on.

        Messages elsewhere must be moved.
        """
        if self.partitions is None:
            if not rules.by:
                return
            self._make_partitions()
        assert self.partitions is not None
        self.partitions.apply(rules, limits, at)
        self.drop_partitions()

    def _make_partitions(self) -> None:
        partitions = self.partitions = Partitions(self.available, self.cold, self._tail_messages)
        partitions.came(partitions[0], len(self))
        partitions[0].in_flight = len(self.in_flight)
        partitions[0].ready, self._ready = self._ready, []

    def drop_partitions(self) -> None:
        """Become a queue without partitions, if all messages have left them and no rules make new ones."""
        partitions = self.partitions
        if partitions is not None and not partitions.rules.by and len(partitions) == 1 and not partitions.changed:
            self._ready, self.partitions = partitions[0].ready, None

    def open_partition(self, number: int, by: str, key: str) -> Partition:
        """Add a partition without messages."""
        if self.partitions is None:
            self._make_partitions()
        assert self.partitions is not None
        self._changed.add(self.name)
        return self.partitions.open(number, by, key)

    def close_partitions(self, numbers: Iterable[int]) -> None:
        """Remove partitions without messages."""
        assert self.partitions is not None
        self._changed.add(self.name)
        for number in numbers:
            self.partitions.close(number)

    def _make_available(self, entry: QueueEntry, now: int) -> None:
        bucket = self.buckets[entry.bucket]
        self.available[entry.id] = entry
        bucket.available[entry.id] = entry
        self.dirty.add(entry.bucket)
        self._changed.add(self.name)
        partitions = self.partitions
        if partitions is not None:
            partitions.came(partitions[entry.bucket >> PARTITION_BITS])
        if entry.visible_at > now:
            heappush(self._delayed, (entry.visible_at, entry.priority, entry.id))
            if partitions is not None:
                partitions.delayed(entry)
        elif partitions is None:
            heappush(self._ready, (entry.priority, entry.id))
        else:
            partitions.add_ready(entry)
        if entry.deadline and not 0 < bucket.next_deadline <= entry.deadline:
            bucket.next_deadline = entry.deadline
            self._note_deadline(entry.bucket, bucket)
        if self.counts_bytes:
            self.available_bytes += entry.size
        if self._oldest is not None:
            heappush(self._oldest, entry.id)
            if len(self._oldest) > self._largest_heap:
                self._oldest = None

    # ------------------------------------------------------------------ choosing
    def promote(self, now: int) -> None:
        """Make messages ready that have become visible."""
        delayed, available = self._delayed, self.available
        while delayed and delayed[0][0] <= now:
            visible_at, priority, id = heappop(delayed)
            entry = available.get(id)
            if entry is not None and entry.visible_at == visible_at:
                if self.partitions is None:
                    heappush(self._ready, (priority, id))
                else:
                    self.partitions.add_ready(entry)

    def next(self, now: int) -> tuple[QueueEntry | None, int | None]:
        """Return the next loaded message; and the bucket that must be loaded before it, or any other, is claimed."""
        partitions = self.partitions
        if partitions is None:
            entry = self.peek(now)
            return entry, self.cold.wanted(now, entry)
        if self._delayed and self._delayed[0][0] <= now:
            self.promote(now)
        for number in self.cold.promote(now) if self.cold else ():
            best_delayed = self.cold[number].best_delayed
            if best_delayed is not None:
                partitions.activate(partitions.of_bucket(number), best_delayed[0])
        choice = partitions.choose(now)
        return (None, None) if choice is None else (choice.entry, choice.bucket)

    def peek(self, now: int) -> QueueEntry | None:
        """Return the best loaded visible message, by the fair order of partitions, priority and then id."""
        if self.partitions is not None:
            return self.next(now)[0]
        if self._delayed and self._delayed[0][0] <= now:
            self.promote(now)
        ready, available = self._ready, self.available
        while ready:
            entry = available.get(ready[0][1])
            # The pair may precede a return with a delay.
            if entry is not None and (entry.visible_at <= now or entry.is_visible(now)):
                return entry
            heappop(ready)
        return None

    def upcoming(self, count: int) -> list[QueueEntry]:
        """Return the messages that are probably next: the best ready one, and others of its and later buckets.

        Returns fewer than ``count`` only at the next cold bucket or at the end.
        """
        ready, available = self._ready, self.available
        while ready and ready[0][1] not in available:
            heappop(ready)
        if not ready:
            return []
        best = available[ready[0][1]]
        cold = self.cold.next()
        upcoming = [best]
        for number in sorted(self.buckets):
            if number < best.bucket:
                continue
            if len(upcoming) >= count or (cold is not None and best.bucket < cold < number):
                break
            entries = (entry for entry in self.buckets[number].available.values() if entry is not best)
            upcoming += sorted(entries, key=_order)
        return upcoming[:count]

    @property
    def has_cold_ready(self) -> bool:
        """True if a cold bucket may have a message that is ready."""
        if self.partitions is not None:
            return bool(self.cold) and self.partitions.may_load
        return self.cold.next() is not None

    def upcoming_in_partitions(self, count: int) -> tuple[list[QueueEntry], list[int]]:
        """Return about ``count`` of the next messages of all partitions, and the cold buckets among them."""
        return ([], []) if self.partitions is None else self.partitions.upcoming(count)

    def next_visible_at(self) -> int | None:
        """Return the time at which the next delayed message becomes visible, or the next partition is unblocked."""
        times = [self._delayed[0][0] if self._delayed else None, self.cold.next_visible_at]
        if self.partitions is not None:
            times.append(self.partitions.next_unblocked_at())
        return min((at for at in times if at is not None), default=None)

    def delayed(self, now: int) -> int:
        """Return the number of loaded messages that are not visible yet."""
        self.promote(now)
        available, delayed_ids = self.available, set()
        for visible_at, _priority, id in self._delayed:
            entry = available.get(id)
            if entry is not None and entry.visible_at == visible_at:
                delayed_ids.add(id)
        return len(delayed_ids)

    def delayed_until(self) -> Iterator[int]:
        """Yield the time at which each loaded delayed message becomes visible."""
        for visible_at, _priority, id in list(self._delayed):
            entry = self.available.get(id)
            if entry is not None and entry.visible_at == visible_at:
                yield visible_at

    # ------------------------------------------------------------------ transitions
    def claim(self, entry: QueueEntry, session: bytes, at: int, lease_until: int) -> None:
        """Move a message from available to in flight; this costs an attempt."""
        id = entry.id
        bucket = self.buckets[entry.bucket]
        del self.available[id]
        del bucket.available[id]
        if self.counts_bytes:
            self.available_bytes -= entry.size
        if self.partitions is not None:
            self.partitions.claimed(entry, at)
        if entry.attempts < 0xFFFF:
            entry.attempts += 1
        entry.claimed_at = at
        entry.lease_until = lease_until
        entry.session = session
        self.in_flight[id] = entry
        bucket.in_flight[id] = entry
        self.dirty.add(entry.bucket)
        self._changed.add(self.name)

    def is_limited(self, entry: QueueEntry, now: int) -> bool:
        """Return True if the partition of an available message may not deliver now."""
        partitions = self.partitions
        return partitions is not None and (
            partitions.limits.next_allowed_at(partitions.of_bucket(entry.bucket), now) > now
        )

    def settle(self, entry: QueueEntry) -> None:
        """Remove a message in flight from the active ones: it is done or failed, which the caller records."""
        bucket = self.buckets[entry.bucket]
        del self.in_flight[entry.id]
        del bucket.in_flight[entry.id]
        if self.partitions is not None:
            self.partitions.returned(self.partitions.of_bucket(entry.bucket))
        self.dirty.add(entry.bucket)
        self._changed.add(self.name)
        if not bucket.in_flight and not bucket.available:
            self._drop_empty(entry.bucket, bucket)

    def put_back(self, entry: QueueEntry, now: int, *, costs_attempt: bool, visible_at: int = 0) -> None:
        """Move a message from in flight to available, at its old place, immediately or from ``visible_at``.

        Its next claim has a later time than this one, so no two claims share a token.
        """
        bucket = self.buckets[entry.bucket]
        bucket.forget_record()
        del self.in_flight[entry.id]
        del bucket.in_flight[entry.id]
        if self.partitions is not None:
            self.partitions.returned(self.partitions.of_bucket(entry.bucket))
        if not costs_attempt:
            entry.attempts -= 1
        at_once = max(entry.visible_at, entry.claimed_at + 1)
        entry.visible_at = max(at_once, visible_at)
        entry.session = b""
        entry.returned = True
        self._make_available(entry, max(now, at_once))
        self._clean_heaps(entry)

    def remove(self, entry: QueueEntry) -> None:
        """Remove an available message (expired or purged)."""
        bucket = self._take(entry)
        self.touch(entry)
        if not bucket.available and not bucket.in_flight:
            self._drop_empty(entry.bucket, bucket)

    def delay(self, entry: QueueEntry, visible_at: int, now: int) -> None:
        """Change the time from which an available message is visible; see :meth:`put_back`."""
        entry.visible_at = max(visible_at, entry.claimed_at + 1)
        self.delays += 1
        self._take(entry).forget_record()
        self._make_available(entry, now)

    def touch(self, entry: QueueEntry) -> None:
        """Record that an entry changed."""
        self.dirty.add(entry.bucket)
        self._changed.add(self.name)

    def _take(self, entry: QueueEntry) -> QueueBucket:
        """Remove an available message from memory; return its bucket."""
        bucket = self.buckets[entry.bucket]
        del self.available[entry.id]
        del bucket.available[entry.id]
        if self.counts_bytes:
            self.available_bytes -= entry.size
        if self.partitions is not None:
            self.partitions.went(entry)
        self._clean_heaps(entry)
        return bucket

    @property
    def _largest_heap(self) -> int:
        return 2 * len(self.available) + EXTRA_PAIRS

    def _clean_heaps(self, entry: QueueEntry) -> None:
        """Remove the pairs of messages that are no longer ready or delayed, if they are most pairs."""
        if self.partitions is not None:
            self.partitions.clean(self.partitions.of_bucket(entry.bucket))
        if max(len(self._ready), len(self._delayed)) > self._largest_heap:
            self._rebuild_heaps()

    def _rebuild_heaps(self) -> None:
        available = self.available
        self._ready = list({pair for pair in self._ready if pair[1] in available})
        heapify(self._ready)
        visible_at = {row: entry.visible_at for row in self._delayed if (entry := available.get(row[2])) is not None}
        self._delayed = [row for row, at in visible_at.items() if row[0] == at]
        heapify(self._delayed)

    def relocate(self, entry: QueueEntry, bucket: int, now: int) -> None:
        """Move an available message to another bucket, the tail of its partition."""
        self.remove(entry)
        self._open_bucket(bucket, now)
        entry.bucket = bucket
        self._make_available(entry, now)

    # ------------------------------------------------------------------ finding
    def find(self, id: int) -> QueueEntry | None:
        """Return the message of this id, if its bucket is loaded."""
        return self.in_flight.get(id) or self.available.get(id)

    def cold_buckets_of(self, ids: Iterable[int]) -> list[int]:
        """Return the cold buckets that may have one of these ids: usually one for each id, as ids ascend with buckets.

        This reads every summary, in about 10 ms with ten million waiting messages.
        """
        wanted_ids = sorted(id for id in ids if self.find(id) is None)
        return [number for number, summary in self.cold.items() if summary.spans(wanted_ids)] if wanted_ids else []

    def _drop_empty(self, number: int, bucket: QueueBucket) -> None:
        """Remove an empty bucket, except bucket 0, which always has a record, and the tail of partition 0."""
        if number == self.tail:
            return
        self._changed.add(self.name)
        if number == 0:
            self.dirty.add(0)
            return
        del self.buckets[number]
        self.dirty.discard(number)
        if bucket.stored:
            self.dropped.add(number)

    # ------------------------------------------------------------------ loading
    def restore(self, number: int, available: Sequence[Row], in_flight: Iterable[Row], now: int) -> None:
        """Load a bucket from the rows of its record."""
        waiting = self.cold[number].messages if number in self.cold else 0
        sizes = self.cold.take(number)
        if self.partitions is not None and waiting:
            partition = self.partitions.of_bucket(number)
            partition.waiting -= waiting
            if number == partition.tail:
                partition.tail_rows = b""
        bucket = self.buckets[number] = QueueBucket()
        bucket.stored = True
        was_dirty = number in self.dirty
        self._changed.add(self.name)
        self.available_bytes -= sum(sizes or ())
        if available:
            self._restore_available(number, available, sizes, now)
        for id, priority, claimed_at, lease_until, attempts in in_flight:
            entry = QueueEntry(
                self.name, number, id, priority, 0, 0, attempts, claimed_at=claimed_at, lease_until=lease_until
            )
            self.in_flight[id] = bucket.in_flight[id] = entry
            if self.partitions is not None:
                partition = self.partitions.of_bucket(number)
                partition.in_flight += 1
                self.partitions.came(partition, 0)
        if not was_dirty:
            self.dirty.discard(number)

    def _restore_available(self, number: int, rows: Sequence[Row], sizes: Iterable[int] | None, now: int) -> None:
        ids, priorities, visible, deadlines, attempts = zip(*rows, strict=True)
        columns = ids, priorities, visible, deadlines, attempts, sizes or repeat(0)
        entries = list(map(QueueEntry, repeat(self.name), repeat(number), *columns))
        is_plain = self.partitions is None and self._oldest is None and not self.counts_bytes
        if not is_plain or any(deadlines) or max(visible) > now:
            for entry in entries:
                self._make_available(entry, now)
            return
        by_id = dict(zip(ids, entries, strict=True))  # as `_make_available`, in a fifth of the time
        self.available.update(by_id)
        self.buckets[number].available.update(by_id)
        for pair in zip(priorities, ids, strict=True):
            heappush(self._ready, pair)

    def note_cold(self, number: int, summary: Summary) -> None:
        """Register a bucket that remains in the store."""
        self.cold.note(number, summary)
        if self.partitions is not None:
            partition = self.partitions.of_bucket(number)
            self.partitions.came(partition, summary.messages)
            if summary.best is not None:
                self.partitions.activate(partition, summary.best[0])
        if summary.next_deadline:
            self.next_deadline = _sooner(self.next_deadline, summary.next_deadline)

    def count_bytes(self, on: bool) -> None:
        """Start or stop counting the bytes of available messages. Unknown sizes count as 0."""
        if on and not self.counts_bytes:
            loaded_bytes = sum(entry.size for entry in self.available.values())
            self.available_bytes = loaded_bytes + sum(map(sum, self.cold.sizes.values()))
        self.counts_bytes = on

    def set_size(self, entry: QueueEntry, size: int) -> None:
        """Set the size of a loaded message, if it was unknown."""
        if not entry.size:
            entry.size = size
            if self.available.get(entry.id) is entry:
                self.available_bytes += size

    def measure(self, number: int, sizes: list[int]) -> None:
        """Set the sizes of a cold bucket's messages, in the order of its rows."""
        self.available_bytes += sum(sizes) - sum(self.cold.sizes.get(number, ()))
        self.cold.sizes[number] = array("I", sizes)

    def evict(self, now: int) -> Iterator[None]:
        """Evict clean buckets that are far from the head, if many buckets are loaded: one with each step.

        The queue may change between two steps.
        """
        partitions = self.partitions
        if len(self.buckets) <= self._loaded_buckets or (
            partitions is not None and len(self.available) <= self._loaded_entries
        ):
            return
        idle = [
            (min([(e.priority, e.id) for e in bucket.available.values()]), number)
            for number, bucket in self.buckets.items()
            if self._is_idle(number, bucket)
        ]
        if partitions is None:
            idle.sort(reverse=True)
            excess = len(self.buckets) - (self._loaded_buckets + 1) // 2
        else:
            idle = partitions.farthest(idle, self.buckets)
            excess = len(self.buckets) // 2
        for _best, number in idle[:excess]:
            if number in self.buckets and self._is_idle(number, self.buckets[number]):
                self._evict(number, now)
            yield
        if self.partitions is not None:
            self.partitions.forget({number >> PARTITION_BITS for _best, number in idle[:excess]})
        self._rebuild_heaps()
        self._oldest = None

    def _is_idle(self, number: int, bucket: QueueBucket) -> bool:
        """Return True if a loaded bucket can be evicted."""
        is_clean = bucket.stored and number not in self.dirty
        return is_clean and bool(bucket.available) and not bucket.in_flight and number not in (0, self.tail)

    def _evict(self, number: int, now: int) -> None:
        bucket = self.buckets.pop(number)
        for id in bucket.available:
            del self.available[id]
        for watcher in self.watchers:
            watcher(number, bucket.available)
        rows = bucket.rows()[0]
        if self.partitions is not None:
            self.partitions.evicted(number, rows)
        self.note_cold(number, Summary.of(rows, now))
        if self.counts_bytes:
            self.cold.sizes[number] = array("I", [entry.size for entry in bucket.available.values()])

    # ------------------------------------------------------------------ expiry and maximum length
    def expired(self, now: int) -> list[QueueEntry]:
        """Return the loaded messages that have expired, except those that may still be delivered in this turn."""
        entries: list[QueueEntry] = []
        due: dict[int, QueueBucket] = {}
        deadlines, buckets = self._deadlines, self.buckets
        while deadlines:
            deadline, number = deadlines[0]
            bucket = buckets.get(number)
            if bucket is not None and bucket.next_deadline == deadline and number not in due:
                if deadline > now:
                    break
                due[number] = bucket
            heappop(deadlines)
        for bucket in due.values():
            entries += bucket.expired(now, self.fresh)
        self.next_deadline = self.cold.next_deadline()[0]
        if deadlines:
            self.next_deadline = _sooner(self.next_deadline, deadlines[0][0])
        for number, bucket in due.items():
            if bucket.next_deadline:
                self._note_deadline(number, bucket)
        return entries

    def _note_deadline(self, number: int, bucket: QueueBucket) -> None:
        """Record the next deadline of a loaded bucket, which has changed."""
        heappush(self._deadlines, (bucket.next_deadline, number))
        if len(self._deadlines) > 2 * len(self.buckets) + EXTRA_PAIRS:
            self._deadlines = sorted((each.next_deadline, n) for n, each in self.buckets.items() if each.next_deadline)
        self.next_deadline = _sooner(self.next_deadline, bucket.next_deadline)

    def oldest(self) -> tuple[QueueEntry | None, int | None]:
        """Return the available message with the lowest id; or, if that is in a cold bucket, (None, the bucket)."""
        available = self.available
        if self._oldest is None:
            self._oldest = sorted(available)
        oldest = self._oldest
        while oldest and oldest[0] not in available:
            heappop(oldest)
        entry = available[oldest[0]] if oldest else None
        cold = self.cold
        if self.partitions is not None:  # ids do not ascend with the buckets of different partitions
            first = cold.oldest()
            is_cold = first is not None and (entry is None or cold[first].lowest_id < entry.id)
            return (None, first) if is_cold else (entry, None)
        if entry is None or entry.bucket > cold.first:
            cold.first = min(cold, default=self.tail)
            if cold.first in cold and (entry is None or cold.first < entry.bucket):
                return None, cold.first
        return entry, None


def _sooner(deadline: int, other: int) -> int:
    """Return the earlier of two deadlines, the first of which may be 0 for none."""
    return other if not deadline or other < deadline else deadline
