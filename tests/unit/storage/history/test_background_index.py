"""The index in the background: its source of headers, and its share of the event loop."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from kombu_opendata.staging.batch_block import IndexBlock, encode_block
from kombu_opendata.storage.effects.staged_jobs import StagedChunk
from kombu_opendata.storage.state.staged_state import StagedBatch
from tests.support.clock import HastyLoop
from tests.support.engine import SETTINGS, World, run, sized
from tests.support.history import index_all, message_ids
from tests.support.waiting import until

ROWS = 6
#: rows of the log that may wait; a published message has two
LAG = 20


def route(world: World) -> int:
    """Route a job of six rows, in pieces of four and two; return the id of the first."""
    job = world.engine.staging.commit("job", [StagedBatch("job/0.batch", ROWS, 100, 1)])
    tasks: list[str | None] = ["add", "mul", None, "add", None, "mul"]
    ttls = [-1, 2500, 2500, 3000, -1, 2500]
    at = world.clock.now_ms()
    for start, end in ((0, 4), (4, 6)):
        count = end - start
        block = IndexBlock(
            0, [5] * count, [0] * count, "", "q", 0, 0, 0, ttls[start:end], {"lang": "py"}, {"task": tasks[start:end]}
        )
        chunk = StagedChunk("job", job.first_id + start, at, at, "job/0.batch", 0, count, encode_block(block), b"")
        world.engine.staging.route(chunk, block, [[world.queue("q")]], [0, count])
    return job.first_id


async def positions(world: World, first: int, **headers: str) -> list[int]:
    """The rows of the job that have these headers."""
    found = await message_ids(world.engine, headers={name.replace("_", "-"): [text] for name, text in headers.items()})
    return [id - first for id in found]


@pytest.mark.parametrize("source", ["effects", "journal", "store"])
def test_staged_rows_have_the_same_headers_from_each_source(tmp_path: Path, source: str) -> None:
    async def steps(world: World) -> None:
        first = route(world)
        await world.engine.commits.commit()
        if source == "journal":
            await world.crash()
        elif source == "store":
            await world.engine.commits.checkpoint()
        indexer, log = world.engine.history.indexer, world.engine.history.log
        log.close_chunk()
        while await indexer.work(1.0, may_read=False):
            if source == "store":
                break
        assert (indexer.place == log.end) is (source != "store")
        for _ in range(2):
            assert await positions(world, first, task="add") == [0, 3]
            assert await positions(world, first, task="mul") == [1, 5]
            assert await positions(world, first, lang="py") == list(range(ROWS))
            assert await positions(world, first, x_opendata_ttl_ms="2500") == [1, 2, 5]
            await index_all(world.engine)

    # of the store: rows that are stored leave memory
    run(tmp_path / "s", steps, sized(log_rows=0) if source == "store" else SETTINGS)


def test_staged_rows_without_headers_are_indexed(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        first = world.engine.staging.commit("job", [StagedBatch("job/0.batch", ROWS, 100, 1)]).first_id
        block, at = IndexBlock(0, [5] * ROWS, [0] * ROWS, "", "q", 0, 0, 0, -1, {}, {}), world.clock.now_ms()
        chunk = StagedChunk("job", first, at, at, "job/0.batch", 0, ROWS, encode_block(block), b"")
        world.engine.staging.route(chunk, block, [[world.queue("q")]], [0, ROWS])
        await world.engine.commits.commit()
        await index_all(world.engine)
        assert await message_ids(world.engine, queues=["q"]) == [first + row for row in range(ROWS)]

    run(tmp_path / "s", steps)


def test_the_index_waits_for_clients_up_to_its_bound(tmp_path: Path) -> None:
    """The time of this loop passes so fast that it never looks free."""

    async def steps(world: World) -> None:
        history = world.engine.history
        is_flowing = True
        counts = itertools.count()
        looks = 0

        def traffic() -> int:
            nonlocal looks
            looks += 1
            return next(counts) if is_flowing else 0

        async def look_again() -> None:
            seen = looks
            await until(lambda: looks > seen + 3)

        await index_all(world.engine)
        background = asyncio.create_task(history.run(traffic))
        try:
            for _ in range(LAG // 2):
                world.publish("q", headers={"task": "add"})
            await world.engine.commits.checkpoint()
            assert history.indexer.lag == LAG
            await look_again()
            assert history.indexer.lag == LAG  # at the bound
            world.publish("q", headers={"task": "add"})
            await world.engine.commits.checkpoint()
            await until(lambda: history.indexer.lag <= LAG)
            for _ in range(LAG // 4):
                world.publish("q", headers={"task": "mul"})
            assert len(await message_ids(world.engine, headers={"task": ["mul"]})) == LAG // 4
            world.publish("q", headers={"task": "add"})
            await world.engine.commits.checkpoint()
            await look_again()
            assert history.indexer.lag
            is_flowing = False
            await until(lambda: not history.indexer.lag)
        finally:
            background.cancel()
            await asyncio.gather(background, return_exceptions=True)

    run(tmp_path / "s", steps, sized(index_lag=LAG), loop=HastyLoop)


@pytest.mark.parametrize("part_rows", [1000, 4], ids=["parts in memory", "parts that wait for a checkpoint"])
def test_the_debt_of_the_index_stays_at_its_bound_in_steady_traffic(tmp_path: Path, part_rows: int) -> None:
    """Six rows are added before each check. No other task checkpoints."""
    added, debts = 6, list[int]()

    async def steps(world: World) -> None:
        history = world.engine.history

        def traffic() -> int:
            for _ in range(added // 2):
                world.publish("q", headers={"task": "add"})
            debts.append(history.indexer.lag)
            return len(debts)

        background = asyncio.create_task(history.run(traffic))
        try:
            await until(lambda: len(debts) > 12 or background.done())
        finally:
            background.cancel()
            await asyncio.gather(background, return_exceptions=True)
        assert LAG < max(debts) <= LAG + added

    sizes = sized(index_lag=LAG, log_chunk_rows=4, index_part_rows=part_rows)
    run(tmp_path / "s", steps, sizes, loop=HastyLoop)
