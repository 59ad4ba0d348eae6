"""What follows from looking at a disk over and over while it is written to."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .clients import Timing

_MINUTE = 60.0


class Sample(NamedTuple):
    """Seconds of the clock that all processes share, bytes on the disk, and bytes of the tables in use."""

    at: float
    disk: int
    live: int


def times_live(samples: Sequence[Sample]) -> list[float]:
    """What was on the disk but for the last minute's writes, in multiples of what was in use."""
    found: list[float] = []
    recent: deque[Sample] = deque()
    for one in samples:
        recent.append(one)
        while one.at - recent[0].at > _MINUTE:
            recent.popleft()
        if one.at - samples[0].at > _MINUTE and one.live:
            found.append((one.disk - max(0, one.live - recent[0].live)) / one.live)
    return found


def worst_times(samples: Sequence[Sample], load: Timing, records: int) -> float | None:
    """The most that was on the disk after the first minute, in multiples of the live records of that moment.

    These grow evenly with the load; `records` is what they take at its end, in bytes. None if it took under a minute.
    """
    found = [
        one.disk * (load.end - load.start) / (records * (one.at - load.start))
        for one in samples
        if load.start + _MINUTE < one.at <= load.end
    ]
    return max(found, default=None)


def bytes_in(folder: Path) -> int:
    """The sizes of all files."""
    total = 0
    for place, _folders, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:  # deleted since it was listed
                continue
    return total
