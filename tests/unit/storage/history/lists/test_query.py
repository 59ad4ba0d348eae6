"""Errors of history queries name the limit that a value is beyond."""

from __future__ import annotations

import pytest

from kombu_opendata.errors import InvalidFilter
from kombu_opendata.storage.history.lists import query


@pytest.mark.parametrize("id", [-1, 1 << 63])
def test_a_message_id_out_of_range(id: int) -> None:
    with pytest.raises(InvalidFilter, match="from 0 to 2⁶³ - 1"):
        query.check_filters(ids=[id])


@pytest.mark.parametrize(("gte", "lt"), [(5, 5), (-1, 10), (0, 1 << 62)])
def test_a_range_of_time_that_is_empty_or_beyond_the_limits(gte: int, lt: int) -> None:
    with pytest.raises(InvalidFilter, match="gte must be from 0 up, lt above it and below 2⁶²"):
        query.check_buckets(gte, lt, 1)
