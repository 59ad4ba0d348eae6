"""The cold buckets of a queue: a summary of each, and the choice of the next bucket to load.

A queue may have ten million messages in 40,000 buckets of 256. Loading all of them would take long and use gigabytes;
keeping only their number would not show which message is next, because priorities and delays decide that, not the order
of publishing. So a bucket that is not needed now is *cold*: the store has its messages, and memory has a
:class:`Summary` of a few hundred bytes, which is enough to decide whether the bucket could have the next message.

**Eviction and loading.** ``QueueState.evict``, after a checkpoint, makes clean buckets far from
the head cold; recovery begins with cold buckets. ``QueueState.restore`` loads one. A bucket with messages in flight,
the tail, and bucket 0 are never cold. While a bucket is cold, neither its messages nor its summary change. A
reader that awaited the store compares the summary by identity, to see whether the bucket was loaded or replaced since.
A bucket stays cold until its record was read, so a read that fails or is cancelled changes nothing.

**Order of delivery.** The next message is the visible one with the lowest (priority, id). Of a cold bucket the summary
has the best message that was visible at the time of the summary (``best``), and the best of the delayed ones
(``best_delayed``). :meth:`ColdSummaries.wanted` compares the best over all cold buckets with the best loaded message:
if a cold one is better, its bucket must be loaded first.

**Three heaps.** Each holds pairs whose last element is the bucket:

==============  ======================  ========================================================================
heap            ordered by              a pair is valid as long as
==============  ======================  ========================================================================
``_ready``      (priority, id)          this is the ``best`` or the ``best_delayed`` message of the bucket's summary
``_delayed``    time of visibility      this is the summary's ``next_visible_at`` or ``last_visible_at``
``_deadlines``  deadline                this is the summary's ``next_deadline``
==============  ======================  ========================================================================

Loading a bucket would have to search each heap for its pairs, so it leaves them: a pair is checked, and dropped if it
is stale, only when it reaches the top. If the last bucket is loaded the heaps are cleared. As the top may stay for
days, :meth:`ColdSummaries.note` also rebuilds a heap in which most pairs are stale or repeated. On average all methods
take a time logarithmic in the pairs, or less.

**A delayed message that becomes due** does not load its bucket: a million messages with ETAs in one minute would load
thousands of buckets together. ``wanted`` only moves the bucket's pair from ``_delayed`` to ``_ready``, with its best
delayed message, which is a lower bound: whether *that* message is visible yet is known after the load. The bucket is
loaded when its turn comes. If that is too early, it costs a read, and the order is still right: of loaded messages,
``QueueState.peek`` knows each time of visibility. If others of the bucket become visible later, the pair in
``_delayed`` is replaced by one with the last of these times, so that :attr:`ColdSummaries.next_visible_at` still has a
time: callers whose counts of ready messages are old count again then.

**The memo.** ``wanted`` is called for each delivery, and is nearly always negative. Its result holds until a time
(``_unwanted_until``, when the next delayed message becomes due), for loaded messages better than the best cold one
(``_next``). Adding and taking a bucket reset it; time does not go back (``storage/clock.py``).

**Loading together.** Ids ascend with buckets, so the successors of the wanted bucket are probably wanted next, as long
as their best messages have the same priority; :meth:`ColdSummaries.following` returns them, at most twelve, so that
none is evicted again before its turn. If the wanted bucket is next because of a delayed message, its successors are
not.

**Partitions.** The buckets of each partition of a queue (:mod:`.partitions`) have a separate heap in the place of
``_ready``, which :meth:`ColdSummaries.best` reads; that of partition 0, which other queues have only, is ``_ready``.

Expiry and the maximum length need other orders: ``_deadlines`` has the next expiring bucket, and ``first`` the oldest.
``sizes`` has the bytes of each message of a bucket for queues that count bytes: their records lack them. The counts of
delayed messages of a summary are for metrics only, and an estimate once some have become visible.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from ..records.active import Columns
from .queue_buckets import QueueEntry, Row

_NEVER = 1 << 63
#: a pair that is after every (priority, id)
_LAST = (1 << 16, 0)
#: most buckets that are loaded together, so that none of them is soon evicted again
_TOGETHER = 12
#: bits of a bucket's number within its partition
PARTITION_BITS = 32
#: pairs in the heap of a partition above which stale ones are removed, each time the number has doubled
_MANY_PAIRS = 128


class Summary(NamedTuple):
    """The summary of a cold bucket.

    It has the best of the visible and the best of the delayed messages, and the next times of visibility and expiry.
    ``delayed`` and ``first_visible_at`` are for metrics only.
    """

    best: tuple[int, int] | None  # (priority, id)
    next_visible_at: int | None  # of the delayed messages; None if there are none
    messages: int
    next_deadline: int | None
    delayed: int = 0  # not visible at the time of the summary
    first_visible_at: int = 0  # of all messages
    last_visible_at: int = 0  # of all messages
    lowest_id: int = 0
    highest_id: int = 0
    best_delayed: tuple[int, int] | None = None  # (priority, id)

    def best_at(self, now: int) -> tuple[int, int] | None:
        """Return a (priority, id) before which no message is visible now; None if none is visible."""
        if self.best_delayed is None or self.next_visible_at is None or self.next_visible_at > now:
            return self.best
        return self.best_delayed if self.best is None else min(self.best, self.best_delayed)

    def overlaps(self, ids: range) -> bool:
        """Return True if one of these consecutive ids is between the lowest and the highest one."""
        return self.lowest_id < ids.stop and ids.start <= self.highest_id

    def spans(self, ids: Sequence[int]) -> bool:
        """Return True if one of these sorted ids is between the lowest and the highest one."""
        place = bisect_left(ids, self.lowest_id)
        return place < len(ids) and ids[place] <= self.highest_id

    def delayed_at(self, now: int) -> int:
        """Return the number of messages that are not visible now; an estimate once some have become visible."""
        first, last = self.next_visible_at, self.last_visible_at
        if first is None or last <= now:
            return 0
        if first > now:
            return self.delayed
        return 1 + (self.delayed - 1) * (last - now) // (last - first + 1)

    @classmethod
    def of(cls, rows: Sequence[Row], now: int) -> Summary:
        """Return the summary of a bucket with these available messages."""
        if not rows:
            return cls(None, None, 0, None)
        ids, priorities, visible, deadlines, _attempts = zip(*rows, strict=True)
        return cls.of_columns(Columns(ids, priorities, visible, deadlines), now)

    @classmethod
    def of_columns(cls, columns: Columns, now: int) -> Summary:
        """Return the summary as :meth:`of`, of at least one message."""
        ids, priorities, visible, deadlines = columns
        first_visible, last_visible = min(visible), max(visible)
        lowest, highest, first_priority = min(ids), max(ids), min(priorities)
        best: tuple[int, int] | None = None
        best_delayed: tuple[int, int] | None = None
        delayed_times: list[int] = []
        if last_visible > now:
            delayed_times = [at for at in visible if at > now]
            pairs = list(zip(priorities, ids, visible, strict=True))
            best = min([(priority, id) for priority, id, at in pairs if at <= now], default=None)
            best_delayed = min([(priority, id) for priority, id, at in pairs if at > now])
        elif first_priority == max(priorities):
            best = first_priority, lowest
        else:
            best = min(zip(priorities, ids, strict=True))
        next_deadline = min(filter(None, deadlines), default=None) if any(deadlines) else None
        return cls(
            best, min(delayed_times, default=None), len(ids), next_deadline, len(delayed_times), first_visible,
            last_visible, lowest, highest, best_delayed,
        )  # fmt: skip


class ColdSummaries(dict[int, Summary]):
    """The summaries by bucket. Changed by :meth:`note` and :meth:`take` only.

    Attributes:
        messages: the number of messages in all cold buckets.
        first: no cold bucket is before this one.
        sizes: the sizes of each bucket's messages, in the order of its rows, if the queue counts bytes.
    """

    __slots__ = (
        "_deadlines",
        "_delayed",
        "_next",
        "_oldest",
        "_partitions",
        "_ready",
        "_unwanted_until",
        "first",
        "messages",
        "sizes",
    )

    def __init__(self) -> None:
        super().__init__()
        self.messages = 0
        self.first = 0
        self.sizes: dict[int, array[int]] = {}
        self._ready: list[tuple[int, int, int]] = []
        self._partitions: dict[int, list[tuple[int, int, int]]] = {}  # as `_ready`, by partition from 1 on
        self._delayed: list[tuple[int, int]] = []
        self._deadlines: list[tuple[int, int]] = []
        self._oldest: list[tuple[int, int]] | None = None  # a heap of (lowest id, bucket), once `oldest` was called
        # the last result of `wanted`: until this time, only a message worse than this (priority, id) needs a bucket
        self._unwanted_until = 0
        self._next = (0, 0)

    def note(self, number: int, summary: Summary) -> None:
        """Add a bucket, which is in the store only."""
        self[number] = summary
        self._unwanted_until = 0
        self.first = min(self.first, number)
        self.messages += summary.messages
        if summary.best is not None:
            self._push(summary.best, number)
        if summary.next_visible_at is not None:
            heappush(self._delayed, (summary.next_visible_at, number))
        if summary.next_deadline:
            heappush(self._deadlines, (summary.next_deadline, number))
        if self._oldest is not None:
            heappush(self._oldest, (summary.lowest_id, number))
        largest = 4 * len(self) + 64  # twice the most valid pairs
        if len(self._ready) > largest:
            self._ready = sorted({pair for pair in self._ready if self._is_ready(*pair)})
        if len(self._delayed) > largest:
            self._delayed = sorted({pair for pair in self._delayed if self._is_delayed(*pair)})
        if len(self._deadlines) > largest:
            self._deadlines = sorted((s.next_deadline, n) for n, s in self.items() if s.next_deadline)
        if self._oldest is not None and len(self._oldest) > largest:
            self._oldest = None

    def take(self, number: int) -> array[int] | None:
        """Remove a bucket that is loaded, if it was cold; return the sizes of its messages, if they are known."""
        summary = self.pop(number, None)
        if summary is not None:
            self.messages -= summary.messages
            self._unwanted_until = 0
            if not self:
                for heap in (self._ready, self._delayed, self._deadlines, self._partitions):
                    heap.clear()
        return self.sizes.pop(number, None)

    def wanted(self, now: int, best: QueueEntry | None) -> int | None:
        """Return the bucket that must be loaded before ``best`` (or any message, if None) may be claimed."""
        if best is not None and now < self._unwanted_until and (best.priority, best.id) < self._next:
            return None
        self.promote(now)
        due = self.next_visible_at
        is_any = self.next() is not None
        self._unwanted_until = _NEVER if due is None else due
        self._next = self._ready[0][:2] if is_any else _LAST
        if is_any and (best is None or self._next < (best.priority, best.id)):
            return self._ready[0][2]
        return None

    def promote(self, now: int) -> list[int]:
        """Make buckets ready in which a message may have become visible; return them."""
        numbers = []
        while (due := self.next_visible_at) is not None and due <= now:
            _at, number = heappop(self._delayed)
            numbers.append(number)
            summary = self[number]
            if summary.best_delayed is not None:
                self._push(summary.best_delayed, number)
            if summary.last_visible_at > now:  # the number of ready messages changes until then
                heappush(self._delayed, (summary.last_visible_at, number))
        return numbers

    def _push(self, pair: tuple[int, int], number: int) -> None:
        """Add a pair to the heap of the bucket's partition."""
        partition = number >> PARTITION_BITS
        if not partition:
            heappush(self._ready, (*pair, number))
            return
        heap = self._partitions.setdefault(partition, [])
        heappush(heap, (*pair, number))
        if len(heap) >= _MANY_PAIRS and not len(heap) & (len(heap) - 1):
            heap[:] = sorted({triple for triple in heap if self._is_ready(*triple)})

    def best(self, partition: int) -> tuple[int, int, int] | None:
        """Return priority and id of the message of a partition that may be the best visible one, and its bucket."""
        heap = self._partitions.get(partition) if partition else self._ready
        while heap:
            if self._is_ready(*heap[0]):
                return heap[0]
            heappop(heap)
        if partition:
            self._partitions.pop(partition, None)
        return None

    def all_of(self, partition: int) -> list[tuple[int, int, int]]:
        """Return :meth:`best` for each ready bucket of a partition, in their order."""
        heap = self._partitions.get(partition, ()) if partition else self._ready
        if len(heap) == 1:
            return [triple for triple in heap if self._is_ready(*triple)]
        buckets: dict[int, tuple[int, int, int]] = {}
        for triple in sorted(heap):
            if self._is_ready(*triple):
                buckets.setdefault(triple[2], triple)
        return list(buckets.values())

    def following(self, first: int, messages: int) -> list[int]:
        """Return the next bucket and its probable successors, with about this number of messages in total.

        ``first`` is the result of :meth:`wanted` or :meth:`next`, without a change since.
        """
        best = self[first].best
        numbers = [first]
        messages -= self[first].messages
        if best is None or self._ready[0] != (*best, first):
            return numbers  # it is the next bucket because of a delayed message
        while messages > 0 and len(numbers) < _TOGETHER:
            summary = self.get(numbers[-1] + 1)
            if summary is None or summary.best is None or summary.best[0] != best[0]:
                break
            numbers.append(numbers[-1] + 1)
            messages -= summary.messages
        return numbers

    def next(self) -> int | None:
        """Return the bucket that may have the best visible message."""
        best = self.best(0)
        return None if best is None else best[2]

    def _is_ready(self, priority: int, id: int, number: int) -> bool:
        """Return True if a pair of the heap is valid."""
        summary = self.get(number)
        return summary is not None and (priority, id) in (summary.best, summary.best_delayed)

    @property
    def next_visible_at(self) -> int | None:
        """The time at which the next message may become visible."""
        delayed = self._delayed
        while delayed:
            if self._is_delayed(*delayed[0]):
                return delayed[0][0]
            heappop(delayed)
        return None

    def _is_delayed(self, visible_at: int, number: int) -> bool:
        """Return True if a pair of the heap is valid."""
        summary = self.get(number)
        return summary is not None and visible_at in (summary.next_visible_at, summary.last_visible_at)

    def oldest(self) -> int | None:
        """Return the bucket with the lowest id: ids do not ascend with the buckets of different partitions."""
        if self._oldest is None:
            self._oldest = sorted((summary.lowest_id, number) for number, summary in self.items())
        oldest = self._oldest
        while oldest:
            lowest_id, number = oldest[0]
            if (summary := self.get(number)) is not None and summary.lowest_id == lowest_id:
                return number
            heappop(oldest)
        return None

    def due(self, now: int) -> int | None:
        """Return a bucket in which a message has expired."""
        deadline, number = self.next_deadline()
        return number if 0 < deadline <= now else None

    def next_deadline(self) -> tuple[int, int]:
        """Return the time at which the next message expires (0: none does), and its bucket."""
        deadlines = self._deadlines
        while deadlines:
            deadline, number = deadlines[0]
            summary = self.get(number)
            if summary is not None and summary.next_deadline == deadline:
                return deadline, number
            heappop(deadlines)
        return 0, 0
