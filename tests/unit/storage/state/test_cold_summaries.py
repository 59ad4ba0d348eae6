"""Summaries of buckets that are in the store only: which one is next, and what is delayed or expires."""

from __future__ import annotations

from typing import Any

import pytest

from kombu_opendata.storage.state.cold_summaries import PARTITION_BITS, ColdSummaries, Summary

NOW = 1000


def rows(*messages: tuple[int, int, int, int]) -> list[tuple[int, int, int, int, int]]:
    """Rows of (id, priority, visible at, deadline)."""
    return [(*message, 0) for message in messages]


def test_the_summary_of_visible_and_delayed_messages() -> None:
    summary = Summary.of(rows((7, 5, 0, 0), (3, 5, 0, 900), (9, 2, 1500, 0), (8, 1, 3000, 800), (4, 6, 0, 0)), NOW)
    assert summary == Summary((5, 3), 1500, 5, 800, 2, 0, 3000, 3, 9, (1, 8))
    assert Summary.of(rows((7, 5, 0, 0), (3, 5, 0, 0)), NOW) == Summary((5, 3), None, 2, None, 0, 0, 0, 3, 7, None)
    assert Summary.of(rows((7, 4, 0, 0), (3, 5, 0, 0)), NOW).best == (4, 7)
    assert Summary.of(rows((7, 4, NOW, 0)), NOW).best == (4, 7), "visible now"
    summary = Summary.of(rows((7, 4, NOW, 0), (9, 6, 1500, 0)), NOW)
    assert (summary.best, summary.best_delayed) == ((4, 7), (6, 9))
    assert Summary.of([], NOW) == Summary(None, None, 0, None)


def test_the_best_message_at_a_time() -> None:
    summary = Summary.of(rows((7, 5, 0, 0), (9, 2, 1500, 0)), NOW)
    assert [summary.best_at(now) for now in (1499, 1500)] == [(5, 7), (2, 9)]
    assert Summary.of(rows((7, 5, 0, 0), (9, 6, 1500, 0)), NOW).best_at(1500) == (5, 7)
    delayed = Summary.of(rows((9, 6, 1500, 0)), NOW)
    assert [delayed.best_at(now) for now in (1499, 1500)] == [None, (6, 9)]
    assert Summary((5, 7), 1500, 1, None).best_at(2000) == (5, 7)
    assert Summary((5, 7), None, 1, None, best_delayed=(1, 1)).best_at(2000) == (5, 7)


def test_an_estimate_of_the_delayed_messages() -> None:
    summary = Summary.of(rows(*((id, 0, 2000 + 100 * id, 0) for id in range(11))), NOW)
    assert [summary.delayed_at(now) for now in (NOW, 1999, 2000, 2500, 2999, 3000)] == [11, 11, 10, 5, 1, 0]
    assert Summary.of(rows((1, 0, 0, 0)), NOW).delayed_at(0) == 0


def test_which_ids_may_be_in_a_bucket() -> None:
    summary = Summary.of(rows((10, 0, 0, 0), (20, 0, 0, 0)), NOW)
    ranges = {range(10): False, range(11): True, range(20, 30): True, range(21, 30): False, range(12, 13): True}
    assert {ids: summary.overlaps(ids) for ids in ranges} == ranges
    lists = {(9,): False, (10,): True, (1, 20): True, (1, 21): False, (): False, (1, 15, 99): True}
    assert {ids: summary.spans(ids) for ids in lists} == lists


def test_a_bucket_in_which_a_message_has_expired() -> None:
    cold = ColdSummaries()
    assert (cold.next_deadline(), cold.due(NOW)) == ((0, 0), None)
    for number, deadline in ((1, 3000), (2, 2000), (3, 0)):
        cold.note(number, Summary.of(rows((number, 0, 0, deadline)), NOW))
    assert (cold.next_deadline(), cold.due(1999), cold.due(2000)) == ((2000, 2), None, 2)
    cold.take(2)
    assert (cold.next_deadline(), cold.due(2999), cold.due(3000)) == ((3000, 1), None, 1)
    cold.take(1)
    assert cold.next_deadline() == (0, 0)


@pytest.mark.parametrize("partition", [0, 1, 5])
def test_the_buckets_of_a_partition_in_their_order(partition: int) -> None:
    cold, start = ColdSummaries(), partition << PARTITION_BITS
    assert (cold.best(partition), cold.all_of(partition)) == (None, [])
    cold.note(start + 1, Summary.of(rows((5, 7, 0, 0)), NOW))
    assert cold.all_of(partition) == [(7, 5, start + 1)]
    cold.note(start + 2, Summary.of(rows((9, 3, 0, 0), (11, 1, 5000, 0)), NOW))
    cold.note(7 << PARTITION_BITS, Summary.of(rows((1, 0, 0, 0)), NOW))
    assert (cold.best(partition), cold.messages) == ((3, 9, start + 2), 4)
    assert cold.all_of(partition) == [(3, 9, start + 2), (7, 5, start + 1)]
    assert cold.promote(4999) == []
    assert cold.promote(5000) == [start + 2]
    assert cold.all_of(partition) == [(1, 11, start + 2), (7, 5, start + 1)]
    cold.take(start + 2)
    assert (cold.best(partition), cold.all_of(partition)) == ((7, 5, start + 1), [(7, 5, start + 1)])
    cold.take(start + 1)
    assert (cold.best(partition), cold.all_of(partition), cold.messages) == (None, [], 1)


class CountedSummaries(ColdSummaries):
    """Summaries that count how often one of them is looked up."""

    __slots__ = ("lookups",)

    def __init__(self) -> None:
        super().__init__()
        self.lookups = 0

    def get(self, *arguments: Any) -> Any:
        self.lookups += 1
        return super().get(*arguments)


@pytest.mark.parametrize(("partition", "lookups"), [(0, 0), (1, 128 + 256 + 512)])
def test_valid_pairs_are_seldom_checked(partition: int, lookups: int) -> None:
    cold = CountedSummaries()
    for number in range(1000):
        cold.note((partition << PARTITION_BITS) + number, Summary.of(rows((number, 0, 0, 0)), NOW))
    assert cold.lookups == lookups
    assert len(cold.all_of(partition)) == 1000
