"""The samples of one queue: a row for each sample of a busy queue, and one row for all samples of an idle one.

A row is four counters and three levels, in 28 bytes. Counters are kept modulo 2^32: only their differences are used.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

#: the values of a row: counters, whose differences are rates, and levels
COUNTERS = ("published", "delivered", "acked", "failed")
LEVELS = ("ready", "in_flight", "delayed")
WIDTH = len(COUNTERS) + len(LEVELS)
#: points of a chart
POINTS = 120
#: samples in a minute
MINUTE_SAMPLES = 12
#: numbers of rows: of an idle queue, for the rates of the last minute, for all points. A rate needs the sample before,
#: too, and one row is for the sample that is being taken.
RESTING, SHORT, LONG = 1, MINUTE_SAMPLES + 2, POINTS + 2
#: the largest value in a row
LARGEST = 0xFFFF_FFFF

Row: TypeAlias = "array[int]"
#: the row of a queue that does not exist yet
NOTHING = array("I", [0] * WIDTH)


class QueuePast:
    """The samples of one queue, numbered since startup.

    Attributes:
        slots: the number of its rows.
        known_from: the number of its first sample.
        changed_in: the last sample that differed from the one before it.
        delays: the queue's ``messages.delays`` at the last sample.
    """

    __slots__ = ("_rows", "changed_in", "delays", "known_from", "slots")

    def __init__(self, row: Row = NOTHING, *, slots: int = RESTING) -> None:
        """Create the samples; ``row`` is the value of all earlier samples."""
        self._rows = row * slots
        self.slots = slots
        self.known_from = self.changed_in = self.delays = 0

    def knows(self, number: int, last: int) -> bool:
        """Return whether a sample is available; ``last`` is the last complete one."""
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
        """Keep more or fewer rows; ``last`` is the number of the last sample."""
        if self.slots == RESTING:
            self._rows *= slots
        else:
            size = self.slots if slots == RESTING else min(self.slots, slots)
            self.known_from = max(self.known_from, last - size + 1)
            numbers = range(last, last + 1) if slots == RESTING else range(max(last - size + 1, 0), last + 1)
            rows = self.row(last) * slots
            for number in numbers:
                at = number % slots * WIDTH
                rows[at : at + WIDTH] = self.row(number)
            self._rows = rows
        self.slots = slots

    def activity(self, last: int) -> int:
        """Return the sum of the counters' growth in the last minute."""
        first = max(last - MINUTE_SAMPLES, self.known_from)
        return sum(counted(self.row(first), self.row(last)))


def counted(before: Row, after: Row) -> list[int]:
    """Return the growth of each counter."""
    return [(after[at] - before[at]) & LARGEST for at in range(len(COUNTERS))]
