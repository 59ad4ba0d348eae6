"""How long messages stay that no queue needs: a later queue finds them, they go when their time is over."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.maintain import log_retention
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.records.routing_cursor import Cursor
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SETTINGS, World, run
from tests.support.plain_store import PlainStore
from tests.support.verified import assert_verified

WEEK = 7 * 86_400


def keeping(seconds: float) -> EngineSettings:
    return replace(SETTINGS, log_retention_seconds=seconds)


async def settled(world: World, count: int = 10, **changes: Any) -> list[int]:
    """Messages that were done, and whose retention in the queue is over; the last one has its payload in chunks."""
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
    assert not of[RecordKind.CHUNK]


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


def test_a_pass_looks_at_a_bounded_number_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_retention, "_STEP_ROWS", 3)
    monkeypatch.setattr(log_retention, "_PASS_ROWS", 6)

    async def steps(world: World) -> None:
        await settled(world, 14)
        world.clock.advance(1000 * WEEK)
        for left in (8, 2, 0):
            await collect(world)
            rows = await world.engine.store.scan(*keys.kind_range(RecordKind.METADATA))
            assert len(rows) == left

    run(tmp_path / "s", steps, keeping(WEEK))
