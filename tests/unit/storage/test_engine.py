"""The engine on real stores: the RFC's workflow, ids, attempts, producers, sessions, clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.storage.effects.deliveries import RenewEffect
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.operations import message_operations
from kombu_opendata.storage.records import active, keys, settled
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.clock import ManualClock
from tests.support.engine import OTHER, SESSION, World, nothing, run
from tests.support.plain_store import PlainStore
from tests.support.waiting import turns


def test_a_new_queue_has_its_config_and_three_empty_records(tmp_path: Path) -> None:
    """Workflow 1: in one commit."""

    async def steps(world: World) -> None:
        await world.engine.commits.checkpoint()
        written: list[set[bytes]] = []
        write = world.engine.store.write

        async def spy(batch: Any) -> None:
            before = await world.engine.store.scan(b"", None)
            await write(batch)
            written.append({key for key, _ in await world.engine.store.scan(b"", None)} - {key for key, _ in before})

        world.engine.store.write = spy  # type: ignore[method-assign]
        world.engine.definitions.declare_queue("new", QueueSettings(3, 60))
        await world.engine.commits.checkpoint()
        settings = keys.config_key, keys.options_key, keys.queue_counts_key
        lists = keys.active_key, keys.done_key, keys.failed_key
        assert written == [{key("new") for key in (*settings, *lists)}]

    store = PlainStore(run(tmp_path / "s", steps).root)
    assert store.active("new") == ([], [])
    assert store.buckets(RecordKind.DONE, "new") == store.buckets(RecordKind.FAILED, "new") == {0: []}
    assert store.of[RecordKind.CONFIG]["new"] == ("exchange = '' AND routing_key = 'new'", 3, 60)


def test_a_message_from_publish_to_done_and_failed(tmp_path: Path) -> None:
    """Workflow 2 to 4, one record after the other."""

    async def steps(world: World) -> None:
        engine, queue, now = world.engine, world.queue("q"), world.clock.now_ms

        async def stored() -> tuple[list[Any], list[Any]]:
            await engine.commits.checkpoint()
            value = await engine.store.get(keys.active_key("q"))
            return active.decode(keys.active_key("q"), value or b"")

        id, published_at = world.publish("q", envelope=b"body"), now()
        assert await stored() == ([(id, 255, published_at, 0, 0)], [])
        entry = await world.claim("q")
        claimed = (id, 255, published_at, published_at + 60_000, 1)
        assert await stored() == ([], [claimed])
        world.clock.advance(5)
        engine.operations.put_back(queue, (entry,), "me", costs_attempt=True)  # unsuccessful, has attempts left
        assert await stored() == ([(id, 255, published_at + 1, 0, 1)], [])
        entry = await world.claim("q")
        engine.operations.put_back(queue, (entry,), "you", costs_attempt=True)  # none left
        assert await stored() == ([], [])
        second = world.publish("q")
        engine.operations.ack(queue, (await world.claim("q"),))
        assert await stored() == ([], [])
        engine.operations.fail(queue, (), "nobody")
        assert [row[0] for row in (await settled_rows(world, "q"))] == [id, second]

    world = run(tmp_path / "s", steps)
    store, now = PlainStore(world.root), world.clock.now_ms()
    (failed,) = store.rows(RecordKind.FAILED, "q")
    (done,) = store.rows(RecordKind.DONE, "q")
    assert failed[1:] == (now, 2)
    assert done[1:] == (now, 1)
    assert store.of[RecordKind.ATTEMPTS] == {failed[0]: ["me", "you"]}
    assert store.envelope(failed[0]) == b"body"
    assert store.of[RecordKind.METADATA][failed[0]].message_id == failed[0]


async def settled_rows(world: World, name: str) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for key in (keys.failed_key(name), keys.done_key(name)):
        found += settled.decode(key, await world.engine.store.get(key) or b"")
    return found


def test_ids_are_never_used_twice(tmp_path: Path) -> None:
    ids: list[int] = []

    async def steps(world: World) -> None:
        ids.append(world.publish("q"))
        await world.engine.commits.commit()
        await world.crash()
        ids.append(world.publish("q"))
        await world.engine.commits.checkpoint()
        await world.crash()
        ids.extend(world.publish("q") for _ in range(message_operations.BLOCK_IDS + 1))

    world = run(tmp_path / "s", steps)
    assert ids == sorted(set(ids))
    assert PlainStore(world.root).of[RecordKind.SEQ_BLOCK] == {None: (ids[-1], message_operations.BLOCK_IDS)}
    run(world.root, nothing)


def test_attempts_of_two_queues_and_over_checkpoints(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("r", QueueSettings())
        world.publish("q", "r")
        for name, consumer in (("q", "one"), ("r", "two"), ("q", "three")):
            entry = await world.claim(name)
            world.engine.operations.put_back(world.queue(name), (entry,), consumer, costs_attempt=True)
            world.clock.advance(1)
            await world.engine.commits.checkpoint()

    store = PlainStore(run(tmp_path / "s", steps).root)
    assert list(store.of[RecordKind.ATTEMPTS].values()) == [["one", "two", "three"]]


def test_a_checkpoint_that_began_is_not_cut_off_with_its_caller(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        id = world.publish("q")
        caller = asyncio.create_task(world.engine.commits.checkpoint())
        for _ in range(3):
            await turns()
        assert world.engine.commits.waiting_seconds > 0
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await world.engine.commits.checkpoint()
        await world.crash()
        assert (await world.claim("q")).id == id

    run(tmp_path / "s", steps)


def test_a_publish_is_recognized_after_a_crash(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        id = world.publish("q", seq=7)
        await world.engine.commits.commit()
        world.publish("q", seq=8)  # not committed
        await world.crash()
        last = world.engine.operations.published(SESSION, 7)
        assert last is not None
        assert last[:3] == (7, id, 1)
        assert world.engine.operations.published(SESSION, 8) is None
        assert world.engine.operations.published(OTHER, 7) is None
        assert len(world.queue("q").messages) == 1
        world.engine.operations.forget_session(SESSION)
        await world.engine.commits.checkpoint()
        await world.crash()
        assert world.engine.operations.published(SESSION, 7) is None

    assert not PlainStore(run(tmp_path / "s", steps).root).of[RecordKind.PRODUCER]


@pytest.mark.parametrize("stored", [True, False])
def test_the_names_and_owners_of_sessions_survive_a_crash(tmp_path: Path, stored: bool) -> None:
    async def steps(world: World) -> None:
        operations = world.engine.operations
        operations.name_session(SESSION, "holder", "alice")
        operations.name_session(OTHER, "idle", "alice")
        operations.name_session(OTHER, "idle", "bob")
        operations.name_session(16 * b"f", "forgotten", "alice")
        operations.forget_session(16 * b"f")
        await (world.engine.commits.checkpoint() if stored else world.engine.commits.commit())
        await world.crash()
        state = world.engine.state
        assert state.session_names == {SESSION: "holder", OTHER: "idle"}
        assert state.session_owners == {SESSION: "alice", OTHER: "bob"}

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("last", ["publish", "claim", "ack"])
def test_a_clock_that_was_set_back_over_a_restart(tmp_path: Path, last: str, stored: bool) -> None:
    """Nothing disappears until the clock has caught up, and no token comes twice."""

    async def steps(world: World) -> None:
        world.publish("q")
        held = await world.claim("q") if last != "publish" else None
        if held is not None and last == "ack":
            world.clock.advance(10)
            world.engine.operations.ack(world.queue("q"), (held,))
            world.publish("q")
        newest = world.clock.now_ms()
        await (world.engine.commits.checkpoint() if stored else world.engine.commits.commit())
        world.clock = ManualClock(newest - 3_600_000)
        await world.crash()
        assert world.clock.now_ms() >= newest
        if held is not None and last == "claim":
            (again,) = world.queue("q").messages.in_flight.values()
            assert again.claimed_at == held.claimed_at
        else:
            assert (await world.claim("q")).claimed_at >= newest

    run(tmp_path / "s", steps)


async def _renewed(world: World) -> None:
    await world.claim("q")
    await world.engine.commits.commit()
    world.clock.advance(10_000)
    world.engine.commits.apply(RenewEffect(SESSION, world.clock.now_ms() + 60_000))


async def _expired(world: World) -> None:
    (entry,) = world.queue("q").messages.available.values()
    world.clock.advance(10_000)
    world.engine.operations.remove(world.queue("q"), (entry,), "expired")


async def _claimed_ahead(world: World) -> None:
    """Each claim in the same millisecond is of the next one."""
    for _ in range(5):
        world.engine.operations.put_back(world.queue("q"), (await world.claim("q"),), "me", costs_attempt=False)


async def _result(world: World) -> None:
    world.clock.advance(10_000)
    world.engine.results.store(b"task", 1, b"value", 60_000)


async def _queue(world: World) -> None:
    world.clock.advance(10_000)
    world.engine.definitions.declare_queue("new", QueueSettings())


async def _staged(world: World) -> None:
    world.clock.advance(10_000)
    world.engine.staging.commit("job", [])


STEPS = [_renewed, _expired, _claimed_ahead, _result, _queue, _staged]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("step", STEPS, ids=[step.__name__[1:] for step in STEPS])
def test_time_goes_on_from_the_last_commit_whatever_it_did(
    tmp_path: Path, step: Callable[[World], Awaitable[None]], stored: bool
) -> None:
    """The host's clock is set back, and the broker is killed."""

    async def steps(world: World) -> None:
        world.publish("q")
        await world.engine.commits.commit()
        await step(world)
        entries = [*world.queue("q").messages.available.values(), *world.queue("q").messages.in_flight.values()]
        newest = max([world.clock.now_ms(), *(entry.claimed_at for entry in entries)])
        await (world.engine.commits.checkpoint() if stored else world.engine.commits.commit())
        world.clock = ManualClock(newest - 3_600_000)
        await world.crash()
        assert world.clock.now_ms() >= newest

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("sync", [True, False])
def test_with_and_without_syncing(tmp_path: Path, sync: bool) -> None:
    """In a folder whose name is escaped in a URL."""
    folder = tmp_path / "a folder"
    world = World(tmp_path / "a%20folder", EngineSettings(sync=sync))

    async def main() -> None:
        for round in range(3):
            await world.open()
            if not round:
                world.engine.definitions.declare_queue("q", QueueSettings())
            assert len(world.queue("q").messages) == round
            world.publish("q")
            await world.engine.close()

    asyncio.run(main())
    assert {path.name for path in folder.iterdir()} >= {"default", "default.journal"}
    assert not (tmp_path / "a%20folder").exists()
    assert (folder / "default.sync").exists() is sync
