"""Metrics of an instance's queues over the last ten minutes, in memory: for charts, and for rates of a minute.

:class:`ClientRates` has the rates of each client over the last minute.

Every five seconds the broker takes a *sample* of each queue: four counters and three levels, a row of 28 bytes.
Counters are kept modulo 2^32, since only their differences are used. Samples have numbers; all queues share the numbers
and the times. A sample is taken in slices of a millisecond: each row is of one moment, but the rows of one sample may
be some milliseconds apart. No sample begins while one is being taken or while the process is suspended, so rates use
the times of the samples. If a sample fails, its number is used again.

Lists of numbers for each queue would take 36 bytes a value in place of 4, up to 300 MB for 10,000 queues. And most
queues are idle, so a queue has as many rows as its activity needs:

=============  =====  ===========================================  ====================================================
rows           bytes  for a queue                                  until
=============  =====  ===========================================  ====================================================
``RESTING``    250    that has not changed for ten minutes, or     a sample differs from the one before it
                      has never changed: its last value
``SHORT``      600    that changes while :data:`MAX_LONG` others   it has not changed for ten minutes; fewer queues are
                      are ``LONG``: the last minute                ``LONG``; or it is twice as busy as the least busy of
                                                                   these
``LONG``       3500   that changes: all points of a chart          it has not changed for ten minutes, or a ``SHORT``
                                                                   queue is twice as busy
=============  =====  ===========================================  ====================================================

So 10,000 busy queues take less than 10 MB. Each sample exchanges at most one ``SHORT`` queue with a ``LONG`` queue. The
factor of two prevents repeated exchanges of two equally busy queues, which would delete the samples of both.

Invariants:

* The one row of a resting queue is its value in every sample since ``known_from``.
* A ring of n rows has the last n - 1 complete samples, and the row of the sample in progress. ``_number`` is the last
  complete one, so readers may read during a sample.
* Sample 0 has the values at startup, so what was counted before is no growth. It is not shown.
* A sample before ``known_from`` was deleted with its row; it is unknown, and a gap in a chart. The samples of the last
  minute are always known. Before its declaration, a queue has zeros.
* The counters of the total of all queues are sums of differences, so they do not fall when a queue is deleted. Its past
  is deleted with it: a queue that is declared again begins at zero.

All samples are lost when the broker ends.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from ...storage.clock import Clock, TimeSlice
from ..delivery.queue_registry import Queues
from ..model.queue import BrokerQueue
from ..model.sessions import Session
from .queue_depths import levels

#: the values of a row: counters, whose differences are rates, and levels
COUNTERS = ("published", "delivered", "acked", "failed")
LEVELS = ("ready", "in_flight", "delayed")
WIDTH = len(COUNTERS) + len(LEVELS)
#: points of a chart
POINTS = 120
#: samples in a minute
MINUTE_SAMPLES = 12
#: numbers of rows of a queue. A rate also needs the sample before it, and one row is for the sample in progress.
RESTING, SHORT, LONG = 1, MINUTE_SAMPLES + 2, POINTS + 2
#: the largest value in a row
LARGEST = 0xFFFF_FFFF

Row: TypeAlias = "array[int]"
#: the row of a queue that does not exist yet
NOTHING = array("I", [0] * WIDTH)
#: the interval of the samples
SAMPLE_MS = 5_000
#: maximum number of queues that have all points
MAX_LONG = 1000
#: factor by which another queue must be busier to replace a queue that has all points
_BUSIER = 2
_RATES = tuple(f"{name}_per_second" for name in COUNTERS)

#: the values of a chart's lines by name, None where they are not known
Series = dict[str, list[float | None]]
#: samples of clients: those of a minute, and the one before
_CLIENT_SAMPLES = 13
_MINUTE_MS = 60_000


class QueuePast:
    """Samples of one queue, numbered since startup."""

    __slots__ = ("_rows", "changed_in", "delays", "known_from", "slots")

    def __init__(self, row: Row = NOTHING, *, slots: int = RESTING) -> None:
        """Create the samples; ``row`` is the value of all earlier samples."""
        self._rows = row * slots
        self.slots = slots  # the number of its rows
        self.known_from = 0  # number of its first sample
        self.changed_in = 0  # number of the last sample that differed from the one before it
        self.delays = -1  # value of ``messages.delays`` at the last sample; -1 if no sample has counted the levels

    def knows(self, number: int, last: int) -> bool:
        """Return True if a sample is available; ``last`` is the number of the last complete sample."""
        return number >= self.known_from and (self.slots == RESTING or number > last - self.slots + 1)

    def row(self, number: int) -> Row:
        """Return the sample of this number."""
        at = number % self.slots * WIDTH
        return self._rows[at : at + WIDTH]

    def put(self, number: int, row: Row) -> None:
        """Add a sample, the one after the last."""
        at = number % self.slots * WIDTH
        self._rows[at : at + WIDTH] = row

    def resize(self, last: int, slots: int) -> None:
        """Change the number of rows; ``last`` is the number of the last sample."""
        if self.slots == RESTING:
            self._rows *= slots
        else:
            size = self.slots if slots == RESTING else min(self.slots, slots)
            self.known_from = max(self.known_from, last - size + 1)
            rows = self.row(last) * slots
            for number in range(self.known_from, last + 1):
                at = number % slots * WIDTH
                rows[at : at + WIDTH] = self.row(number)
            self._rows = rows
        self.slots = slots

    def activity(self, last: int) -> int:
        """Return the sum of the counters' growth in the last minute."""
        first = max(last - MINUTE_SAMPLES, 0)
        return sum(counted(self.row(first), self.row(last)))


def counted(before: Row, after: Row) -> list[int]:
    """Return the growth of each counter."""
    return [(after[at] - before[at]) & LARGEST for at in range(len(COUNTERS))]


class MetricsMemory:
    """Recent metrics of one instance's queues, and of all of them together."""

    def __init__(self, queues: Queues, clock: Clock, *, max_long: int = MAX_LONG) -> None:
        self._queues, self._clock, self._max_long = queues, clock, max_long
        self._number = 0  # of the last sample
        self._times = deque([clock.now_ms()], maxlen=LONG)
        states = ((queue, queue.messages) for queue in queues.values())
        self._pasts = {
            queue: QueuePast(array("I", [*_counters(queue), len(messages), len(messages.in_flight), 0]))
            for queue, messages in states
        }
        self._total = QueuePast(slots=LONG)
        self._long = 0
        self._sampling: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ sampling
    def tick(self) -> None:
        """Take a sample, if one is due."""
        now = self._clock.now_ms()
        if now - self._times[-1] >= SAMPLE_MS and (self._sampling is None or self._sampling.done()):
            self._sampling = asyncio.get_running_loop().create_task(self.sample(now))

    async def sample(self, now: int) -> None:
        """Take a sample of all queues."""
        number, pace, places = self._number + 1, TimeSlice(), _Places()
        pasts: dict[BrokerQueue, QueuePast] = {}
        total = list(self._total.row(number - 1))
        total[len(COUNTERS) :] = [0] * len(LEVELS)
        async for queue in pace.over(list(self._queues.values())):
            past = pasts[queue] = self._pasts.get(queue) or QueuePast()
            before = past.row(number - 1)
            row = await _row(queue, past, before, now, pace)
            self._add(past, number, before, row, places)
            if row != before:
                for at, growth in enumerate(counted(before, row)):
                    total[at] = (total[at] + growth) & LARGEST
            for at in range(len(COUNTERS), WIDTH):
                total[at] += row[at]
        self._total.put(number, array("I", [min(value, LARGEST) for value in total]))
        places.exchange(number)
        self._long = places.long
        self._pasts, self._number = pasts, number
        self._times.append(now)

    def _add(self, past: QueuePast, number: int, before: Row, row: Row, places: _Places) -> None:
        """Add a sample, and change the number of rows to the queue's activity."""
        if row != before:
            past.changed_in = number
        is_busy = number - past.changed_in < LONG
        if not is_busy and past.slots != RESTING:
            past.resize(number - 1, RESTING)
        elif is_busy and past.changed_in and past.slots != LONG:
            has_room = self._long < self._max_long
            slots = LONG if has_room else SHORT
            self._long += has_room
            if past.slots != slots:
                past.resize(number - 1, slots)
        past.put(number, row)
        places.see(past, number)

    # ------------------------------------------------------------------ reading
    def recent_in(self, queue: BrokerQueue) -> int:
        """Return the number of the last sample if the rates of the last minute may have changed with it, else 0."""
        past = self._pasts.get(queue)
        is_recent = past is not None and past.changed_in and self._number - past.changed_in <= MINUTE_SAMPLES
        return self._number if is_recent else 0

    def rates(self, queue: BrokerQueue) -> dict[str, float]:
        """Return messages per second over the last minute, or over a shorter time if there are fewer samples."""
        now, last, past = self._clock.now_ms(), self._number, self._pasts.get(queue)
        counters = _counters(queue)
        if past is not None and past.slots == RESTING and past.row(last)[: len(COUNTERS)].tolist() == counters:
            return dict.fromkeys(_RATES, 0.0)
        first = max(last - MINUTE_SAMPLES, 0)
        # samples may be missing: begin with the oldest one of this minute
        while first < last and now - self._time(first) > SAMPLE_MS * (MINUTE_SAMPLES + 1):
            first += 1
        before = NOTHING if past is None else past.row(first)
        grown = counted(before, array("I", counters))
        seconds = max(now - self._time(first), 1000) / 1000
        return {name: round(count / seconds, 3) for name, count in zip(_RATES, grown, strict=True)}

    def points(self, since_ms: int) -> tuple[range, list[int]]:
        """Return the numbers and the times of the samples after a time."""
        numbers = range(max(self._number - POINTS, 0) + 1, self._number + 1)
        while numbers and self._time(numbers[0]) <= since_ms:
            numbers = numbers[1:]
        return numbers, [self._time(number) for number in numbers]

    def of(self, queue: BrokerQueue, numbers: range) -> Series:
        """Return a queue's metrics at these samples."""
        return self._series(self._pasts.get(queue), numbers)

    def total(self, numbers: range) -> Series:
        """Return the sums of all queues at these samples."""
        return self._series(self._total, numbers)

    def _series(self, past: QueuePast | None, numbers: range) -> Series:
        lines: list[list[float | None]] = [[] for _ in range(WIDTH)]
        for number in numbers:
            for line, value in zip(lines, self._point(past, number), strict=True):
                line.append(value)
        return dict(zip((*_RATES, *LEVELS), lines, strict=True))

    def _point(self, past: QueuePast | None, number: int) -> Iterator[float | None]:
        if past is None or not past.knows(number, self._number):
            yield from [None] * WIDTH
            return
        row = past.row(number)
        if not past.knows(number - 1, self._number):
            yield from [None] * len(COUNTERS)
        else:
            seconds = max(self._time(number) - self._time(number - 1), 1) / 1000
            for count in counted(past.row(number - 1), row):
                yield round(count / seconds, 3)
        yield from row[len(COUNTERS) :]

    def _time(self, number: int) -> int:
        return self._times[number - self._number - 1]


class _Places:
    """Choice of the ``LONG`` queues: the busiest ``SHORT`` queue may replace the least busy ``LONG`` queue.

    Attributes:
        long: the number of queues that have all points.
    """

    __slots__ = ("_busiest", "_idlest", "_least", "_most", "long")

    def __init__(self) -> None:
        self.long = 0
        self._idlest: QueuePast | None = None
        self._busiest: QueuePast | None = None
        self._least = self._most = 0

    def see(self, past: QueuePast, number: int) -> None:
        """Record a queue whose sample has been taken."""
        if past.slots == RESTING:
            return
        self.long += past.slots == LONG
        activity = past.activity(number)
        if past.slots == LONG and (self._idlest is None or activity < self._least):
            self._idlest, self._least = past, activity
        elif past.slots == SHORT and (self._busiest is None or activity > self._most):
            self._busiest, self._most = past, activity

    def exchange(self, number: int) -> None:
        """Exchange the memory of two queues if their activity differs enough."""
        if self._busiest is not None and self._idlest is not None and self._most > _BUSIER * self._least:
            self._idlest.resize(number, SHORT)
            self._busiest.resize(number, LONG)


def _counters(queue: BrokerQueue) -> list[int]:
    counts = queue.counts
    failed = counts.rejected + counts.exhausted + queue.tasks_failed
    return [value & LARGEST for value in (counts.published, counts.delivered, counts.acked, failed)]


async def _row(queue: BrokerQueue, past: QueuePast, before: Row, now: int, pace: TimeSlice) -> Row:
    """Return the sample of a queue. Counts the depths only if they can have changed."""
    messages, counters = queue.messages, _counters(queue)
    due = messages.next_visible_at()
    if past.delays == messages.delays and (due is None or due > now):
        ready, in_flight, delayed = before[len(COUNTERS) :]
        has_same_levels = (ready + delayed, in_flight) == (len(messages), len(messages.in_flight))
        if has_same_levels and before[: len(COUNTERS)].tolist() == counters:
            return before
    past.delays = messages.delays
    return array("I", [*counters, *(min(level, LARGEST) for level in await levels(messages, now, pace))])


class ClientRates:
    """Rates of one instance's clients.

    A sample has the totals of the sessions that ended a task or message. A session that began later counts from zero.
    """

    def __init__(self, sessions: Mapping[bytes, Session], clock: Clock) -> None:
        self._sessions, self._clock = sessions, clock
        #: time, and by session the numbers of messages and tasks that were done and that failed, without zeros
        self._samples: deque[tuple[int, dict[bytes, tuple[int, int]]]] = deque(
            [(clock.now_ms(), {})], maxlen=_CLIENT_SAMPLES
        )

    def tick(self) -> None:
        """Take a sample, if one is due."""
        now = self._clock.now_ms()
        if now - self._samples[-1][0] >= SAMPLE_MS:
            sessions = self._sessions.items()
            busy = {id: (session.done, session.failed) for id, session in sessions if session.done or session.failed}
            self._samples.append((now, busy))

    def of(self, sessions: Iterable[Session]) -> dict[str, float]:
        """Return a client's totals of the last minute, possibly without its first seconds."""
        now = self._clock.now_ms()
        recent = (ended for at_ms, ended in self._samples if now - at_ms <= _MINUTE_MS)
        before = next(recent, self._samples[-1][1])
        done = failed = 0
        for session in sessions:
            old_done, old_failed = before.get(session.id, (0, 0))
            done += max(session.done - old_done, 0)
            failed += max(session.failed - old_failed, 0)
        return {"done_per_minute": float(done), "failed_per_minute": float(failed)}
