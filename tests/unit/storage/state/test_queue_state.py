"""Buckets, order and eviction of one queue."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kombu_opendata.storage.engine_sizes import EngineSizes
from kombu_opendata.storage.records import active
from kombu_opendata.storage.state.cold_summaries import ColdSummaries, Summary
from kombu_opendata.storage.state.partitions import PartitionRules
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from kombu_opendata.storage.state.queue_state import QueueState

SESSION = b"s" * 16


SIZES = EngineSizes(bucket_entries=2, loaded_buckets=3)


def filled(count: int, *, priority: int = 255) -> QueueState:
    queue = QueueState("q", sizes=SIZES)
    for id in range(count):
        queue.add(queue.place(), id, priority, 0, 0, 0)
    return queue


def stored(queue: QueueState) -> None:
    """As after a checkpoint."""
    for number in queue.dirty:
        queue.buckets[number].stored = True
    queue.dirty.clear()
    queue.dropped.clear()


def take(queue: QueueState, now: int) -> QueueEntry | None:
    entry = queue.peek(now)
    if entry is not None:
        queue.claim(entry, SESSION, now, now + 1000)
    return entry


def order(queue: QueueState, now: int) -> list[int]:
    found = []
    while (entry := take(queue, now)) is not None:
        found.append(entry.id)
    return found


def test_priority_then_id() -> None:
    queue = QueueState("q", sizes=SIZES)
    for id, priority in enumerate([255, 250, 255, 250, 0]):
        queue.add(queue.place(), id, priority, 0, 0, 0)
    assert order(queue, 0) == [4, 1, 3, 0, 2]


def test_a_message_waits_until_it_is_visible() -> None:
    queue = QueueState("q", sizes=SIZES)
    queue.add(0, 1, 255, 50, 0, 0)
    queue.add(0, 2, 255, 0, 0, 0)
    assert queue.next_visible_at() == 50
    assert order(queue, 49) == [2]
    assert order(queue, 50) == [1]


def test_a_returned_message_is_first_again() -> None:
    queue = filled(2)
    entry = take(queue, 10)
    assert entry is not None
    queue.put_back(entry, 10, costs_attempt=False)
    assert (entry.attempts, entry.visible_at) == (0, 11)  # its next claim is not before that
    assert take(queue, 10) is entry
    queue.put_back(entry, 20, costs_attempt=True)
    assert (entry.attempts, entry.visible_at) == (1, 11)
    assert order(queue, 20) == [0, 1]


def test_full_buckets_and_the_ones_that_go() -> None:
    queue = filled(6)
    assert sorted(queue.buckets) == [0, 1, 2]
    stored(queue)
    for id in (0, 1, 2, 3, 4, 5):
        queue.remove(queue.available[id])
    assert sorted(queue.buckets) == [0, 2]  # 0 always has a record, 2 is the tail
    assert queue.dropped == {1}
    assert queue.dirty == {0, 2}
    queue.add(queue.place(), 6, 255, 0, 0, 0)
    assert sorted(queue.buckets) == [0, 3]
    assert queue.dropped == {1, 2}


def test_a_bucket_that_was_never_stored_is_not_deleted() -> None:
    queue = filled(4)
    for id in (2, 3, 0):
        queue.remove(queue.available[id])
    queue.open_tail(2)
    assert queue.dropped == set()
    assert 1 not in queue.dirty


def test_evicted_messages_come_back_in_order() -> None:
    queue = filled(12)
    stored(queue)
    rows = {number: bucket.rows() for number, bucket in queue.buckets.items()}
    list(queue.evict(0))
    assert len(queue) == 12
    assert sorted(queue.cold) == [1, 2, 3, 4]  # not the first, not the tail
    found: list[int] = []
    while len(found) < 12:
        best = queue.peek(0)
        wanted = queue.cold.wanted(0, best)
        if wanted is not None:
            queue.restore(wanted, *rows[wanted], 0)
            continue
        assert best is not None
        found.append(best.id)
        queue.claim(best, SESSION, 0, 1)
    assert found == list(range(12))
    assert queue.cold.messages == 0


def test_what_is_in_use_stays_loaded() -> None:
    queue = filled(12)
    stored(queue)
    queue.claim(queue.available[4], SESSION, 0, 1)  # makes its bucket dirty
    queue.remove(queue.available[6])
    list(queue.evict(0))
    assert sorted(queue.cold) == [1, 4]
    stored(queue)
    list(queue.evict(0))
    assert 2 in queue.buckets


def test_what_changes_during_an_eviction_stays_loaded() -> None:
    queue = filled(12)
    stored(queue)
    evictions = queue.evict(0)
    next(evictions)
    assert sorted(queue.cold) == [4]
    queue.claim(queue.available[2], SESSION, 0, 1)
    queue.remove(queue.available[4])
    queue.remove(queue.available[5])
    assert list(evictions)
    assert sorted(queue.cold) == [3, 4]
    assert order(queue, 0) == [0, 1, 3, 10, 11]


def test_a_cold_bucket_is_wanted_when_something_in_it_becomes_visible() -> None:
    queue = QueueState("q", sizes=SIZES)
    queue.note_cold(1, Summary.of([(7, 10, 100, 0, 0), (8, 10, 90, 0, 0)], 0))
    assert queue.next_visible_at() == 90
    assert queue.cold.wanted(89, None) is None
    assert queue.cold.wanted(90, None) == 1
    queue.restore(1, [(7, 10, 100, 0, 0), (8, 10, 90, 0, 0)], [], 90)
    assert queue.cold.wanted(90, None) is None
    assert order(queue, 90) == [8]
    assert order(queue, 100) == [7]


def test_a_cold_bucket_is_wanted_only_if_it_is_better() -> None:
    queue = filled(1, priority=10)
    queue.note_cold(1, Summary.of([(7, 20, 0, 0, 0)], 0))
    queue.note_cold(2, Summary.of([(8, 5, 0, 0, 0)], 0))
    assert queue.cold.wanted(0, queue.peek(0)) == 2
    queue.restore(2, [(8, 5, 0, 0, 0)], [], 0)
    assert queue.cold.wanted(0, queue.peek(0)) is None
    assert order(queue, 0) == [8, 0]
    assert queue.cold.wanted(0, None) == 1


def test_of_many_buckets_that_fall_due_at_once_only_the_first_is_loaded_at_first() -> None:
    queue = QueueState("q", sizes=SIZES)
    rows = {number: [(2 * number + n, 10, 100, 0, 0) for n in range(2)] for number in range(1, 101)}
    for number, found in rows.items():
        queue.note_cold(number, Summary.of(found, 0))
    assert queue.cold.wanted(99, None) is None
    for number, found in rows.items():
        assert queue.cold.wanted(100, queue.peek(100)) == number
        queue.restore(number, found, [], 100)
        for id, *_others in found:
            assert queue.cold.wanted(100, queue.peek(100)) is None
            entry = take(queue, 100)
            assert entry is not None
            assert entry.id == id
    assert queue.next_visible_at() is None


def test_a_bucket_that_has_fallen_due_waits_for_its_turn() -> None:
    queue = filled(1, priority=10)
    rows = [(7, 10, 100, 0, 0), (8, 5, 200, 0, 0), (9, 20, 0, 0, 0)]
    queue.note_cold(1, Summary.of([(5, 11, 100, 0, 0)], 0))
    queue.note_cold(2, Summary.of(rows, 0))
    assert queue.cold.wanted(99, queue.peek(99)) is None
    assert queue.cold.wanted(100, queue.peek(100)) == 2  # that its best one is visible is possible
    queue.restore(2, rows, [], 100)
    assert queue.cold.wanted(100, queue.peek(100)) is None
    assert order(queue, 100) == [0, 7, 9]
    assert queue.cold.wanted(100, None) == 1


def test_a_bucket_that_has_fallen_due_in_part_changes_until_all_of_it_is_visible() -> None:
    queue = filled(1, priority=0)
    queue.note_cold(1, Summary.of([(7, 10, 100, 0, 0), (8, 10, 200, 0, 0)], 0))
    assert queue.cold.wanted(100, queue.peek(100)) is None
    assert queue.next_visible_at() == 200
    assert queue.cold.wanted(200, queue.peek(200)) is None
    assert queue.next_visible_at() is None
    assert queue.cold.wanted(200, None) == 1


def test_upcoming_begins_with_the_next_one() -> None:
    queue = QueueState("q", sizes=SIZES)
    for id in range(20):
        queue.add(0, id, 255 - id, 0, 0, 0)
    assert queue.upcoming(3)[0].id == 19


def heap_pairs(queue: QueueState) -> int:
    partitions = queue.partitions.values() if queue.partitions is not None else ()
    return len(queue._ready) + len(queue._delayed) + sum(len(partition.ready) for partition in partitions)


def with_partition(queue: QueueState) -> Callable[[], int]:
    """Add a partition; return the function that places its messages."""
    queue.partition(PartitionRules.of({"x-partition-by": "tenant"}))
    partition = queue.open_partition(1, "tenant", "a")
    return lambda: queue.place_in(partition)


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_queue_without_consumers_grows_only_by_its_messages(is_partitioned: bool) -> None:
    queue = QueueState("q", sizes=SIZES)
    place = with_partition(queue) if is_partitioned else queue.place
    for id in range(1000):
        entry = queue.add(place(), id, 255, 0, 0, 0)
        queue.delay(entry, 50, 0)
        if id >= 10:  # as by a maximum length
            oldest, _ = queue.oldest()
            assert oldest is not None
            assert oldest.id == id - 10
            queue.remove(oldest)
    assert heap_pairs(queue) < 300
    queue.add(place(), 1000, 255, 0, 0, 0)
    assert order(queue, 49) == [1000]
    assert order(queue, 50) == list(range(990, 1000))


def test_messages_that_move_to_a_partition_leave_nothing_where_many_wait() -> None:
    queue = QueueState("q", sizes=SIZES)
    place = with_partition(queue)
    queue.note_cold(9, Summary.of([(id, 255, 0, 0, 0) for id in range(5000, 6000)], 0))
    for id in range(1000):
        entry = queue.add(queue.place(), id, 255, 0, 0, 0)
        queue.relocate(entry, place(), 0)
        queue.remove(entry)
    assert heap_pairs(queue) < 300


@pytest.mark.parametrize("is_partitioned", [False, True])
def test_a_message_that_is_released_again_and_again_takes_no_more_memory(is_partitioned: bool) -> None:
    queue = QueueState("q", sizes=SIZES)
    place = with_partition(queue) if is_partitioned else queue.place
    for id in range(2):
        queue.add(place(), id, 255, 0, 0, 0)
    assert queue.oldest()[0] is not None
    for now in range(1000):
        entry = take(queue, now)
        assert entry is not None
        assert entry.id == 0
        queue.put_back(entry, now, costs_attempt=False)
    assert heap_pairs(queue) + len(queue._oldest or ()) < 300
    assert order(queue, 2000) == [0, 1]


def test_the_order_of_a_maximum_length_that_is_not_looked_at_takes_no_more_memory() -> None:
    queue = filled(2)
    for id in range(2, 1000):
        queue.add(queue.place(), id, 255, 0, 0, 0)
        entry = take(queue, 0)
        assert entry is not None
        queue.settle(entry)
        if id == 2:
            assert queue.oldest()[0] is not None
    assert len(queue._oldest or ()) < 300
    oldest, _ = queue.oldest()
    assert oldest is not None
    assert oldest.id == 998


def test_summary() -> None:
    rows = [(1, 9, 0, 0, 0), (2, 3, 0, 0, 0), (3, 3, 0, 0, 0), (4, 0, 50, 70, 0), (5, 0, 40, 60, 0)]
    assert Summary.of(rows, 10) == Summary((3, 2), 40, 5, 60, 2, 0, 50, 1, 5, (0, 4))
    assert [Summary.of(rows, 10).best_at(now) for now in (10, 39, 40)] == [(3, 2), (3, 2), (0, 4)]
    assert [Summary.of(rows[3:], 10).best_at(now) for now in (39, 40)] == [None, (0, 4)]
    assert Summary.of(rows, 60).best_at(60) == (0, 4)
    assert Summary.of([], 0) == Summary(None, None, 0, None)


def test_each_change_is_noted_for_the_next_checkpoint() -> None:
    changed: set[str] = set()
    queue = QueueState("q", sizes=SIZES, changed=changed)
    entry = queue.add(queue.place(), 1, 255, 0, 0, 0)
    steps: list[Callable[[], object]] = [
        lambda: queue.add(queue.place(), 2, 255, 0, 0, 0),
        lambda: queue.delay(entry, 5, 0),
        lambda: queue.claim(entry, SESSION, 10, 1000),
        lambda: queue.touch(entry),
        lambda: queue.put_back(entry, 20, costs_attempt=True),
        lambda: queue.claim(entry, SESSION, 30, 1000),
        lambda: queue.settle(entry),
        lambda: queue.restore(7, [], [], 40),
    ]
    for step in steps:
        stored(queue)
        changed.clear()
        step()
        assert changed == {"q"}


def test_a_bucket_that_is_evicted_again_and_again_takes_no_more_memory() -> None:
    def summary(number: int, now: int) -> Summary:
        return Summary.of(
            [(3 * number, 10, 0, 0, 0), (3 * number + 1, 9, 50, 0, 0), (3 * number + 2, 10, 80, 0, 0)], now
        )

    cold, fresh = ColdSummaries(), ColdSummaries()
    for number in range(20):
        cold.note(number, summary(number, 0))
    for now in range(70):
        assert cold.wanted(now, None) is not None
        for number in range(1, 20):  # another bucket stays cold, so the heaps are not cleared
            cold.take(number)
            cold.note(number, summary(number, now))
    assert len(cold._ready) + len(cold._delayed) < 400
    for number in range(20):
        fresh.note(number, summary(number, 0 if number == 0 else 69))
    while (wanted := cold.wanted(90, None)) is not None:
        assert wanted == fresh.wanted(90, None)
        cold.take(wanted)
        fresh.take(wanted)
    assert not cold


@pytest.mark.parametrize("seed", range(40))
def test_a_record_has_the_current_messages_of_its_bucket(seed: int) -> None:
    """A record copies from the one before what has not changed since."""
    chance = random.Random(seed)
    queue = QueueState("q", sizes=EngineSizes(bucket_entries=1000))
    free_ids = list(range(20))
    for now in range(2, 600):
        waiting, held = list(queue.available.values()), list(queue.in_flight.values())
        change = chance.choice(("add", "add", "claim", "claim first", "settle", "put back", "delay", "remove", "save"))
        if change == "add" and free_ids:  # ids that were used before, too, as by a redrive
            queue.add(0, free_ids.pop(chance.randrange(len(free_ids))), chance.randrange(3), now, 0, now)
        elif change.startswith("claim") and waiting:
            queue.claim(waiting[0] if change == "claim first" else chance.choice(waiting), SESSION, now, now + 9)
        elif change == "put back" and held:
            queue.put_back(chance.choice(held), now, costs_attempt=chance.random() < 0.5)
        elif change == "delay" and waiting:
            queue.delay(chance.choice(waiting), now + 5, now)
        elif change == "settle" and held:
            free_ids.append((entry := chance.choice(held)).id)
            queue.settle(entry)
        elif change == "remove" and waiting:
            free_ids.append((entry := chance.choice(waiting)).id)
            queue.remove(entry)
        elif change == "save":
            bucket = queue.buckets[0]
            assert bucket.record() == active.encode(*bucket.rows())
