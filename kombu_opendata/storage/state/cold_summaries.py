"""The cold buckets of a queue: a summary of each, and the choice of the next to load."""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush

from .queue_buckets import QueueEntry, Summary

_NEVER = 1 << 63
#: a pair that is after every (priority, id)
_LAST = (1 << 16, 0)
#: most buckets that are loaded together, so that none of them is soon evicted again
_TOGETHER = 12


class ColdSummaries(dict[int, Summary]):
    """The summaries by bucket. Changed by :meth:`note` and :meth:`take` only.

    The heaps may contain pairs of buckets that were loaded since. A bucket whose delayed messages become due is loaded
    when its turn comes: until then its place in ``_ready`` is that of its best message, visible or not.

    Attributes:
        messages: the number of messages in all cold buckets.
        first: no cold bucket is before this one.
        sizes: the sizes of each bucket's messages, in the order of its rows, if the queue counts bytes.
    """

    __slots__ = ("_deadlines", "_delayed", "_next", "_ready", "_unwanted_until", "first", "messages", "sizes")

    def __init__(self) -> None:
        super().__init__()
        self.messages = 0
        self.first = 0
        self.sizes: dict[int, array[int]] = {}
        self._ready: list[tuple[int, int, int]] = []
        self._delayed: list[tuple[int, int]] = []
        self._deadlines: list[tuple[int, int]] = []
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
            heappush(self._ready, (*summary.best, number))
        if summary.next_visible_at is not None:
            heappush(self._delayed, (summary.next_visible_at, number))
        if summary.next_deadline:
            if len(self._deadlines) > 2 * len(self) + 64:  # most are of buckets that were loaded since
                self._deadlines = [(s.next_deadline, n) for n, s in self.items() if s.next_deadline]
                heapify(self._deadlines)
            else:
                heappush(self._deadlines, (summary.next_deadline, number))

    def take(self, number: int) -> array[int] | None:
        """Remove a bucket that is loaded, if it was cold; return the sizes of its messages, if they are known."""
        summary = self.pop(number, None)
        if summary is not None:
            self.messages -= summary.messages
            self._unwanted_until = 0
            if not self:
                for heap in (self._ready, self._delayed, self._deadlines):
                    heap.clear()
        return self.sizes.pop(number, None)

    def wanted(self, now: int, best: QueueEntry | None) -> int | None:
        """Return the bucket that must be loaded before ``best`` (or any message, if None) may be claimed."""
        if best is not None and now < self._unwanted_until and (best.priority, best.id) < self._next:
            return None
        while (due := self.next_visible_at) is not None and due <= now:
            _at, number = heappop(self._delayed)
            summary = self[number]
            if summary.best_delayed is not None:
                heappush(self._ready, (*summary.best_delayed, number))
            if summary.last_visible_at > now:  # the counts of the queue change until then
                heappush(self._delayed, (summary.last_visible_at, number))
        is_any = self.next() is not None
        self._unwanted_until = _NEVER if due is None else due
        self._next = self._ready[0][:2] if is_any else _LAST
        if is_any and (best is None or self._next < (best.priority, best.id)):
            return self._ready[0][2]
        return None

    def following(self, first: int, messages: int) -> list[int]:
        """Return the next bucket and its probable successors, with about this number of messages in total.

        Ids ascend with the buckets, so these are the next buckets as long as their best messages have the same
        priority.
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
        ready = self._ready
        while ready:
            priority, id, number = ready[0]
            summary = self.get(number)
            if summary is not None and (priority, id) in (summary.best, summary.best_delayed):
                return number
            heappop(ready)
        return None

    @property
    def next_visible_at(self) -> int | None:
        """The time at which the next message may become visible."""
        delayed = self._delayed
        while delayed:
            visible_at, number = delayed[0]
            summary = self.get(number)
            if summary is not None and visible_at in (summary.next_visible_at, summary.last_visible_at):
                return visible_at
            heappop(delayed)
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
