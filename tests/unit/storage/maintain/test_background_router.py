"""Routing cursors: stored messages come into a queue in the background, each once, whatever else happens."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.errors import PreconditionFailed
from kombu_opendata.staging.batch_block import cut, decode_block, encode_block
from kombu_opendata.staging.batch_format import parse_batch_uri
from kombu_opendata.staging.batch_reader import read_index, read_tail
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.job import StagingTarget
from kombu_opendata.storage.effects.staged_jobs import StagedChunk
from kombu_opendata.storage.records import active, keys
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.routing_cursor import Cursor
from kombu_opendata.storage.state.staged_state import StagedBatch
from kombu_opendata.storage.state.store_state import Queue, QueueSettings
from tests.support.engine import SMALL_BUCKETS, World, run, sized
from tests.support.plain_store import PlainStore
from tests.support.waiting import until


def declare(world: World, name: str, *, until: int | None = None, **fields: Any) -> Queue:
    """A new queue whose cursor begins at the first message."""
    queue = world.engine.definitions.declare_queue(
        name, QueueSettings(max_attempts=2, arguments=fields.pop("arguments", {}))
    )
    world.engine.definitions.bind(name, "amq.fanout", "", {})
    end = world.engine.state.next_id if until is None else until
    start = fields.pop("start", 0)
    cursor = Cursor(start, start, end, started_at_ms=world.clock.now_ms(), **fields)
    world.engine.router.start(queue, cursor)
    return queue


def publish(world: World, *names: str, priority: int = 0, **changes: Any) -> int:
    """A message to these queues, with the headers that clients store beside it."""
    headers = {"exchange": "amq.fanout", "routing_key": "", "priority": str(priority)}
    return world.publish(*names, headers=headers, priority=255 - priority, **changes)


async def fill(world: World, name: str, *, seconds: float = 1.0, **options: Any) -> list[int]:
    """Run the cursor to its end; returns what it added."""
    added: list[int] = []
    for _ in range(10_000):
        step = await world.engine.router.step(name, seconds, **options)
        added += step.ids
        if step.is_over or step.is_full:
            return added
    raise AssertionError("the cursor does not come to its end")


async def available(world: World, name: str) -> list[int]:
    """What waits, in memory and in cold buckets."""
    messages = world.queue(name).messages
    found = list(messages.available)
    for number in messages.cold:
        key = keys.active_key(name, number)
        found += [row[0] for row in active.decode(key, await world.engine.store.get(key) or b"")[0]]
    assert len(found) == len(messages)
    return sorted(found)


def test_a_new_queue_gets_what_is_stored_and_each_payload_lasts_until_its_last_queue(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = [publish(world, "q") for _ in range(5)]
        world.publish("q", headers={"exchange": "", "routing_key": "q"})
        declare(world, "late")
        after = publish(world, "q", "late")
        assert await fill(world, "late") == ids
        assert await available(world, "late") == [*ids, after]
        assert await fill(world, "late") == []
        for id in await available(world, "q"):
            world.engine.operations.remove(world.queue("q"), [world.queue("q").messages.available[id]])
        await world.engine.commits.checkpoint()

    world = run(tmp_path / "store", steps)
    store = PlainStore(world.root)
    assert len(store.active("late")[0]) == 6
    stored = {row[0] for row in store.active("late")[0]}
    assert all(ids == stored for kind, ids in store.message_ids().items() if kind.value in ("payload", "metadata"))


def test_it_goes_on_after_a_crash_at_any_step(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = [publish(world, "q") for _ in range(40)]
        declare(world, "late")
        await world.engine.commits.commit()
        added: list[int] = []
        number = 0
        while True:
            step = await world.engine.router.step("late", 0.0)
            added += step.ids
            await world.engine.commits.commit()
            if number % 3 == 0:
                await world.crash()
            elif number % 3 == 1:
                await world.engine.commits.checkpoint()
                await world.crash()
            number += 1
            if step.is_over:
                break
        assert added == ids
        assert await available(world, "late") == ids
        assert number > 2

    run(tmp_path / "store", steps, SMALL_BUCKETS)


def test_a_step_that_was_not_committed_is_done_again(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = [publish(world, "q") for _ in range(5)]
        declare(world, "late")
        await world.engine.commits.commit()
        assert await fill(world, "late") == ids
        await world.crash()
        assert await available(world, "late") == []
        assert await fill(world, "late") == ids

    run(tmp_path / "store", steps)


def test_what_retention_collects_meanwhile_is_not_added(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = [publish(world, "q") for _ in range(600)]
        declare(world, "late")
        await world.engine.commits.checkpoint()
        first = await world.engine.router.step("late", 0.0)
        gone = ids[len(first.ids) :][:100]
        world.engine.operations.remove(world.queue("q"), [world.queue("q").messages.available[id] for id in gone])
        await world.engine.commits.checkpoint()
        added = first.ids + await fill(world, "late")
        assert added == [id for id in ids if id not in gone]

    world = run(tmp_path / "store", steps)
    store = PlainStore(world.root)
    assert {row[0] for row in store.active("late")[0]} == store.message_ids()[RecordKind.PAYLOAD]


def test_priority_delay_and_deadline_are_the_messages_own(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        now = world.clock.now_ms()
        low, high = publish(world, "q"), publish(world, "q", priority=9)
        later = publish(world, "q", visible_at=now + 60_000)
        publish(world, "q", ttl_ms=5000)
        long = publish(world, "q", ttl_ms=600_000)
        await world.engine.commits.commit()
        world.clock.advance(10_000)
        queue = declare(world, "late", arguments={"x-message-ttl": 30_000})
        assert await fill(world, "late") == [low, high, later, long]
        entries = queue.messages.available
        assert entries[high].priority == 246
        assert entries[later].visible_at == now + 60_000
        assert entries[later].deadline == now + 90_000
        assert entries[low].deadline == now + 10_000 + 30_000
        entry = await world.next("late")
        assert entry is not None
        assert entry.id == high

    run(tmp_path / "store", steps)


def test_again_takes_what_is_settled_and_leaves_what_is_active(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.bind("q", "amq.fanout", "", {})
        ids = [publish(world, "q") for _ in range(30)]
        done, failed, held = ids[:12], ids[12:16], ids[16:18]
        for _ in done:
            world.engine.operations.ack(world.queue("q"), [await world.claim("q")])
        for _ in failed:
            world.engine.operations.fail(world.queue("q"), [await world.claim("q")], "me")
        for _ in held:
            await world.claim("q")
        await world.engine.commits.checkpoint()
        world.clock.advance(5)
        cursor = Cursor(0, 0, world.engine.state.next_id, again=True)
        world.engine.router.start(world.queue("q"), cursor)
        with pytest.raises(PreconditionFailed):
            world.engine.router.start(world.queue("q"), cursor)
        added = await fill(world, "q", seconds=0.0)
        assert added == done + failed
        assert await available(world, "q") == done + failed + ids[18:]
        await world.engine.commits.commit()
        await world.crash()
        assert {*world.queue("q").messages.available} | {*world.queue("q").messages.in_flight} <= set(ids)
        assert len(world.queue("q").messages) == 28
        for id in (done[0], failed[0]):
            entry = await world.next("q")
            assert entry is not None
            assert entry.attempts == 0
            assert id in ids

    world = run(tmp_path / "store", steps, SMALL_BUCKETS)
    store = PlainStore(world.root)
    assert store.rows(RecordKind.DONE, "q") == []
    assert store.rows(RecordKind.FAILED, "q") == []


def test_what_is_collected_while_its_block_is_ahead_is_not_routed(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = [publish(world, "q") for _ in range(12)]
        declare(world, "late")
        first = await world.engine.router.step("late", 1.0)
        assert first.ids == ids[:4]
        await until(lambda: len(world.engine.commits.watches) == 2, poll_seconds=0)  # a block, and the one ahead
        gone = [ids[5], ids[10]]  # of the block ahead, and of one that is not read yet
        world.engine.operations.remove(world.queue("q"), [world.queue("q").messages.available[id] for id in gone])
        await world.engine.commits.checkpoint()
        assert await fill(world, "late") == [id for id in ids[4:] if id not in gone]
        assert world.engine.commits.watches == []

    run(tmp_path / "store", steps, sized(block_rows=4))


def test_nothing_is_left_of_a_cursor_that_is_forgotten_while_it_reads(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = [publish(world, "q") for _ in range(12)]
        queue = declare(world, "late")
        await world.engine.commits.checkpoint()
        stepping = asyncio.create_task(world.engine.router.step("late", 1.0))
        await until(lambda: bool(world.engine.commits.watches), poll_seconds=0)
        assert world.engine.router.stop(queue)
        assert (await stepping).ids == []
        assert world.engine.commits.watches == []
        declare(world, "later")
        stepping = asyncio.create_task(world.engine.router.step("later", 1.0))
        await until(lambda: bool(world.engine.commits.watches), poll_seconds=0)
        stepping.cancel()
        await asyncio.gather(stepping, return_exceptions=True)
        assert await fill(world, "later") == ids
        await until(lambda: not world.engine.commits.watches, poll_seconds=0)

    run(tmp_path / "store", steps, sized(block_rows=4))


def test_rows_of_a_staged_job_that_were_routed_just_before_the_start_are_not_missed(tmp_path: Path) -> None:
    """All ids of the job are in the store, but not the records of its last rows: these follow with a checkpoint."""

    async def steps(world: World) -> None:
        engine, rows = world.engine, 4
        target = StagingTarget(engine.staging.folder.url, "default", inline_bytes=0, inline_rows=0)
        writer = BatchWriter(target, "job", 0, 0)
        for _ in range(rows):
            writer.add(b"row", {"exchange": "amq.fanout", "routing_key": ""}, exchange="amq.fanout", routing_key="")
        info = writer.close()
        path, folder = parse_batch_uri(info.uri) or "", engine.staging.folder.open()
        tail = read_tail(folder, path, info.bytes)
        (segment,) = tail.segments
        (encoded,) = read_index(folder, path, segment, tail.version)
        block = decode_block(encoded, path, 1 << 20, 1 << 20)
        job = engine.staging.commit("job", [StagedBatch(path, info.rows, info.bytes, info.checksum)])

        def route(count: int) -> None:
            piece = cut(block, job.routed, count)
            offset, now = segment.payload_offset + piece.offset, world.clock.now_ms()
            first_id = job.first_id + job.routed
            chunk = StagedChunk(
                "job", first_id, now, job.committed_at_ms, path, offset, count, encode_block(piece), b""
            )
            engine.staging.route(chunk, piece, [[world.queue("q")]], [0, count])

        route(1)
        await engine.commits.checkpoint()
        route(2)
        declare(world, "late")
        assert await fill(world, "late") == [job.first_id + row for row in range(3)]

    run(tmp_path / "store", steps)
