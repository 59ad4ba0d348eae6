"""Shares of partitions that are read one message at a time, and by groups of several."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.storage.state.test_partitions import Fair, grouped

pytestmark = pytest.mark.contract(6)

_LARGEST = 10


@example(weights=(1, 1, 1), by_groups={"a"}, reads=[_LARGEST] * 9)
@given(
    weights=st.tuples(*[st.integers(1, 4)] * 3),
    by_groups=st.sets(st.sampled_from("abc")),
    reads=st.lists(st.integers(1, _LARGEST), min_size=1, max_size=30),
)
def test_no_partition_is_ahead_by_more_than_one_read(
    weights: tuple[int, int, int], by_groups: set[str], reads: list[int]
) -> None:
    """All partitions always have messages; some of them are read by groups when they are next."""
    queue = Fair(dict(zip("abc", weights, strict=True)))
    queue.put("abc" * (_LARGEST * len(reads)))
    taken = Counter[str]()
    for count in reads:
        (first,) = queue.partitions.in_turn(1)
        taken.update(grouped(queue, count) if first.key in by_groups else queue.get(1))
        shares = [taken[tenant] / weight for tenant, weight in zip("abc", weights, strict=True)]
        assert max(shares) - min(shares) <= _LARGEST + 1
