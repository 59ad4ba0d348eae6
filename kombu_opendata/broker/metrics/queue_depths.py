"""Numbers of ready, in-flight and delayed messages of a queue, and a histogram of delayed messages by due time.

Neither scans ready messages. For messages that are not in memory, both are estimates. A cold bucket of a queue has up
to 256 messages. Its summary has the number of delayed messages, and their first and last due times; the estimate
distributes the messages evenly between these times. Ten million delayed messages are then forty thousand additions.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from ...storage.clock import TimeSlice
from ...storage.commit.measurements import Standing
from ...storage.state.queue_state import QueueState

#: messages or summaries between two checks of the time
_PIECE = 250


async def standing_of(messages: QueueState, now: int, pace: TimeSlice) -> Standing:
    """Return the numbers of ready and delayed messages and the ages of ready messages, by a scan of all messages."""
    standing = Standing()
    if len(messages):
        for _ in standing.look(messages, now):
            await pace.rest()
    return standing


async def levels(messages: QueueState, now: int, pace: TimeSlice) -> tuple[int, int, int]:
    """Return the numbers of ready, in-flight and delayed messages of a queue.

    The number of delayed messages is an estimate if some in a cold bucket became visible since the bucket left memory.
    """
    delayed = messages.delayed(now)
    cold = messages.cold
    if cold.next_visible_at is not None:
        for number, summary in enumerate(list(cold.values())):
            delayed += summary.delayed_at(now)
            if number % _PIECE == 0 and pace.is_over:
                await pace.rest()
    backlog = len(messages)
    delayed = min(delayed, backlog)
    return backlog - delayed, len(messages.in_flight), delayed


class DueTimes:
    """Counts of messages in buckets of time."""

    def __init__(self, start_ms: int, bucket_ms: int, number: int) -> None:
        self.start_ms = start_ms  # start of the first bucket
        self.bucket_ms = bucket_ms  # length of each bucket
        self.number = number  # number of buckets
        self.is_estimate = False  # True if some messages were distributed evenly
        self._counts = [0.0] * (number + 1)  # the last one: due later
        self._even = [0.0] * (number + 2)  # differences between buckets, of messages spread over whole buckets

    async def add(self, messages: QueueState, now_ms: int, pace: TimeSlice) -> None:
        """Add the delayed messages of a queue."""
        messages.promote(now_ms)
        for number, due_at_ms in enumerate(messages.delayed_until()):
            self._counts[self._bucket_of(due_at_ms)] += 1
            if number % _PIECE == 0 and pace.is_over:
                await pace.rest()
        if messages.cold.next_visible_at is None:
            return
        for number, summary in enumerate(list(messages.cold.values())):
            count = summary.delayed_at(now_ms)
            if count:
                self.spread(max(summary.next_visible_at or 0, now_ms + 1), summary.last_visible_at, count)
            if number % _PIECE == 0 and pace.is_over:
                await pace.rest()

    def spread(self, first_at_ms: int, last_at_ms: int, count: int) -> None:
        """Add messages whose due times are distributed evenly between two times, which are included."""
        last_at_ms = max(first_at_ms, last_at_ms)
        first, last = self._bucket_of(first_at_ms), self._bucket_of(last_at_ms)
        if first == last:
            self._counts[first] += count
            return
        self.is_estimate = True
        per_ms = count / (last_at_ms - first_at_ms + 1)
        self._counts[first] += per_ms * (self._start_of(first + 1) - first_at_ms)
        self._counts[last] += per_ms * (last_at_ms + 1 - self._start_of(last))
        self._even[first + 1] += per_ms * self.bucket_ms
        self._even[last] -= per_ms * self.bucket_ms

    def counts(self) -> tuple[list[int], int]:
        """Return the numbers of messages in each bucket and of later messages, as integers with the same sum."""
        totals = [count + even for count, even in zip(self._counts, accumulate(self._even), strict=False)]
        sums = [0, *map(round, accumulate(totals))]
        rounded = [after - before for before, after in pairwise(sums)]
        return rounded[:-1], rounded[-1]

    def _bucket_of(self, at_ms: int) -> int:
        return min(max(at_ms - self.start_ms, 0) // self.bucket_ms, self.number)

    def _start_of(self, number: int) -> int:
        return self.start_ms + number * self.bucket_ms
