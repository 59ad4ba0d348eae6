"""Errors of history queries name the limit that a value is beyond; and the work of comparing many values."""

from __future__ import annotations

import pytest

from kombu_opendata.errors import InvalidFilter
from kombu_opendata.storage.history import query


@pytest.mark.parametrize("id", [-1, 1 << 63])
def test_a_message_id_out_of_range(id: int) -> None:
    with pytest.raises(InvalidFilter, match="from 0 to 2⁶³ - 1"):
        query.check_filters(ids=[id])


@pytest.mark.parametrize(("gte", "lt"), [(5, 5), (-1, 10), (0, 1 << 62)])
def test_a_range_of_time_that_is_empty_or_beyond_the_limits(gte: int, lt: int) -> None:
    with pytest.raises(InvalidFilter, match="gte must be from 0 up, lt above it and below 2⁶²"):
        query.check_buckets(gte, lt, 1)


class Counting(str):
    """A text that counts how often it is compared."""

    __slots__ = ("compared",)

    def __init__(self, _text: str) -> None:
        self.compared = 0

    def __eq__(self, other: object) -> bool:
        self.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_a_message_is_not_compared_with_each_value_of_a_filter() -> None:
    matches = query.check_filters(headers={"task": [f"task{number}" for number in range(1000)]}).header_test()
    for text, expected in (("task999", True), ("other", False)):
        counting = Counting(text)
        assert matches({"task": counting}) is expected
        assert counting.compared < 20
