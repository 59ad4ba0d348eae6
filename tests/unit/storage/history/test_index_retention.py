"""History does not grow without bound: attempts go with their time, the index with the messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.storage.engine_sizes import SIZES
from kombu_opendata.storage.history import index_retention
from kombu_opendata.storage.records import history_index, keys
from kombu_opendata.storage.records.history_index import ATTEMPTS, MESSAGES, SEGMENT_SIZE
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SESSION, World, nothing, run
from tests.support.history import TINY, attempts, index_all, message_ids, records

HOUR_MS = 3_600_000
SETTINGS = replace(TINY, history_retention_seconds=2 * 3600)


def publish(world: World, queue: str, count: int) -> list[int]:
    ids = []
    for _ in range(count):
        world.number += 1
        headers = {"id": f"id-{world.number}", "task": "add"}
        ids.append(
            world.engine.operations.publish(
                [world.queue(queue)], b"x", headers, priority=255, created_at=0, visible_at=-1, ttl_ms=-1,
                session=SESSION, seq=world.number, total=1,
            )
        )  # fmt: skip
    return ids


async def ack(world: World, queue: str, count: int) -> None:
    for _ in range(count):
        entry = await world.claim(queue)
        world.engine.operations.ack(world.queue(queue), (entry,))


async def collect(world: World) -> None:
    """What the broker's collecting does, often enough to be through."""
    for _ in range(20):
        await world.engine.collector.sweep()
        await world.engine.commits.checkpoint()


def test_errors_go_with_their_attempts(tmp_path: Path) -> None:
    report = TaskReport(TaskState.RAISED, 5, 6, "add", "app.Bad", "no", "Traceback: …")

    async def steps(world: World) -> None:
        engine = world.engine
        for count in (300, 200):
            publish(world, "q", count)
            for _ in range(count):
                entry = await world.claim("q")
                engine.task_runs.note(world.queue("q"), entry, report)
                engine.operations.ack(world.queue("q"), (entry,))
            await index_all(engine)
            assert len(await stored_errors(world)) == (300 if count == 300 else 500)
            world.clock.advance(90 * 60_000)
        await engine.history.sweep(world.clock.now_ms())
        await engine.commits.checkpoint()
        numbers = await stored_errors(world)
        assert numbers == list(range(300, 500)), "those of the attempts that are left"
        assert [number for number, _id, _outcome in await attempts(engine)] == numbers

    async def stored_errors(world: World) -> list[int]:
        rows = await world.engine.store.scan(*keys.kind_range(RecordKind.TASK_FAILURE))
        return [(keys.parse(key).numbers or (0,))[0] for key, _value in rows]

    run(tmp_path / "store", steps, SETTINGS)


def test_attempts_go_when_their_time_is_over(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        first = publish(world, "q", 60)
        await ack(world, "q", 60)
        await index_all(engine)
        world.clock.advance(HOUR_MS)
        second = publish(world, "q", 60)
        await ack(world, "q", 60)
        await index_all(engine)
        world.clock.advance(HOUR_MS + 1)
        await collect(world)
        assert [id for _number, id, _outcome in await attempts(engine)] == second
        assert await attempts(engine, ids=first[:1]) == []
        assert await engine.history.attempt(0) is None
        assert await engine.history.attempt(60) is not None
        assert len(await attempts(engine, headers={"id": ["id-61"]})) == 1
        assert await message_ids(engine, statuses=["done"]) == first + second, "their messages are still there"
        world.clock.advance(2 * HOUR_MS)
        await collect(world)
        assert await attempts(engine) == []
        await world.crash()
        assert await attempts(world.engine) == []
        publish(world, "q", 1)
        await ack(world, "q", 1)
        assert [number for number, _id, _outcome in await attempts(world.engine)] == [120], "numbers go on"

    run(tmp_path / "s", steps, SETTINGS)


def test_the_index_goes_with_the_messages(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        engine.definitions.declare_queue("short", QueueSettings(done_retention_seconds=60))
        publish(world, "short", 60)
        await ack(world, "short", 60)
        engine.state.next_id = engine.state.block_end  # as after a restart: the segment gets no more messages
        kept = publish(world, "q", 40)
        await index_all(engine)
        world.clock.advance(3 * HOUR_MS)
        await collect(world)
        rows = await engine.store.scan(*keys.kind_range(RecordKind.HISTORY_SEGMENT))
        segments = {(keys.parse(key).numbers or ())[:2] for key, _value in rows}
        assert {segment for space, segment in segments if space == MESSAGES} <= {kept[0] // SEGMENT_SIZE, 0}
        assert await message_ids(engine) == kept == await message_ids(engine, headers={"task": ["add"]})
        world.clock.advance(3 * HOUR_MS)
        await engine.definitions.purge(world.queue("q"))
        engine.state.next_id = engine.state.block_end
        publish(world, "q", 1)
        await index_all(engine)
        await collect(world)
        left = await records(engine)
        assert left[RecordKind.HISTORY_LOG] <= 2
        assert left[RecordKind.HISTORY_TRAIL] <= 1
        postings = await engine.store.scan(*keys.kind_range(RecordKind.HISTORY_POSTINGS))
        spaces = {(keys.parse(key).numbers or (0,))[0] for key, _value in postings}
        assert spaces == {ATTEMPTS}, "the segment that the next attempts come into"
        assert all(run.low >= kept[-1] for run in engine.history.index.head.runs if run.space == MESSAGES)

    run(tmp_path / "s", steps, SETTINGS)


def test_attempts_outlive_their_messages(tmp_path: Path) -> None:
    """What became of a task is known for as long as its attempts are, also by its id."""

    async def steps(world: World) -> None:
        engine = world.engine
        engine.definitions.declare_queue("short", QueueSettings(done_retention_seconds=60))
        ids = publish(world, "short", 60)
        await ack(world, "short", 60)
        await index_all(engine)
        world.clock.advance(HOUR_MS)
        await collect(world)
        assert await message_ids(engine) == []
        assert await attempts(engine, headers={"id": ["id-7"]}) == [(6, ids[6], "acked")]
        assert await attempts(engine, ids=[ids[6]]) == [(6, ids[6], "acked")]
        assert await attempts(engine, headers={"id": ["id-7000"]}) == []

    run(tmp_path / "s", steps, SETTINGS)


def test_a_merge_that_a_crash_cut_off_leaves_nothing(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        publish(world, "q", 60)
        await index_all(engine)
        index = engine.history.index
        number = index.take_runs(1)
        key = keys.history_page_key(ATTEMPTS, number, 3)
        index.queue([(key, history_index.encode_page([1], [2]))])
        await engine.commits.checkpoint()
        await world.crash()
        before = await message_ids(world.engine)
        await world.engine.history.sweeper.begin()
        await world.engine.commits.checkpoint()
        assert await world.engine.store.get(key) is None
        assert await message_ids(world.engine) == before
        runs = world.engine.history.index.head.runs
        assert runs, "those that count are still there"
        for space_run in runs:
            prefix = keys.history_page_key(space_run.space, space_run.number, 0)[:-2]
            assert await world.engine.store.scan(*keys.prefix_range(prefix))

    run(tmp_path / "s", steps, SETTINGS)


def test_readers_keep_what_a_merge_replaces(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        engine = world.engine
        index = engine.history.index
        ids = []
        for _ in range(2):
            ids += publish(world, "q", 30)
            await engine.history.indexer.catch_up()
            while await engine.history.indexer.work(1.0):
                pass
            await engine.commits.checkpoint()
        with index.reading() as view:
            old = [run for run in view.runs if run.space == MESSAGES]
            assert len(old) == 2
            await index_all(engine)
            assert {run.number for run in index.head.runs}.isdisjoint(run.number for run in old)
            pages = await records(engine)
            for one in old:
                first = keys.history_page_key(one.space, one.number, 0)
                last = keys.history_page_key(one.space, one.number + 1, 0)
                assert await engine.store.scan(first, last), "still there for this reader"
        for _ in range(4):
            await engine.commits.checkpoint()
        assert (await records(engine))[RecordKind.HISTORY_PAGE] < pages[RecordKind.HISTORY_PAGE]
        assert await message_ids(engine, headers={"id": ["id-3"]}) == [ids[2]]

    run(tmp_path / "s", steps, SETTINGS)


def test_constants_fit() -> None:
    assert index_retention._SEGMENTS > 1
    assert SIZES.bucket_entries < SEGMENT_SIZE
    assert callable(nothing)
