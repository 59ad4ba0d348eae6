"""What goes by itself or with its queue: settled and expired messages, purged and deleted queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.operations.repeated_calls import Call
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.state.store_state import Queue, QueueSettings
from tests.support.engine import SESSION, World, nothing, run, small_buckets
from tests.support.plain_store import PlainStore


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
        await world.engine.removals.purge(world.queue("q"))
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
        deleting = asyncio.create_task(world.engine.removals.delete_queue(world.queue("q")))
        while not deleting.done():
            if "q" in world.engine.state.queues:
                world.publish("q")
                world.engine.commits.commit_journal()
            await asyncio.sleep(0)

    with small_buckets(4, 3):
        store = PlainStore(run(tmp_path / "s", steps).root)
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
            return lambda engine, queue: getattr(engine.removals, what)(queue, Call(SESSION, number))

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

    with small_buckets(4, 3):
        store = PlainStore(run(tmp_path / "s", steps).root)
    assert not any(store.message_ids().values())
    assert not store.of[RecordKind.REMOVAL]
