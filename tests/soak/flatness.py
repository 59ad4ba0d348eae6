"""The decision whether a series of measurements is flat, by the slope of Theil and Sen.

Measurements jump: a garbage collection, a compaction, another process on the machine. The median of the slopes between
all pairs of points ignores up to 29 % of such points, and so does the median as the level. The first part of a series
is left out, as caches fill up and the first retention times have to pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

WARM_UP = 0.25


class Limit(NamedTuple):
    """How much a series may grow over its length after the warm-up: the larger one of both counts."""

    part: float  # of its level
    least: float  # in its unit


class Verdict(NamedTuple):
    """A series' level and growth after the warm-up, and the allowed growth."""

    level: float
    growth: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.allowed


def judge(series: Sequence[float], limit: Limit) -> Verdict:
    """Judge a series of measurements at equal intervals."""
    steady = series[int(len(series) * WARM_UP) :]
    if len(steady) < 8:
        raise ValueError(f"{len(steady)} measurements after the warm-up are too few")
    slope = median((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(steady), 2))
    level = median(steady)
    return Verdict(level, slope * (len(steady) - 1), max(limit.part * level, limit.least))
