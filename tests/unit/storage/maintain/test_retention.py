"""What retention removes, and purges and deletions of queues: messages in queues, and those that only the log keeps."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.operations.repeated_requests import Call
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.routing_cursor import Cursor
from kombu_opendata.storage.state.store_state import Queue, QueueSettings
from tests.support.engine import SESSION, SETTINGS, SMALL_BUCKETS, World, nothing, run, sized
from tests.support.plain_store import PlainStore
from tests.support.verified import assert_verified
from tests.support.waiting import turns

pytestmark = pytest.mark.contract(8)


def test_settled_messages_are_collected_when_their_retention_is_over(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for settle in (
            world.engine.operations.ack,
            lambda queue, entries: world.engine.operations.fail(queue, entries, "c"),
        ):
            world.publish("q")
            settle(world.queue("q"), (await world.claim("q"),))
        await world.engine.commits.commit()
        world.clock.advance(86_400_000 - 1)
        assert await world.engine.collector.sweep() == 0
        world.clock.advance(1)
        assert await world.engine.collector.sweep() == 1
        await world.crash()  # the sweep is done again
        assert await world.engine.collector.sweep() == 1
        await world.engine.commits.checkpoint()
        await world.crash()
        assert await world.engine.collector.sweep() == 0
        world.clock.advance(13 * 86_400_000)
        assert await world.engine.collector.sweep() == 1

    store = PlainStore(run(tmp_path / "s", steps).root)
    assert not any(store.message_ids().values())
    assert store.buckets(RecordKind.DONE, "q") == store.buckets(RecordKind.FAILED, "q") == {0: []}
    assert not store.of[RecordKind.PRODUCER]  # a day after the session's last publish


def test_expired_messages_go_also_where_nobody_consumes(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(700):
            world.publish("q", ttl_ms=1000)
        await world.engine.commits.checkpoint()
        await world.crash()
        assert world.queue("q").messages.cold
        world.clock.advance(1000)
        await world.engine.collector.sweep()
        assert len(world.queue("q").messages) == 0

    assert not any(PlainStore(run(tmp_path / "s", steps).root).message_ids().values())


def test_a_queue_that_is_deleted_and_declared_again_at_once(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(2):
            world.publish("q", envelope=b"old")
        world.engine.operations.ack(world.queue("q"), (await world.claim("q"),))
        await world.engine.commits.checkpoint()
        await world.engine.definitions.purge(world.queue("q"))
        world.engine.definitions.drop_queue("q")
        world.engine.definitions.declare_queue("q", QueueSettings(max_attempts=9))
        world.publish("q", envelope=b"new")
        await world.engine.commits.commit()
        await world.crash()
        assert world.queue("q").options.max_attempts == 9
        assert world.engine.payloads.find((await world.claim("q")).id) == b"new"

    world = run(tmp_path / "s", steps)
    store = PlainStore(world.root)
    assert [store.envelope(id) for id in store.of[RecordKind.METADATA]] == [b"new"]
    assert store.of[RecordKind.CONFIG]["q"][1] == 9
    run(world.root, nothing)


def test_what_is_published_into_a_queue_that_is_being_deleted_goes_with_it(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(50):
            world.publish("q")
        await world.engine.commits.checkpoint()
        assert world.queue("q").messages.cold
        deleting = asyncio.create_task(world.engine.definitions.delete_queue(world.queue("q")))
        while not deleting.done():
            if "q" in world.engine.state.queues:
                world.publish("q")
                world.engine.commits.commit_journal()
            await turns()

    store = PlainStore(run(tmp_path / "s", steps, SMALL_BUCKETS).root)
    assert not any(store.message_ids().values())


async def _cut(world: World, call: Callable[[Engine, Queue], Coroutine[Any, Any, int]]) -> None:
    """Begin the call, commit what it did so far while it reads a bucket, and crash."""
    load_bucket, loads, reached = world.engine.loader.load_bucket, 0, asyncio.Event()

    async def slow(queue: Queue, number: int) -> None:
        nonlocal loads
        loads += 1
        if loads == 5:
            reached.set()
            await asyncio.Event().wait()
        await load_bucket(queue, number)

    world.engine.loader.load_bucket = slow  # type: ignore[method-assign]
    task = asyncio.create_task(call(world.engine, world.queue("q")))
    await reached.wait()
    await world.engine.commits.commit()
    await world.crash()
    task.cancel()


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("what", ["purge", "delete_queue"])
def test_a_removal_that_a_crash_cut_returns_the_whole_count(tmp_path: Path, what: str, checkpointed: bool) -> None:
    """The client makes the same call again; also when the broker died after the end, before the answer."""

    async def steps(world: World) -> None:
        def call(number: int) -> Callable[[Engine, Queue], Coroutine[Any, Any, int]]:
            return lambda engine, queue: getattr(engine.definitions, what)(queue, Call(SESSION, number))

        for _ in range(100):
            world.publish("q")
        await world.engine.commits.checkpoint()
        await _cut(world, call(7))
        if checkpointed:
            await world.engine.commits.checkpoint()
            await world.crash()
        assert 0 < len(world.queue("q").messages) < 100
        assert await call(7)(world.engine, world.queue("q")) == 100
        await world.crash()
        if what == "delete_queue":
            world.engine.definitions.declare_queue("q", QueueSettings())
        world.publish("q")
        before = world.engine.repeats.before(Call(SESSION, 7))
        assert (before.messages, before.is_over) == (100, True)
        if what == "purge":
            assert await call(7)(world.engine, world.queue("q")) == 100
            assert len(world.queue("q").messages) == 1, "what was published since then stays"
        assert await call(8)(world.engine, world.queue("q")) == 1
        world.engine.operations.forget_session(SESSION)

    store = PlainStore(run(tmp_path / "s", steps, SMALL_BUCKETS).root)
    assert not any(store.message_ids().values())
    assert not store.of[RecordKind.REMOVAL]


WEEK = 7 * 86_400


def keeping(seconds: float) -> EngineSettings:
    return replace(SETTINGS, log_retention_seconds=seconds)


async def settled(world: World, count: int = 10, **changes: Any) -> list[int]:
    """Messages that were done, and whose retention in the queue is over; the last one has its payload in a segment."""
    sizes = [7] * (count - 1) + [70_000]
    headers = {"exchange": "", "routing_key": "q"}
    ids = [world.publish("q", envelope=b"x" * size, headers=headers, **changes) for size in sizes]
    for _ in ids:
        world.engine.operations.ack(world.queue("q"), (await world.claim("q"),))
    world.clock.advance(86_400_000)
    await collect(world)
    assert not len(world.queue("q").messages)
    assert not world.queue("q").done.length
    return ids


async def collect(world: World) -> None:
    await world.engine.collector.sweep()
    await world.engine.commits.checkpoint()


async def replayed(world: World, name: str) -> list[int]:
    """What a new queue gets that begins with the first stored message; it is delivered, payloads and all, and done."""
    arguments = {"x-filter": "routing_key = 'q'"}
    queue = world.engine.definitions.declare_queue(name, QueueSettings(arguments=arguments))
    world.engine.router.start(queue, Cursor(0, 0, world.engine.state.next_id, started_at_ms=world.clock.now_ms()))
    while not (await world.engine.router.step(name, 1.0)).is_over:
        pass
    found = []
    while (entry := await world.next(name)) is not None:
        found.append(entry.id)
        world.engine.operations.claim(queue, (entry,), b"s" * 16)
        world.engine.operations.ack(queue, (entry,))
    await world.engine.commits.commit()
    return found


def stored(world: World) -> set[int]:
    """The messages in the store, which is closed and whole."""
    assert_verified(world.root)
    ids = PlainStore(world.root).message_ids()
    assert ids[RecordKind.PAYLOAD] == ids[RecordKind.METADATA]
    return set(ids[RecordKind.PAYLOAD])


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("seconds", [math.inf, WEEK, 0.0])
def test_a_later_queue_finds_what_was_settled_and_collected(tmp_path: Path, seconds: float, crash: bool) -> None:
    ids: list[int] = []

    async def first(world: World) -> None:
        ids.extend(await settled(world))
        if crash:
            await world.crash()
        found = await replayed(world, "late")
        assert found == (ids if seconds else [])

    world = run(tmp_path / "s", first, keeping(seconds))
    assert stored(world) == (set(ids) if seconds else set())

    async def again(world: World) -> None:
        world.clock.advance(3 * 86_400_000)
        await collect(world)  # the later queue is done with them, too
        assert await replayed(world, "later") == (ids if seconds else [])

    clock = world.clock.now_ms()
    world = run(world.root, again, keeping(seconds))
    assert world.clock.now_ms() > clock
    assert stored(world) == (set(ids) if seconds else set())


def test_when_their_time_is_over_they_go(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = await settled(world)
        began = world.clock.now_ms() - 86_400_000
        held = world.publish("q")
        world.clock.advance(began + 1000 * WEEK - 1 - world.clock.now_ms())
        await collect(world)
        assert await replayed(world, "late") == ids
        world.queue("late").options = QueueSettings(done_retention_seconds=1)
        world.clock.advance(1001)
        await world.engine.collector.sweep()
        await world.engine.commits.commit()
        await world.crash()  # nothing of the sweep was stored: it is done again
        world.queue("late").options = QueueSettings(done_retention_seconds=1)
        await collect(world)
        await collect(world)
        assert await replayed(world, "too late") == []
        world.clock.advance(1000 * WEEK)
        await collect(world)  # one that waits stays, and goes with its queue's last need
        entry = await world.claim("q")
        assert entry.id == held
        world.engine.operations.ack(world.queue("q"), (entry,))
        world.clock.advance(86_400_000)
        await collect(world)

    world = run(tmp_path / "s", steps, keeping(WEEK))
    assert stored(world) == set()
    of = PlainStore(world.root).of
    assert not of[RecordKind.ROUTES_BLOCK]
    assert not of[RecordKind.SEGMENT]


def test_their_own_deadlines_end_it_also_where_it_is_for_ever(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await settled(world, ttl_ms=2 * 86_400_000)
        lasting = await settled(world, 2)
        await settled(world, 3, ttl_ms=3 * 86_400_000)
        world.clock.advance(2 * 86_400_000)
        await collect(world)
        assert await replayed(world, "late") == lasting

    world = run(tmp_path / "s", steps, keeping(math.inf))
    assert stored(world) == {10, 11}


@pytest.mark.parametrize("to", [0.0, 86_400.0 + 5])
def test_a_shorter_retention_counts_for_what_is_there(tmp_path: Path, to: float) -> None:
    async def steps(world: World) -> None:
        await settled(world)

    world = run(tmp_path / "s", steps, keeping(math.inf))
    assert len(stored(world)) == 10

    async def shorter(world: World) -> None:
        world.clock.advance(5000)
        await collect(world)

    world = run(world.root, shorter, keeping(to))
    assert stored(world) == set()
    assert bool(PlainStore(world.root).of[RecordKind.LOG_RETENTION]) == bool(to)


def test_a_pass_looks_at_a_bounded_number_of_messages(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await settled(world, 14)
        world.clock.advance(1000 * WEEK)
        for left in (8, 2, 0):
            await collect(world)
            rows = await world.engine.store.scan(*keys.kind_range(RecordKind.METADATA))
            assert len(rows) == left

    run(tmp_path / "s", steps, sized(keeping(WEEK), sweep_messages=3, sweep_pass_messages=6))
