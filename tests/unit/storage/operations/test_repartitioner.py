"""Moves of messages to their partitions that a crash interrupts after some buckets."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.storage.records.definitions import QueueOverrides
from tests.support.engine import SMALL_BUCKETS, World, run
from tests.support.waiting import until

pytestmark = pytest.mark.contract(9, 16)

#: messages of 3 tenants, in ten buckets
MESSAGES, TENANTS = 40, "abc"


def alter(world: World, by: str) -> None:
    arguments = {"x-partition-by": by} if by else {}
    world.engine.definitions.override_queue("q", QueueOverrides(arguments=arguments))


async def move(world: World, buckets: int = 1000) -> int:
    """Move the messages of all buckets, or cancel the run after some; return the number of messages moved."""
    before, steps = where(world), 0

    def count(_queue: str) -> None:
        nonlocal steps
        steps += 1
        if steps == buckets:
            world.engine.repartitioner.close()

    world.engine.repartitioner.start(world.queue("q"), count)
    await until(lambda: steps and not world.engine.repartitioner._runs)
    return len(where(world).items() - before.items())


def where(world: World) -> dict[int, int]:
    """Return the bucket of each loaded message."""
    return {entry.id: entry.bucket for entry in world.queue("q").messages.available.values()}


async def load(world: World) -> None:
    for number in list(world.queue("q").messages.cold):
        await world.engine.loader.load_bucket(world.queue("q"), number)


async def save(world: World, commit: str) -> None:
    await (world.engine.commits.commit() if commit == "journal" else world.engine.commits.checkpoint())


async def check(world: World, tenants: dict[int, str], by: str) -> None:
    """Each message is there once, in the partition of its tenant, and there are no other partitions."""
    await load(world)
    messages = world.queue("q").messages
    partitions = messages.partitions
    held = [id for bucket in messages.buckets.values() for id in bucket.available]
    assert sorted(held) == sorted(tenants)
    assert len(messages) == len(tenants)
    if not by:
        assert set(partitions or [0]) == {0}
        assert {bucket >> 32 for bucket in where(world).values()} == {0}
        return
    assert partitions is not None
    assert {id: partitions.of_bucket(bucket).key for id, bucket in where(world).items()} == tenants
    assert {(each.by, each.key) for each in partitions.values()} == {("", ""), *((by, key) for key in TENANTS)}


def test_what_was_moved_is_not_ready_where_it_was(tmp_path: Path) -> None:
    """Else a list of partitions reads all of it each time."""

    async def steps(world: World) -> None:
        for number in range(MESSAGES):
            world.publish("q", headers={"tenant": TENANTS[number % 3]})
        alter(world, "tenant")
        assert 0 < await move(world, 4) < MESSAGES
        messages = world.queue("q").messages
        assert messages.partitions is not None
        ready = {id for _priority, id in messages.partitions[0].ready}
        assert ready == {id for id, bucket in where(world).items() if bucket >> 32 == 0}

    run(tmp_path / "s", steps, SMALL_BUCKETS)


@pytest.mark.parametrize("commit", ["journal", "checkpoint"])
@pytest.mark.parametrize("buckets", [1, 4, 9])
def test_a_move_that_a_crash_interrupts_continues(tmp_path: Path, buckets: int, commit: str) -> None:
    """The queue gets partitions, others, and none; with a new message after each crash."""

    async def steps(world: World) -> None:
        tenants: dict[int, str] = {}

        def publish() -> None:
            tenant = TENANTS[len(tenants) % len(TENANTS)]
            tenants[world.publish("q", headers={"tenant": tenant, "shop": tenant})] = tenant

        for _ in range(MESSAGES):
            publish()
        for by in ("tenant", "shop", ""):
            await world.engine.commits.checkpoint()
            await world.crash()
            alter(world, by)
            await load(world)
            assert 0 < await move(world, buckets) < len(tenants)
            await save(world, commit)
            await world.crash()
            publish()
            await move(world)
            await check(world, tenants, by)
            await save(world, commit)
            await world.crash()
            await check(world, tenants, by)

    run(tmp_path / "s", steps, SMALL_BUCKETS)


def test_a_move_that_was_not_committed_begins_again(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        tenants = {world.publish("q", headers={"tenant": tenant}): tenant for tenant in TENANTS * 12}
        alter(world, "tenant")
        await world.engine.commits.checkpoint()
        assert 0 < await move(world, 3) < len(tenants)
        await world.crash()
        assert {bucket >> 32 for bucket in where(world).values()} <= {0}
        await move(world)
        await check(world, tenants, "tenant")

    run(tmp_path / "s", steps, SMALL_BUCKETS)


def test_a_message_in_flight_is_moved_when_it_returns(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        tenants = {world.publish("q", headers={"tenant": tenant}): tenant for tenant in TENANTS * 3}
        entry = await world.claim("q")
        alter(world, "tenant")
        await move(world)
        assert entry.bucket == 0
        world.engine.operations.put_back(world.queue("q"), [entry], "worker", costs_attempt=False)
        await move(world)
        await check(world, tenants, "tenant")

    run(tmp_path / "s", steps, SMALL_BUCKETS)
