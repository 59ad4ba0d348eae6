"""Headers of messages that are collected before the stored index has their attempts: kept while they are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.staging.batch_block import IndexBlock, encode_block
from kombu_opendata.storage.effects.staged_jobs import StagedChunk
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.records import decode_any, keys
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.metadata import Pairs
from kombu_opendata.storage.state.staged_state import StagedBatch
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SESSION, SETTINGS, World, run, sized
from tests.support.history import TINY, attempts, index_all
from tests.support.waiting import turns

TASKS = ("add", "mul")


async def kept(engine: Engine) -> list[dict[int, Pairs]]:
    """The records of collected messages' headers."""
    rows = await engine.store.scan(*keys.kind_range(RecordKind.HISTORY_HEADERS))
    return [decode_any(key, value) for key, value in rows]  # type: ignore[misc]


def attempt(world: World, count: int, **headers: str) -> list[int]:
    """New messages, each of which was claimed and returned."""
    ids = []
    for number in range(count):
        ids.append(world.publish("q", headers={"task": TASKS[number % 2], "n": str(number), **headers}))
    return_each(world, ids)
    return ids


def return_each(world: World, ids: list[int]) -> None:
    queue = world.queue("q")
    for id in ids:
        entry = queue.messages.available[id]
        world.engine.operations.claim(queue, (entry,), SESSION)
        world.engine.operations.put_back(queue, (entry,), "w", costs_attempt=False)


async def purge(world: World) -> None:
    await world.engine.definitions.purge(world.queue("q"))
    await world.engine.commits.checkpoint()


async def found(engine: Engine, ids: list[int]) -> bool:
    """Whether the attempts of these messages, in turns of both tasks, are found by their headers, and nothing else."""
    rows = [[id for _number, id, _outcome in await attempts(engine, headers={"task": [task]})] for task in TASKS]
    assert [id for _number, id, _outcome in await attempts(engine)] == ids
    return rows == [ids[::2], ids[1::2]]


async def nothing_more(_world: World) -> None:
    """The index comes to it later."""


async def crash(world: World) -> None:
    await world.crash()


async def index_and_crash(world: World) -> None:
    """The index had it, in memory."""
    await world.engine.history.indexer.catch_up()
    await world.crash()


async def index_store_and_crash(world: World) -> None:
    await index_all(world.engine)
    await world.crash()


@pytest.mark.parametrize("part_rows", [4, 1000])
@pytest.mark.parametrize("stored_before", [False, True])
@pytest.mark.parametrize("then", [nothing_more, crash, index_and_crash, index_store_and_crash])
def test_attempts_of_what_was_purged_are_found(
    tmp_path: Path, then: Callable[[World], Any], stored_before: bool, part_rows: int
) -> None:
    async def steps(world: World) -> None:
        ids = attempt(world, 10)
        if stored_before:
            await world.engine.commits.checkpoint()
        await purge(world)
        assert [list(some) for some in await kept(world.engine)] == [ids]
        await then(world)
        assert await found(world.engine, ids)

    run(tmp_path / "s", steps, sized(TINY, index_part_rows=part_rows))


@pytest.mark.parametrize("crashes", [False, True])
def test_a_part_in_memory_may_be_lost_after_the_metadata(tmp_path: Path, crashes: bool) -> None:
    """Some attempts are in a part that is stored, some in one that is not, some in none."""

    async def steps(world: World) -> None:
        ids = []
        for _ in range(3):
            ids += attempt(world, 6)
            await world.engine.history.indexer.catch_up()
            await world.engine.commits.checkpoint()
        head = world.engine.history.index.head
        assert 0 < head.attempt < len(ids)
        ids += attempt(world, 6)
        await purge(world)
        (record,) = await kept(world.engine)
        assert list(record) == ids[head.attempt :]
        assert record[ids[head.attempt]] == (("task", TASKS[head.attempt % 2]), ("n", str(head.attempt % 6)))
        if crashes:
            await world.crash()
        assert await found(world.engine, ids)

    run(tmp_path / "s", steps, sized(TINY, index_part_rows=20))


def test_a_part_that_becomes_records_meanwhile_may_be_lost(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = attempt(world, 30)
        await world.engine.commits.checkpoint()
        while not world.engine.history.index.frozen:
            await world.engine.history.indexer.work(0.0)
        await purge(world)
        assert world.engine.history.index.head.attempt == 0, "its records are not all made"
        (record,) = await kept(world.engine)
        assert list(record) == ids
        await world.crash()
        assert await found(world.engine, ids)

    run(tmp_path / "s", steps, TINY)


def test_a_part_that_the_same_checkpoint_stores_needs_nothing(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = attempt(world, 30)
        world.engine.history.log.close_chunk()
        while await world.engine.history.indexer.work(1.0):
            pass
        assert world.engine.history.index.head.attempt == 0
        await purge(world)
        assert world.engine.history.index.head.attempt == 30
        assert not await kept(world.engine)
        await world.crash()
        assert await found(world.engine, ids)

    run(tmp_path / "s", steps, TINY)


def test_a_record_stays_while_the_stored_index_has_some_of_its_attempts(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = []
        for _ in range(4):
            ids += attempt(world, 10)
            await world.engine.commits.checkpoint()
        await purge(world)
        assert len(await kept(world.engine)) == 1
        while world.engine.history.index.planned.attempt == 0:
            await world.engine.history.indexer.work(0.0)
        await world.engine.commits.checkpoint()
        assert 0 < world.engine.history.index.head.attempt < 40
        assert len(await kept(world.engine)) == 1
        await world.crash()
        assert await found(world.engine, ids)

    run(tmp_path / "s", steps, TINY)


@pytest.mark.parametrize("crashes", [False, True])
def test_a_record_goes_when_the_stored_index_has_passed_it(tmp_path: Path, crashes: bool) -> None:
    async def steps(world: World) -> None:
        ids = attempt(world, 10)
        await purge(world)
        await world.engine.history.indexer.catch_up()
        assert await kept(world.engine), "the index is not stored"
        ids += attempt(world, 20)
        if crashes:
            await world.engine.commits.commit()
            await world.crash()
        await index_all(world.engine)
        assert world.engine.history.index.head.attempt >= 10
        assert not await kept(world.engine)
        await world.crash()
        assert not await kept(world.engine)
        assert await found(world.engine, ids)

    run(tmp_path / "s", steps, TINY)


@pytest.mark.parametrize("crashes", [False, True])
def test_what_the_stored_index_has_is_not_kept(tmp_path: Path, crashes: bool) -> None:
    """Neither by a purge nor by retention; nor what nobody ever claimed, or what has no headers."""

    async def steps(world: World) -> None:
        engine = world.engine
        engine.definitions.declare_queue("q", QueueSettings(done_retention_seconds=1))
        ids = [world.publish("q", headers={"task": TASKS[number % 2]}) for number in range(20)]
        for _ in ids:
            engine.operations.ack(world.queue("q"), (await world.claim("q"),))
        ids += attempt(world, 20)
        await index_all(engine)
        while engine.history.index.head.attempt < 40:
            world.publish("q")
            await index_all(engine)
        if crashes:
            await world.crash()
            engine = world.engine
        world.clock.advance(2000)
        await engine.collector.sweep()
        await purge(world)
        assert await engine.store.get(keys.metadata_key(ids[0])) is None, "it was collected"
        assert not await kept(engine)
        for _ in range(5):
            world.publish("q", headers={"task": "add"})
        await purge(world)
        world.publish("q")
        engine.operations.put_back(world.queue("q"), (await world.claim("q"),), "w", costs_attempt=False)
        await purge(world)
        assert not await kept(engine)

    run(tmp_path / "s", steps, TINY)


def test_without_history_nothing_is_kept(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        attempt(world, 3)
        await purge(world)
        assert not await kept(world.engine)

    run(tmp_path / "s", steps, replace(SETTINGS, history=False))


@pytest.mark.parametrize(("blocks", "wanted"), [(100, False), (0, True)])
def test_chunks_that_left_memory_say_of_which_blocks_they_are(tmp_path: Path, blocks: int, wanted: bool) -> None:
    """Where they are too many, or were there before the start, it may be any message."""

    async def steps(world: World) -> None:
        ids = attempt(world, 4)
        world.engine.state.next_id = world.engine.operations.allocate_ids(512) + 512
        await world.engine.commits.checkpoint()
        assert not world.engine.history.log.chunks
        other = world.publish("q", headers={"task": "other"})
        await purge(world)
        (record,) = await kept(world.engine)
        assert list(record) == [*ids, *([other] if wanted else [])]
        await world.crash()
        another = world.publish("q", headers={"task": "another"})
        await purge(world)
        assert list((await kept(world.engine))[-1]) == [another]
        assert await found(world.engine, ids)
        world.publish("q", headers={"task": "last"})
        before = await kept(world.engine)
        await purge(world)
        assert await kept(world.engine) == before, "by now the index has been there"

    run(tmp_path / "s", steps, sized(log_rows=0, log_blocks=blocks))


def test_many_are_kept_in_several_records_and_not_for_long(tmp_path: Path) -> None:
    """Nor does the index wait for more rows then, before it is stored."""

    async def steps(world: World) -> None:
        ids = attempt(world, 4)
        await purge(world)
        ids += attempt(world, 9)
        await purge(world)
        assert [len(some) for some in await kept(world.engine)] == [4, 4, 4, 1]
        await world.crash()
        assert await found(world.engine, ids)
        assert world.engine.history.index.head.attempt == 0
        while await world.engine.history.indexer.work(1.0):
            pass
        await world.engine.commits.checkpoint()
        assert world.engine.history.index.head.attempt == len(ids)
        assert not await kept(world.engine)
        assert not await world.engine.history.indexer.work(1.0)
        assert await found(world.engine, ids)

    run(tmp_path / "s", steps, sized(header_messages=4, header_records=3))


def test_long_headers_are_kept_in_several_records(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        attempt(world, 5, long=60 * "x")
        await purge(world)
        assert [len(some) for some in await kept(world.engine)] == [2, 2, 1]
        assert len(await attempts(world.engine, headers={"long": [60 * "x"]})) == 5

    run(tmp_path / "s", steps, sized(header_bytes=100))


def test_a_deleted_queue_takes_no_headers_along(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = attempt(world, 5)
        for _ in range(3):
            world.engine.operations.ack(world.queue("q"), (await world.claim("q"),))
        await world.claim("q")
        await world.engine.definitions.delete_queue(world.queue("q"))
        await world.crash()
        rows = await attempts(world.engine, headers={"task": ["add"]})
        assert [id for _number, id, _outcome in rows] == [*ids[::2], ids[0], ids[2]]

    run(tmp_path / "s", steps)


def test_looking_while_the_checkpoint_collects(tmp_path: Path) -> None:
    """At any time the headers are either in the metadata or in the record."""

    async def steps(world: World) -> None:
        ids = attempt(world, 40)
        await world.engine.commits.checkpoint()
        await world.crash()
        collecting = asyncio.create_task(purge(world))
        while not collecting.done():
            await world.engine.history.indexer.work(0.0)
            await turns()
        await collecting
        assert await found(world.engine, ids)

    run(tmp_path / "s", steps, sized(log_rows=0, header_messages=3, header_reads=2, index_reads=1))


def test_damaged_metadata_is_no_reason_to_keep_the_message(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = attempt(world, 4)
        await world.engine.commits.checkpoint()
        world.engine.commits.batch.put(keys.metadata_key(ids[1]), b"damaged")
        await world.engine.commits.checkpoint()
        await purge(world)
        (record,) = await kept(world.engine)
        assert list(record) == [ids[0], *ids[2:]]
        await world.crash()
        rows = await attempts(world.engine, headers={"task": ["mul"]})
        assert [id for _number, id, _outcome in rows] == [ids[3]]

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("crashes", [False, True])
def test_a_staged_row_that_came_and_went_between_two_checkpoints(tmp_path: Path, crashes: bool) -> None:
    """Its metadata is in the batch and nowhere else, and deleted in the same one."""

    async def steps(world: World) -> None:
        engine, count = world.engine, 4
        job = engine.staging.commit("job", [StagedBatch("job/0.batch", count, 100, 0)])
        tasks: list[str | None] = [TASKS[number % 2] for number in range(count)]
        block = IndexBlock(0, [5] * count, [0] * count, "", "q", 0, 0, 0, -1, {"queue": "q"}, {"task": tasks})
        at = world.clock.now_ms()
        chunk = StagedChunk("job", job.first_id, at, at, "job/0.batch", 0, count, encode_block(block), b"")
        engine.staging.route(chunk, block, [[world.queue("q")]], [0, count])
        ids = list(range(job.first_id, job.first_id + count))
        return_each(world, ids)
        if crashes:
            await engine.commits.commit()
            await world.crash()
        await purge(world)
        assert await found(world.engine, ids)

    run(tmp_path / "s", steps)
