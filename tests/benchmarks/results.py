"""The samples of a run and what follows from them: medians, ratios, verdicts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from .targets import OURS, Row, Target


@dataclass(frozen=True)
class Ratio:
    """Median over median, and the spread of the ratios taken round by round."""

    value: float
    low: float
    high: float


@dataclass
class Results:
    """Samples by (row key, series), in the order of the rounds, and what went wrong."""

    samples: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    points: dict[tuple[str, str], dict[int, list[float]]] = field(default_factory=lambda: defaultdict(dict))
    """Our samples along a curve, by (its key, the quantity's key), for each size."""

    def add_point(self, curve: str, quantity: str, size: int, value: float) -> None:
        self.points[curve, quantity].setdefault(size, []).append(value)

    def add(self, key: str, series: str, value: float) -> None:
        self.samples[key, series].append(value)

    def of(self, key: str, series: str) -> list[float]:
        return self.samples.get((key, series), [])

    def median(self, key: str, series: str) -> float | None:
        values = self.of(key, series)
        return median(values) if values else None

    def ratio(self, key: str, against: str) -> Ratio | None:
        """Ours over `against`; None when either was not measured."""
        ours, theirs = self.of(key, OURS), self.of(key, against)
        if not ours or not theirs:
            return None
        pairs = [a / b for a, b in zip(ours, theirs, strict=False)]
        return Ratio(median(ours) / median(theirs), min(pairs), max(pairs))

    def verdict(self, row: Row, target: Target) -> bool | None:
        """Judge a target; None when it could not be measured."""
        if target.against:
            ratio = self.ratio(row.key, target.against)
            return None if ratio is None else target.is_met(ratio.value)
        value = self.median(row.key, OURS)
        return None if value is None else target.is_met(value)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed (the nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("there is no percentile of no values")
    # Rounded first: 99.9 % of 1,000 is 999, though not in floating point.
    rank = math.ceil(round(len(values) * percent / 100, 6))
    return sorted(values)[max(rank, 1) - 1]
