"""Slots and tokens: no window has more deliveries than the rate and its burst, and a crash changes neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kombu_opendata.protocol.rate import Rate
from kombu_opendata.storage.records import partition
from kombu_opendata.storage.records.definitions import FlowRecord, QueueOverrides, decode_flow, encode_flow
from kombu_opendata.storage.records.partition import PartitionRecord
from kombu_opendata.storage.state.flow_limits import NO_LIMITS, FlowLimits, FlowRules, limited
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SESSION, World, run

pytestmark = pytest.mark.contract(9, 16)

START_MS = 1_769_385_600_000
RATES = ["1/s", "7/s", "600/m", "100/m:20", "100/m:1", "3000/s", "5/h:3"]


def rules(rate: str, concurrency: int = 0) -> FlowRules:
    return FlowRules.of({"x-rate": rate, "x-concurrency": concurrency})


def most_in_a_window(times: list[int], window_ms: int) -> int:
    """The largest number of these times within a window, whose ends belong to it."""
    first = most = 0
    for last, at in enumerate(times):
        while times[first] < at - window_ms:
            first += 1
        most = max(most, last - first + 1)
    return most


@given(
    rate=st.sampled_from(RATES),
    steps=st.lists(st.tuples(st.sampled_from([0, 1, 3, 50, 999, 60_000]), st.integers(0, 50)), max_size=60),
)
def test_no_window_has_more_deliveries_than_the_rate_and_its_burst(rate: str, steps: list[tuple[int, int]]) -> None:
    flow, now, times = FlowLimits(rules(rate)), START_MS, list[int]()
    for pause_ms, wanted in steps:
        now += pause_ms
        count = min(flow.room(0, now), wanted)
        assert (count > 0) <= (flow.opens_at_ms(now) <= now)
        flow.take(count, now)
        times += [now] * count
    parsed = Rate.parse(rate)
    assert most_in_a_window(times, parsed.period_ms) <= parsed.number + parsed.burst


@pytest.mark.parametrize("rate", ["10/s", "600/m", "100/m", "1000/s", "7/m"])
@pytest.mark.parametrize("late_ms", [0, 2])
def test_a_rate_is_used_although_each_delivery_is_late(rate: str, late_ms: int) -> None:
    flow, now, count = FlowLimits(rules(rate)), START_MS, 0
    parsed = Rate.parse(rate)
    while now < START_MS + 20 * parsed.period_ms:
        room = flow.room(0, now)
        flow.take(room, now)
        count += room
        now = max(flow.opens_at_ms(now), now + 1) + late_ms
    assert 0.99 * 20 * parsed.number <= count <= 20 * parsed.number + parsed.burst


def test_slots_and_the_reason_for_a_wait() -> None:
    flow = FlowLimits(rules("10/s:2", 3))
    assert (flow.room(0, START_MS), flow.room(2, START_MS), flow.room(3, START_MS)) == (2, 1, 0)
    assert (flow.reason(0, START_MS), flow.reason(7, START_MS)) == (("", 0), ("concurrency", 0))
    flow.take(2, START_MS)
    assert (flow.room(0, START_MS), flow.reason(0, START_MS)) == (0, ("rate", START_MS + 50))
    flow.delayed_until_ms = START_MS + 5000
    assert (flow.room(0, START_MS + 4999), flow.reason(0, START_MS + 4999)) == (0, ("delay", START_MS + 5000))
    assert flow.opens_at_ms(START_MS) == START_MS + 5000
    assert flow.room(0, START_MS + 5000) == 2


@pytest.mark.parametrize("rate", ["1/d:3650", "1/d:999999999", "1000/s:999999999"])
def test_the_time_at_which_the_largest_burst_is_saved_fits_in_its_record(rate: str) -> None:
    flow = FlowLimits(rules(rate))
    flow.take(min(flow.room(0, START_MS), 1_000_000_000), START_MS)
    assert partition.decode(b"", partition.encode(PartitionRecord("t", "k", *flow.state)))[2:] == flow.state
    assert decode_flow(b"", encode_flow(FlowRecord(*flow.state))) == flow.state


def test_a_lower_rate_starts_with_an_empty_bucket_at_most() -> None:
    """After a day's worth of tokens was used, the rate becomes one that has a token each second."""
    flow = FlowLimits(rules("1/d"))
    flow.take(1, START_MS)
    assert limited(flow, rules("1/s"), START_MS + 50) is flow
    assert (flow.room(0, START_MS + 900), flow.room(0, START_MS + 1050)) == (0, 1)
    assert limited(None, NO_LIMITS, START_MS) is None


@pytest.mark.parametrize(
    "arguments", [{"x-rate": "many"}, {"x-rate": 5}, {"x-concurrency": -1}, {"x-concurrency": "2"}]
)
def test_limits_of_an_older_version_are_ignored(arguments: dict[str, object]) -> None:
    assert FlowRules.of(arguments) == NO_LIMITS


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_crash_keeps_tokens_and_slots(tmp_path: Path, checkpoint: bool) -> None:
    async def steps(world: World) -> None:
        limits = {"x-rate": "60/m:5", "x-concurrency": 4}
        world.engine.definitions.declare_queue("limited", QueueSettings(arguments=limits))
        for _ in range(9):
            world.publish("limited")
        entries = [await world.claim("limited") for _ in range(3)]
        world.engine.operations.ack(world.queue("limited"), entries[:1])
        world.engine.task_runs.start(world.queue("limited"), entries[1:2])
        await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
        await world.crash()
        flow, now = world.queue("limited").flow, world.clock.now_ms()
        assert flow is not None
        used = len(world.queue("limited").messages.in_flight) + world.engine.state.running.by_queue["limited"]
        assert (used, flow.room(used, now), flow.room(0, now)) == (2, 2, 2)
        assert (flow.room(0, now + 3000), flow.room(used, now + 3000)) == (4, 2)
        world.engine.task_runs.lose(SESSION)
        assert world.engine.state.running.by_queue["limited"] == 0
        (left,) = world.queue("limited").messages.in_flight.values()
        world.engine.operations.put_back(world.queue("limited"), [left], "lost", costs_attempt=True)
        assert (len(world.queue("limited").messages.in_flight), flow.room(0, now)) == (0, 2)
        world.clock.advance(60_000)
        await world.engine.commits.checkpoint()
        await world.crash()
        assert flow.is_idle(world.clock.now_ms())

    run(tmp_path / "store", steps)


def test_a_change_of_the_limits_survives_a_crash_and_a_new_queue_has_none(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.publish("q")
        world.publish("q")
        definitions = world.engine.definitions
        definitions.override_queue("q", QueueOverrides(arguments={"x-rate": "1/h", "x-concurrency": 1}))
        await world.claim("q")
        await world.engine.commits.checkpoint()
        await world.crash()
        flow = world.queue("q").flow
        assert flow is not None
        assert (flow.rules.concurrency, flow.room(0, world.clock.now_ms())) == (1, 0)
        await world.engine.definitions.delete_queue(world.queue("q"))
        world.engine.definitions.declare_queue("q", QueueSettings(arguments={"x-rate": "1/h"}))
        await world.engine.commits.checkpoint()
        await world.crash()
        flow = world.queue("q").flow
        assert flow is not None
        assert flow.room(0, world.clock.now_ms()) == 1

    run(tmp_path / "store", steps)


TENANTS = {"x-partition-by": "tenant", "x-partition-concurrency": 2, "x-partition-rate": "60/m:3"}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_crash_keeps_the_limits_of_each_partition(tmp_path: Path, checkpoint: bool) -> None:
    async def steps(world: World) -> None:
        async def tenants(count: int) -> str:
            """Claim as many messages as the limits allow, and return their tenants."""
            found = ""
            while len(found) < count and (entry := await world.next("tenants")) is not None:
                partitions = world.queue("tenants").messages.partitions
                assert partitions is not None
                found += partitions.of_bucket(entry.bucket).key
                world.engine.operations.claim(world.queue("tenants"), (entry,), SESSION)
            return found

        async def crash() -> None:
            await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
            await world.crash()

        def held() -> list[QueueEntry]:
            return list(world.queue("tenants").messages.in_flight.values())

        world.engine.definitions.declare_queue("tenants", QueueSettings(arguments=TENANTS))
        for tenant in "aaaaabbbbb":
            world.publish("tenants", headers={"tenant": tenant})
        assert sorted(await tenants(9)) == ["a", "a", "b", "b"]
        world.engine.task_runs.start(world.queue("tenants"), held()[:1])
        await crash()
        assert await tenants(9) == "", "a running task and messages in flight have slots"
        world.engine.task_runs.lose(SESSION)
        world.engine.operations.ack(world.queue("tenants"), held())
        assert sorted(await tenants(9)) == ["a", "b"], "the burst has one more token"
        world.engine.operations.ack(world.queue("tenants"), held())
        await crash()
        assert await tenants(9) == ""
        world.clock.advance(1000)
        assert sorted(await tenants(9)) == ["a", "b"]
        world.engine.operations.ack(world.queue("tenants"), held())
        partitions = world.queue("tenants").messages.partitions
        assert partitions is not None
        number, until = partitions.by_key["a"].number, world.clock.now_ms() + 5000
        world.engine.operations.delay_flow(world.queue("tenants"), number, until)
        await crash()
        world.clock.advance(4999)
        assert set(await tenants(9)) <= {"b"}
        world.clock.advance(1)
        assert await tenants(9) == "a"

    run(tmp_path / "store", steps)


def test_an_altered_limit_of_partitions_counts_immediately(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        limits = {"x-partition-by": "tenant", "x-partition-concurrency": 1}
        world.engine.definitions.declare_queue("tenants", QueueSettings(arguments=limits))
        for _ in range(5):
            world.publish("tenants", headers={"tenant": "a"})
        await world.claim("tenants")
        assert await world.next("tenants") is None
        world.engine.definitions.override_queue("tenants", QueueOverrides(arguments={"x-partition-concurrency": 3}))
        first, second = [await world.claim("tenants") for _ in range(2)]
        assert await world.next("tenants") is None
        world.engine.definitions.override_queue("tenants", QueueOverrides(arguments={"x-partition-concurrency": 2}))
        world.engine.operations.ack(world.queue("tenants"), (first,))
        assert await world.next("tenants") is None
        world.engine.operations.put_back(world.queue("tenants"), (second,), "lost", costs_attempt=True)
        assert await world.next("tenants") is second

    run(tmp_path / "store", steps)
