"""The system's clock, which never goes back."""

from __future__ import annotations

import pytest

from kombu_opendata.storage.clock import SystemClock

pytestmark = pytest.mark.contract(14)


def test_time_goes_on_if_the_system_clock_is_set_back() -> None:
    wall, monotonic = 1_800_000_000_000, 5_000
    clock = SystemClock(lambda: wall * 1_000_000, lambda: monotonic * 1_000_000)
    assert clock.now_ms() == wall
    wall, monotonic = wall - 3_600_000, monotonic + 20
    assert clock.now_ms() == 1_800_000_000_020
    wall, monotonic = 1_900_000_000_000, monotonic + 1
    assert clock.now_ms() == 1_900_000_000_000
    clock.not_before(1_950_000_000_000)
    monotonic += 7
    assert clock.now_ms() == 1_950_000_000_007


def test_no_time_is_shown_before_it_is_reached() -> None:
    """The milliseconds of the two clocks begin at different times, and time goes on between two reads."""
    wall, monotonic = 1_800_000_000_000_200_000, 5_700_000

    def read_monotonic() -> int:
        nonlocal wall, monotonic
        wall, monotonic = wall + 100_000, monotonic + 100_000
        return monotonic - 100_000

    def read_wall() -> int:
        nonlocal wall, monotonic
        wall, monotonic = wall + 100_000, monotonic + 100_000
        return wall - 100_000

    clock = SystemClock(read_wall, read_monotonic)
    for _ in range(1000):
        assert clock.now_ms() * 1_000_000 <= wall
