"""What an engine knows of its queues after it was opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.errors import CorruptRecord
from kombu_opendata.storage.commit import recovery
from kombu_opendata.storage.effects.codec import Commit
from kombu_opendata.storage.effects.definitions import ClosePartitionsEffect
from kombu_opendata.storage.records.definitions import DELIVERIES, QueueOverrides
from kombu_opendata.storage.state.settled_list import SettledList
from kombu_opendata.storage.state.store_state import QueueSettings, StoreState
from tests.support.clock import ManualClock
from tests.support.engine import SESSION, SMALL_BUCKETS, World, run, sized
from tests.support.waiting import until

pytestmark = pytest.mark.contract(4, 9, 10, 14)

#: how many messages were done and how many failed, by queue: lists of none, one and many buckets, side by side
_SETTLED = {
    "a": (40, 0),
    "ab": (0, 0),
    "b": (3, 30),
    "c": (24, 25),
    "d": (1, 0),
    "e": (0, 4),
    "é": (30, 30),
    "z": (7, 2),
}


@pytest.mark.parametrize(("rows_of_a_read", "parts"), [(1, 1), (2, 1), (3, 2), (16, 3), (2, 16)])
def test_the_settled_lists_of_all_queues_are_found_again(tmp_path: Path, rows_of_a_read: int, parts: int) -> None:
    settings = sized(settled_entries=4, list_rows=rows_of_a_read, list_parts=parts)
    before: dict[str, list[tuple[int, int, list[bytes]]]] = {}

    def lists(world: World) -> dict[str, list[tuple[int, int, list[bytes]]]]:
        return {name: [_shown(queue.done), _shown(queue.failed)] for name, queue in world.engine.state.queues.items()}

    async def fill(world: World) -> None:
        for name, (done, failed) in _SETTLED.items():
            world.engine.definitions.declare_queue(name, QueueSettings(max_attempts=2))
            for number in range(done + failed):
                world.publish(name)
                entry = await world.claim(name)
                if number < done:
                    world.engine.operations.ack(world.queue(name), (entry,))
                else:
                    world.engine.operations.fail(world.queue(name), (entry,), "worker", "")
            await world.engine.commits.checkpoint()
        before.update(lists(world))

    async def look(world: World) -> None:
        assert lists(world) == before
        assert before["a"][0][1] > 8, "many buckets"

    run(tmp_path / "s", fill, settings)
    run(tmp_path / "s", look, settings)


def _shown(one: SettledList) -> tuple[int, int, list[bytes]]:
    return one.first, one.tail, list(one.rows)


def test_empty_partitions_can_be_deleted_after_a_restart(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.override_queue("q", QueueOverrides(arguments={"x-partition-by": "tenant"}))
        for tenant in "abcd":
            world.publish("q", headers={"tenant": tenant})
        _held, *done = [await world.claim("q") for _ in "abc"]
        world.engine.operations.ack(world.queue("q"), done)
        await world.engine.commits.checkpoint()
        await world.crash()
        partitions = world.queue("q").messages.partitions
        assert partitions is not None
        assert sorted(partitions[number].key for number in partitions.closable(0)) == ["b", "c"]

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_leases_belong_to_their_session_again(tmp_path: Path, checkpoint: bool) -> None:
    async def steps(world: World) -> None:
        id = world.publish("q", ttl_ms=3_600_000)
        claimed = await world.claim("q")
        await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
        await world.crash()
        entry = world.engine.state.leases[SESSION]["q", id]
        assert (entry.session, entry.claimed_at, entry.lease_until) == (
            SESSION,
            claimed.claimed_at,
            claimed.lease_until,
        )

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_queue_is_paused_and_altered_again(tmp_path: Path, checkpoint: bool) -> None:
    overrides = QueueOverrides(DELIVERIES, 5, {"x-delivery-limit": 7})

    async def steps(world: World) -> None:
        world.engine.definitions.override_queue("q", overrides)
        await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
        await world.crash()
        assert world.queue("q").overrides == overrides
        assert world.queue("q").options.max_attempts == 7

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_bindings_are_there_again(tmp_path: Path, checkpoint: bool) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_exchange("x", "direct", False, {})
        world.engine.definitions.bind("q", "x", "key", {})
        await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
        await world.crash()
        assert ("q", "x", "key", {}) in list(world.engine.state.topology.bindings())

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_time_does_not_go_back_with_the_clock(tmp_path: Path, checkpoint: bool) -> None:
    """A message that has expired stays expired."""

    async def steps(world: World) -> None:
        world.clock.advance(3_600_000)
        world.publish("q")
        newest = world.clock.now_ms()
        await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
        world.clock = ManualClock()
        await world.crash()
        assert world.clock.now_ms() == newest

    run(tmp_path / "s", steps)


def test_counters_include_messages_of_partitions_that_came_and_went_between_checkpoints(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        settings = QueueSettings(arguments={"x-partition-by": "tenant"})
        world.engine.definitions.declare_queue("tenants", settings)
        await world.engine.commits.checkpoint()
        for tenant in ("gold", "silver"):
            world.publish("tenants", headers={"tenant": tenant})
            entry = await world.claim("tenants")
            world.engine.operations.ack(world.queue("tenants"), (entry,))
            await world.engine.commits.commit()
        await world.engine.commits.checkpoint()
        await world.crash()
        counts = world.queue("tenants").counts.as_dict()
        assert (counts["published"], counts["delivered"], counts["acked"]) == (2, 2, 2)

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("costs_attempt", [True, False])
@pytest.mark.parametrize("messages", [2, 60])
def test_a_returned_message_has_the_only_slot_of_its_partition_again(
    tmp_path: Path, checkpoint: bool, costs_attempt: bool, messages: int
) -> None:
    async def steps(world: World) -> None:
        arguments = {"x-partition-by": "tenant", "x-partition-concurrency": 1, "x-retry-delay": 60_000}
        world.engine.definitions.declare_queue("r", QueueSettings(max_attempts=9, arguments=arguments))
        ids = [world.publish("r", headers={"tenant": "a"}) for _ in range(messages)]
        entry, operations = await world.claim("r"), world.engine.operations
        if costs_attempt:
            operations.put_back(world.queue("r"), (entry,), "worker", costs_attempt=True)
        else:
            operations.release(world.queue("r"), (entry,), "worker", 60_000)
        for _ in range(2):
            await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
            await world.crash()
        assert await world.next("r") is None
        await world.engine.loader.find_entries(world.queue("r"), [ids[0]])
        world.engine.operations.delay(world.queue("r"), [world.queue("r").messages.available[ids[0]]], 0)
        first = await world.claim("r")
        assert first.id == ids[0]
        world.engine.operations.ack(world.queue("r"), (first,))
        assert (await world.claim("r")).id == ids[1]

    run(tmp_path / "s", steps, SMALL_BUCKETS)


@pytest.mark.parametrize("messages", [1, 33, 100])
@pytest.mark.parametrize("added", ["publish", "move"])
def test_a_message_is_added_again_to_the_last_bucket_of_its_partition(
    tmp_path: Path, messages: int, added: str
) -> None:
    """The store has the bucket, whose messages are in memory only if they are few."""

    async def steps(world: World) -> None:
        by_tenant = QueueOverrides(arguments={"x-partition-by": "tenant"})
        if added == "publish":
            world.engine.definitions.override_queue("q", by_tenant)
        ids = [world.publish("q", headers={"tenant": "a"}) for _ in range(messages)]
        if added == "move":
            world.engine.definitions.override_queue("q", by_tenant)
            await repartition(world)
        await world.engine.commits.checkpoint()
        if added == "move":
            world.engine.definitions.override_queue("q", QueueOverrides())
            ids.append(world.publish("q", headers={"tenant": "a"}))
            world.engine.definitions.override_queue("q", by_tenant)
            await repartition(world)
        else:
            ids.append(world.publish("q", headers={"tenant": "a"}))
        await world.engine.commits.commit()
        for _ in range(2):
            await world.crash()
            assert len(world.queue("q").messages) == len(ids)
        assert [(await world.claim("q")).id for _ in ids] == ids

    run(tmp_path / "s", steps)


async def repartition(world: World) -> None:
    """Move the messages to their partitions."""
    world.engine.repartitioner.start(world.queue("q"), lambda _queue: None)
    await until(lambda: not world.engine.repartitioner._runs)


def test_a_journal_that_changes_what_the_store_lacks_is_refused(tmp_path: Path) -> None:
    """A flipped bit in a manifest, which has no checksum, may hide files of the store."""

    async def steps(world: World) -> None:
        commits: list[Commit] = [[ClosePartitionsEffect("lost", [1])]]
        with pytest.raises(CorruptRecord, match=r"does not fit the store \(KeyError\('lost'\)\)"):
            await recovery.rebuild(StoreState(), world.engine.store, commits, world.clock)

    run(tmp_path / "s", steps)
