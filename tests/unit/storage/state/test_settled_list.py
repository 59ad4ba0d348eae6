"""The done or failed list of a queue."""

from __future__ import annotations

from functools import partial

import pytest

from kombu_opendata.storage.records import settled
from kombu_opendata.storage.state import settled_list

SettledList = partial(settled_list.SettledList, bucket_entries=3)


def rows(log: settled_list.SettledList) -> dict[int, list[settled.SettledEntry]]:
    """What the next checkpoint writes."""
    return {number: settled.decode(b"", settled.join(packed)) for number, packed in log.dirty.items()}


def test_a_new_list_is_written_empty() -> None:
    log = SettledList()
    assert rows(log) == {0: []}
    assert (log.first, log.tail, log.oldest_at_ms) == (0, 0, None)


def test_a_full_bucket_begins_the_next() -> None:
    log = SettledList()
    for id in range(7):
        log.append(id, 100 + id, 1)
    assert {number: [row[0] for row in entries] for number, entries in rows(log).items()} == {
        0: [0, 1, 2],
        1: [3, 4, 5],
        2: [6],
    }
    assert (log.first, log.tail, log.oldest_at_ms) == (0, 2, 100)
    assert log.unsaved_ids() == list(range(7))


def test_only_the_tail_is_rewritten() -> None:
    log = SettledList()
    for id in range(4):
        log.append(id, id, 1)
    log.dirty.clear()
    log.append(4, 4, 2)
    assert rows(log) == {1: [(3, 3, 1), (4, 4, 2)]}


@pytest.mark.parametrize(("first", "oldest"), [(2, 50), (1, None)])
def test_restore_knows_the_oldest_only_if_it_has_the_whole_list(first: int, oldest: int | None) -> None:
    log = SettledList()
    log.restore(first, 2, [settled.SettledEntry(8, 50, 1), settled.SettledEntry(9, 60, 3)])
    assert (log.first, log.tail, log.oldest_at_ms) == (first, 2, oldest)
    assert not log.dirty
    log.append(10, 70, 1)
    assert rows(log) == {2: [(8, 50, 1), (9, 60, 3), (10, 70, 1)]}


def test_restore_of_an_empty_tail() -> None:
    log = SettledList()
    log.restore(1, 1, [])
    assert log.oldest_at_ms is None
    log.append(1, 5, 1)
    assert log.oldest_at_ms == 5


def test_each_change_is_noted_for_the_next_checkpoint() -> None:
    changed: set[str] = set()
    log = SettledList("q", changed=changed)
    log.append(1, 10, 1)
    assert changed == {"q"}
    changed.clear()
    log.take(0, [1])
    assert changed == {"q"}


def test_a_list_knows_whether_it_may_have_something_since_a_time() -> None:
    log = SettledList("q")
    assert not log.may_have_since(0)
    log.append(1, 1000, 1)
    assert log.may_have_since(1000)
    assert not log.may_have_since(1001)
    for id in range(3):
        log.append(2 + id, 2000, 1)
    log.replace(log.tail, [])
    assert log.may_have_since(0)  # the buckets before the tail are not in memory
