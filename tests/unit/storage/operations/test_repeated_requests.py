"""Idempotency keys and the queues that they are for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kombu_opendata.storage.records.idempotency import DIGEST_BYTES, Sending, name_of
from tests.support.engine import World, run, sized
from tests.support.waiting import turns

NAME = name_of("", "q", "key")


def send(world: World) -> None:
    id = world.publish("q")
    expires_at = world.clock.now_ms() + 3_600_000
    world.engine.idempotency.remember(NAME, Sending((id,), expires_at, bytes(DIGEST_BYTES), (("q",),)))


async def is_known(world: World) -> bool:
    await world.engine.idempotency.load([NAME], "q")
    return world.engine.idempotency.find(NAME, "q")[1] is not None


@pytest.mark.parametrize("checkpoint", [True, False])
def test_keys_go_in_the_commit_that_drops_their_queue(tmp_path: Path, checkpoint: bool) -> None:
    """A crash while a long backlog is removed leaves the queue with its keys, or neither."""

    async def steps(world: World) -> None:
        send(world)
        for _ in range(700):
            world.publish("q")
        await world.engine.commits.checkpoint()
        await world.crash()
        assert world.queue("q").messages.cold
        deleting = asyncio.create_task(world.engine.definitions.delete_queue(world.queue("q")))
        seen = set()
        while not deleting.done():
            exists = "q" in world.engine.state.queues
            assert await is_known(world) is exists
            seen.add(exists)
            await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
            await turns()
        await deleting
        assert True in seen
        assert not await is_known(world)
        await world.crash()
        assert not await is_known(world)

    run(tmp_path / "s", steps, sized(bucket_entries=16, loaded_buckets=4))


def test_a_queue_of_the_same_name_has_keys_of_its_own(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        options = world.queue("q").options
        for _ in range(2):
            send(world)
            assert await is_known(world)
            await world.engine.definitions.delete_queue(world.queue("q"))
            await world.crash()
            assert not await is_known(world)
            world.engine.definitions.declare_queue("q", options)

    run(tmp_path / "s", steps)


def test_queues_leave_nothing_where_no_key_was_used(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await world.engine.definitions.delete_queue(world.queue("q"))
        assert not world.engine.state.idempotency.is_dirty
        assert world.engine.idempotency.find(name_of("", "q", ""))[1] is None

    run(tmp_path / "s", steps)


@pytest.mark.contract(1)
@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_key_survives_a_crash_with_its_messages(tmp_path: Path, checkpoint: bool) -> None:
    async def steps(world: World) -> None:
        send(world)
        await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
        await world.crash()
        assert len(world.queue("q").messages) == 1
        assert await is_known(world)

    run(tmp_path / "s", steps)
