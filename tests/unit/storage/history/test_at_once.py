"""Lists while everything goes on: publishes, checkpoints, indexing, merges, sweeps and other lists."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.engine import SESSION, World, run, sized
from tests.support.history import TINY, attempts, index_all, message_ids
from tests.support.waiting import turns

ROUNDS = 40


async def work(world: World, done: list[int]) -> None:
    """Publish and settle, a little at a time."""
    engine, queue = world.engine, world.queue("q")
    for round in range(ROUNDS):
        for _ in range(7):
            world.number += 1
            id = engine.operations.publish(
                [queue], b"x", {"parity": str(world.number % 2), "id": str(world.number)}, priority=255, created_at=0,
                visible_at=-1, ttl_ms=-1, session=SESSION, seq=world.number, total=1,
            )  # fmt: skip
            entry = await world.claim("q")
            assert entry.id == id
            engine.operations.ack(queue, (entry,))
            done.append(id)
        world.clock.advance(1)
        await turns()
        if round % 3 == 0:
            await engine.commits.checkpoint()


async def look(world: World, done: list[int], working: asyncio.Task[None]) -> None:
    """What was there before a list began is in it, once and in order."""
    while not working.done():
        before = list(done)
        found = await message_ids(world.engine, statuses=["done"], queues=["q"])
        assert found == sorted(set(found))
        assert found[: len(before)] == before
        odd = before[::2]
        assert (await message_ids(world.engine, headers={"parity": ["1"]}))[: len(odd)] == odd
        rows = await attempts(world.engine, outcomes=["acked"])
        assert [id for _number, id, _outcome in rows][: len(before)] == before
        if before:
            middle = len(before) // 2
            (row,) = await attempts(world.engine, headers={"id": [str(middle + 1)]})
            assert row[:2] == (middle, before[middle])
        await turns()


def test_lists_are_right_while_everything_goes_on(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        done: list[int] = []
        background = asyncio.create_task(world.engine.history.run())
        working = asyncio.create_task(work(world, done))
        await asyncio.gather(working, *(look(world, done, working) for _ in range(3)))
        await world.engine.history.sweep(world.clock.now_ms())
        assert await message_ids(world.engine, queues=["q"]) == done
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)

    run(tmp_path / "s", steps, TINY)


def test_attempts_are_found_by_headers_that_nobody_remembers(tmp_path: Path) -> None:
    """Also where the messages are forgotten while their attempts are being indexed, or are not in the store yet."""

    async def steps(world: World) -> None:
        for task in ("old", "new"):
            for _ in range(5):
                world.publish("q", headers={"task": task})
            if task == "old":
                await index_all(world.engine)
        for _ in range(10):
            world.engine.operations.ack(world.queue("q"), (await world.claim("q"),))
        for task, ids in (("old", [0, 1, 2, 3, 4]), ("new", [5, 6, 7, 8, 9])):
            assert [row[1] for row in await attempts(world.engine, headers={"task": [task]})] == ids

    run(tmp_path / "s", steps, sized(index_messages=2))
