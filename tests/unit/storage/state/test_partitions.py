"""The fair order of partitions."""

from __future__ import annotations

from collections import Counter

import pytest

from kombu_opendata.storage.engine_sizes import EngineSizes
from kombu_opendata.storage.state.flow_limits import FlowRules
from kombu_opendata.storage.state.partitions import NEVER, Partition, PartitionLimits, PartitionRules, bounded_key
from kombu_opendata.storage.state.queue_buckets import Row
from kombu_opendata.storage.state.queue_state import QueueState
from tests.unit.selectors.test_bounds import steps

pytestmark = pytest.mark.contract(6, 16)

BY_TENANT = {"x-partition-by": "tenant"}


class Fair:
    """A partitioned queue, whose messages are claimed and settled immediately."""

    def __init__(self, weights: dict[str, int] | None = None, sizes: EngineSizes | None = None) -> None:
        self.state = QueueState("q", sizes=sizes or EngineSizes())
        self.state.partition(PartitionRules.of(BY_TENANT | {"x-partition-weights": weights or {}}))
        assert self.state.partitions is not None
        self.partitions = self.state.partitions
        self.tenants: dict[int, str] = {}

    def put(self, tenants: str, priority: int = 0, deadline: int = 0) -> None:
        for tenant in tenants:
            partition = self.partitions.by_key.get(tenant)
            if partition is None:
                partition = self.state.open_partition(self.partitions.free_number(), "tenant", tenant)
            id = len(self.tenants)
            self.tenants[id] = tenant
            self.state.add(self.state.place_in(partition), id, priority, 0, deadline, 0)

    def get(self, count: int, *, settles: bool = True) -> str:
        """Return the tenants of the next messages."""
        tenants = ""
        for _ in range(count):
            entry = self.state.peek(1)
            if entry is None:
                break
            self.state.claim(entry, b"", 1, 1)
            if settles:
                self.state.settle(entry)
            tenants += self.tenants[entry.id]
        return tenants


def test_partitions_take_turns() -> None:
    queue = Fair()
    queue.put("aaaabbc")
    assert queue.get(9) == "abcabaa"


def test_a_partition_that_becomes_active_has_no_credit() -> None:
    queue = Fair()
    queue.put("a" * 20)
    assert queue.get(10) == "a" * 10
    queue.put("b" * 20)
    assert Counter(queue.get(10)) == {"a": 5, "b": 5}


def test_a_partition_with_one_message_at_a_time_gets_its_share_only() -> None:
    queue = Fair()
    queue.put("a" * 50)
    taken = ""
    for _ in range(40):
        if not queue.partitions.by_key.get("b") or not queue.partitions.by_key["b"].waiting:
            queue.put("b")
        taken += queue.get(1)
    assert Counter(taken) == {"a": 20, "b": 20}


def test_weights_are_shares() -> None:
    queue = Fair({"a": 4, "b": 2, "*": 1})
    queue.put("abcd" * 200)
    assert Counter(queue.get(400)) == {"a": 200, "b": 100, "c": 50, "d": 50}


def test_weights_change_immediately() -> None:
    queue = Fair()
    queue.put("ab" * 200)
    assert Counter(queue.get(100)) == {"a": 50, "b": 50}
    queue.state.partition(PartitionRules.of(BY_TENANT | {"x-partition-weights": {"a": 3}}))
    assert Counter(queue.get(100)) == {"a": 75, "b": 25}


def test_a_priority_comes_before_the_fair_order() -> None:
    queue = Fair()
    queue.put("aab", priority=5)
    queue.put("bbb", priority=0)
    assert queue.get(6) == "bbbaba"


def test_each_priority_has_its_own_fair_order() -> None:
    queue = Fair()
    queue.put("a" * 10, priority=0)
    assert queue.get(10) == "a" * 10
    queue.put("ab" * 5, priority=5)
    assert Counter(queue.get(6)) == {"a": 3, "b": 3}


def grouped(queue: Fair, count: int) -> str:
    """Return the tenants of a read by groups, which has all messages of the first partition, then of the next."""
    found = ""
    for partition in list(queue.partitions.in_turn(count)):
        entries = [each for each in queue.state.available.values() if queue.tenants[each.id] == partition.key]
        for entry in sorted(entries, key=lambda each: each.id)[: count - len(found)]:
            queue.state.claim(entry, b"", 1, 1)
            queue.state.settle(entry)
            found += partition.key
    return found


@pytest.mark.parametrize(("weights", "shares"), [({}, (80, 80, 80)), ({"a": 2}, (120, 60, 60))])
def test_a_read_by_groups_is_charged_for_all_its_messages(
    weights: dict[str, int], shares: tuple[int, int, int]
) -> None:
    queue = Fair(weights)
    queue.put("abc" * 300)
    taken = Counter[str]()
    while taken.total() < 240:
        if queue.partitions.by_key["a"] in list(queue.partitions.in_turn(1)):
            taken.update(grouped(queue, 10))
        else:
            taken.update(queue.get(1))
    for tenant, share in zip("abc", shares, strict=True):
        assert abs(taken[tenant] - share) <= 10


def test_reads_by_groups_only_take_turns_and_give_no_credit_to_an_empty_partition() -> None:
    queue = Fair()
    queue.put("abc" * 100 + "d")
    taken = "".join(grouped(queue, 10) for _ in range(12))
    assert max(Counter(taken).values()) == 40
    queue.put("d" * 100)
    assert Counter("".join(grouped(queue, 10) for _ in range(8))) == {"a": 20, "b": 20, "c": 20, "d": 20}


def test_the_debt_of_a_partition_that_was_read_alone_is_limited() -> None:
    queue = Fair()
    queue.put("b" * 2000 + "a" * 3100)
    for id in range(2000, 5000):  # as reads by a condition
        entry = queue.state.available[id]
        queue.state.claim(entry, b"", 1, 1)
        queue.state.settle(entry)
    assert queue.get(1002).count("a") == 1
    assert Counter(queue.get(100)) == {"a": 50, "b": 50}


class OneAtATime(PartitionLimits):
    """One message of a partition in flight; a tenant may be delayed."""

    def __init__(self) -> None:
        super().__init__()
        self.delayed: dict[str, int] = {}
        self.questions = 0

    def next_allowed_at(self, partition: Partition, now: int) -> int:
        self.questions += 1
        return self.delayed.get(partition.key, NEVER if partition.in_flight else 0)

    def is_idle(self, partition: Partition, now: int) -> bool:
        return partition.key not in self.delayed


def test_a_blocked_partition_waits_for_the_end_of_a_lease() -> None:
    queue, limits = Fair(), OneAtATime()
    queue.partitions.limits = limits
    queue.put("aaabbb")
    assert queue.get(6, settles=False) == "ab"
    asked = limits.questions
    assert queue.get(1) == ""
    assert limits.questions == asked, "a blocked partition costs nothing"
    (first, *_) = queue.state.in_flight.values()
    queue.state.settle(first)
    assert queue.get(6, settles=False) == "a"


def test_a_blocked_partition_does_not_come_first_again_and_again() -> None:
    queue, limits = Fair(), OneAtATime()
    queue.partitions.limits = limits
    queue.put("a" * 20 + "b" * 20)
    assert Counter(queue.get(20)) == {"a": 10, "b": 10}


def test_a_delayed_partition_continues_at_its_time() -> None:
    queue, limits = Fair(), OneAtATime()
    queue.partitions.limits = limits
    limits.delayed["a"] = 500
    queue.put("ab")
    assert queue.get(2) == "b"
    assert queue.state.next_visible_at() == 500
    limits.delayed["a"] = 0
    assert queue.state.peek(499) is None
    entry = queue.state.peek(500)
    assert entry is not None
    assert queue.tenants[entry.id] == "a"


def in_order() -> Fair:
    """A queue whose partitions have one slot, with a message of the tenant ``a`` in flight."""
    queue = Fair()
    queue.state.partition(queue.partitions.rules, FlowRules(concurrency=1))
    queue.put("aab")
    assert queue.get(2, settles=False) == "ab"
    return queue


@pytest.mark.parametrize("costs_attempt", [True, False])
def test_a_returned_message_keeps_the_only_slot_until_it_is_visible(costs_attempt: bool) -> None:
    queue = in_order()
    first = queue.state.in_flight[0]
    queue.state.put_back(first, 2, costs_attempt=costs_attempt, visible_at=500)
    second = queue.state.available[1]
    assert queue.state.peek(499) is None
    assert queue.state.is_limited(second, 499)
    assert queue.state.next_visible_at() == 500
    assert queue.partitions.limits.reason(queue.partitions.by_key["a"], 499) == ("concurrency", 500)
    assert queue.state.peek(500) is first
    queue.state.claim(first, b"", 500, 900)
    assert queue.state.peek(900) is None
    queue.state.settle(first)
    assert queue.state.peek(900) is second


def test_a_first_delivery_that_is_delayed_takes_no_slot() -> None:
    queue = in_order()
    queue.state.settle(queue.state.in_flight[0])
    partition = queue.partitions.by_key["a"]
    queue.state.add(queue.state.place_in(partition), 9, 0, 500, 0, 2)
    assert queue.state.peek(2) is queue.state.available[1]
    queue.state.delay(queue.state.available[9], 800, 2)
    assert queue.state.peek(2) is queue.state.available[1]


@pytest.mark.parametrize("change", ["removed", "sooner", "limits"])
def test_a_returned_message_no_longer_has_the_slot(change: str) -> None:
    queue = in_order()
    first, second = queue.state.in_flight[0], queue.state.available[1]
    queue.state.put_back(first, 2, costs_attempt=True, visible_at=500)
    assert queue.state.peek(3) is None
    if change == "removed":
        queue.state.remove(first)
    elif change == "sooner":
        queue.state.delay(first, 3, 3)
    else:
        queue.state.partition(queue.partitions.rules, FlowRules(concurrency=2), 3)
    assert queue.state.peek(3) is (first if change == "sooner" else second)
    assert queue.partitions.by_key["a"].state == (0, 0)


def test_a_message_that_returned_before_an_alteration_to_one_slot_has_it() -> None:
    queue = in_order()
    queue.state.partition(queue.partitions.rules, FlowRules(concurrency=2))
    queue.state.put_back(queue.state.in_flight[0], 2, costs_attempt=True, visible_at=500)
    assert queue.state.peek(3) is queue.state.available[1]
    queue.state.partition(queue.partitions.rules, FlowRules(concurrency=1), 3)
    assert queue.state.peek(3) is None
    assert queue.state.peek(500) is queue.state.available[0]


def test_a_cold_returned_message_keeps_the_only_slot() -> None:
    queue = Fair(sizes=EngineSizes(bucket_entries=2, loaded_buckets=0))
    queue.state.partition(queue.partitions.rules, FlowRules(concurrency=1))
    queue.put("a" * 12 + "b" * 12)
    first = queue.state.peek(1)
    assert first is not None
    queue.state.claim(first, b"", 1, 1)
    queue.state.put_back(first, 2, costs_attempt=True, visible_at=500)
    stored = store(queue.state)
    for _ in range(5):
        list(queue.state.evict(1))
    assert first.bucket in queue.state.cold
    tenants = ""
    for now in (499, 499, 500, 500):
        entry, bucket = queue.state.next(now)
        while bucket is not None:
            queue.state.restore(bucket, *stored[bucket], now)
            entry, bucket = queue.state.next(now)
        assert entry is not None
        queue.state.claim(entry, b"", now, 900)
        queue.state.settle(entry)
        tenants += queue.tenants[entry.id]
    assert Counter(tenants) == {"b": 3, "a": 1}
    assert first.id not in queue.state.available


def test_empty_partitions_are_closed_when_there_is_no_consumer() -> None:
    queue = Fair()
    queue.put("abc")
    for id in 0, 1:  # as if they expired
        queue.state.remove(queue.state.available[id])
    numbers = queue.partitions.closable(0)
    assert sorted(numbers) == [1, 2]
    queue.state.close_partitions(numbers)
    queue.put("ac")
    assert queue.get(4) == "cac"


def test_an_empty_partition_keeps_its_place_until_it_is_closed() -> None:
    queue = Fair()
    queue.put("aab")
    assert queue.get(1) == "a"
    queue.state.remove(queue.state.available[1])
    assert queue.partitions.closable(0) == [1]
    queue.put("ab")
    assert queue.get(4) == "bab"


def test_empty_partitions_are_closed_after_their_messages_were_delivered() -> None:
    queue = Fair()
    queue.put("abc")
    assert queue.partitions.closable(0) == []
    assert sorted(queue.get(4)) == ["a", "b", "c"]
    assert queue.get(1) == ""
    numbers = queue.partitions.closable(0)
    assert sorted(numbers) == [1, 2, 3]
    queue.state.close_partitions(numbers)
    assert not queue.partitions.by_key
    queue.put("z")
    assert queue.partitions.by_key["z"].number == 1
    assert queue.get(2) == "z"


def test_empty_partitions_that_wait_for_their_tokens_are_seldom_checked() -> None:
    queue = Fair()
    queue.state.partition(queue.partitions.rules, FlowRules(interval_ns=1 << 60, burst=1))
    tenants = [chr(0x4E00 + number) for number in range(3000)]
    queue.put("".join(tenants))
    assert len(queue.get(3000)) == 3000
    assert queue.partitions.closable(1) == []
    assert queue.partitions.many_empty == 6000
    assert len(queue.partitions.closable(1 << 62)) == 3000
    assert queue.partitions.many_empty < 2000


@pytest.mark.parametrize("is_cold", [False, True])
def test_the_oldest_message_and_the_expired_ones_are_found_without_a_look_at_all_partitions(is_cold: bool) -> None:
    def lines(tenants: int) -> int:
        queue = Fair(sizes=EngineSizes(loaded_buckets=1, partitioned_factor=0))
        queue.put("".join(chr(0x4E00 + number) for number in range(tenants)), deadline=1000)
        if is_cold:
            store(queue.state)
        queue.state.oldest()
        queue.put("a", deadline=5)
        return steps(queue.state.oldest) + steps(lambda: queue.state.expired(5))

    assert lines(2000) < lines(200) + 50


def test_an_eviction_looks_at_each_message_of_a_large_partition_a_few_times() -> None:
    def lines(count: int) -> int:
        queue = Fair(sizes=EngineSizes(bucket_entries=8, loaded_buckets=1, partitioned_factor=0))
        queue.put("a" * count)
        for bucket in queue.state.buckets.values():
            bucket.stored = True
        queue.state.dirty.clear()
        return steps(lambda: list(queue.state.evict(1)))

    assert lines(8000) < 12 * lines(800)


def test_a_short_cold_tail_is_continued_and_a_long_one_is_not() -> None:
    queue = Fair(sizes=EngineSizes(loaded_buckets=0))
    queue.put("a" * 96 + "b" * 9)  # in buckets of 8, 16, 32 and 40, and of 8 and 1
    for bucket in queue.state.buckets.values():
        bucket.stored = True
    queue.state.dirty.clear()
    for _ in range(3):
        list(queue.state.evict(1))
    assert len(queue.state.cold) == 6
    queue.put("ab")
    long, short = (queue.partitions.by_key[tenant] for tenant in "ab")
    assert [len(queue.state.buckets[each.tail].available) for each in (long, short)] == [1, 2]
    assert len(queue.state) == 107
    queue.put("a")
    assert len(queue.state.buckets[long.tail].available) == 2


def test_cold_buckets_have_the_same_order() -> None:
    sizes = EngineSizes(bucket_entries=2, loaded_buckets=2)
    queues = [Fair({"a": 2}, sizes), Fair({"a": 2}, sizes)]
    orders: list[str] = []
    for evicts, queue in enumerate(queues):
        for priority in (3, 0):
            queue.put("aaaaabbbcd" * 3, priority)
        stored = store(queue.state) if evicts else {}
        order = ""
        while len(queue.state):
            entry, bucket = queue.state.next(1)
            if bucket is not None:
                queue.state.restore(bucket, *stored[bucket], 1)
                continue
            assert entry is not None
            queue.state.claim(entry, b"", 1, 1)
            queue.state.settle(entry)
            order += queue.tenants[entry.id]
        orders.append(order)
    assert orders[0] == orders[1]
    assert queues[1].state.partitions is not None
    assert not queues[1].state.cold


def store(state: QueueState) -> dict[int, tuple[list[Row], list[Row]]]:
    """Evict the buckets of a queue; return their rows."""
    stored = {}
    for number, bucket in state.buckets.items():
        stored[number] = bucket.rows()
        bucket.stored = True
    state.dirty.clear()
    list(state.evict(1))
    assert len(state.cold) > 5
    return stored


def test_the_oldest_message_of_all_partitions_is_dropped_first() -> None:
    queue = Fair(sizes=EngineSizes(bucket_entries=2, loaded_buckets=2))
    queue.put("cab" * 20)
    stored = store(queue.state)
    for id in range(60):
        entry, bucket = queue.state.oldest()
        if bucket is not None:
            queue.state.restore(bucket, *stored[bucket], 1)
            entry, bucket = queue.state.oldest()
        assert entry is not None
        assert entry.id == id
        queue.state.remove(entry)


def test_a_cold_tail_is_loaded_by_the_next_message() -> None:
    queue = Fair(sizes=EngineSizes(bucket_entries=32, loaded_buckets=0))
    queue.put("ab")
    store_all = {number: bucket.rows() for number, bucket in queue.state.buckets.items()}
    for bucket in queue.state.buckets.values():
        bucket.stored = True
    queue.state.dirty.clear()
    list(queue.state.evict(1))
    assert queue.state.cold
    cold = next(iter(queue.state.cold))
    tenant = queue.partitions.of_bucket(cold).key
    queue.put(tenant)
    assert cold not in queue.state.cold
    assert len(queue.state.buckets[cold].available) == 2
    assert store_all[cold][0][0] in queue.state.buckets[cold].rows()[0]


@pytest.mark.parametrize(
    ("text", "key"),
    [(None, ""), ("", ""), ("gold", "gold"), ("é" * 127, "é" * 127)],
)
def test_keys(text: str | None, key: str) -> None:
    assert bounded_key(text) == key


@pytest.mark.parametrize("text", ["x" * 256, "é" * 128, "a\nb", "x" * 65_536, "\0"])
def test_a_long_or_unprintable_key_has_a_digest(text: str) -> None:
    key = bounded_key(text)
    assert key.isprintable()
    assert len(key.encode()) <= 255
    assert bounded_key(text + "x") != key


@pytest.mark.parametrize("key", ["x" * 256, "a\nb", "*", ""])
def test_a_weight_is_that_of_the_key_as_it_is_represented(key: str) -> None:
    rules = PartitionRules.of(BY_TENANT | {"x-partition-weights": {key: 7}})
    assert rules.weight_of(rules.key_of({"tenant": key})) == 7


def test_an_expression_that_is_null_is_no_key() -> None:
    rules = PartitionRules.of({"x-partition-by": "n / m"})
    assert [rules.key_of(headers) for headers in ({}, {"n": "6", "m": "0"}, {"n": "6", "m": "2"}, {"n": "x"})] == [
        "",
        "",
        "3",
        "",
    ]
    assert PartitionRules.of({"x-partition-by": "size > 5"}).key_of({"size": "9"}) == "true"
    assert PartitionRules.of({"x-partition-by": "("}).by == ""
