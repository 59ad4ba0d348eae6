"""The criterion of a flat series."""

from __future__ import annotations

from random import Random

import pytest

from .flatness import Limit, judge

LIMIT = Limit(0.1, 5)
NOISE = Random(31)


def test_a_series_that_fills_up_and_stays_is_flat() -> None:
    series = [min(10.0 * hour, 200) + NOISE.uniform(-5, 5) for hour in range(100)]
    assert judge(series, LIMIT).is_flat


def test_a_saw_and_some_leaps_are_flat() -> None:
    series = [100 + 30 * (hour % 6) / 6 + (500 if hour % 9 == 0 else 0) for hour in range(100)]
    assert judge(series, LIMIT).is_flat


@pytest.mark.parametrize("growth", [0.25, 1.0])
def test_a_leak_is_found_below_the_noise(growth: float) -> None:
    series = [100 + growth * hour + NOISE.uniform(-10, 10) + (200 if hour % 9 == 0 else 0) for hour in range(100)]
    verdict = judge(series, LIMIT)
    assert not verdict.is_flat
    assert verdict.growth == pytest.approx(75 * growth, rel=0.5)


def test_a_series_that_shrinks_is_flat() -> None:
    assert judge([100.0 - hour for hour in range(50)], LIMIT).is_flat


def test_too_few_measurements_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        judge([1.0] * 9, LIMIT)
