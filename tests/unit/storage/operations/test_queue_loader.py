"""What is loaded of a queue before a message is delivered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kombu_opendata.storage.operations import queue_loader
from tests.support.engine import World, run, small_buckets


@pytest.fixture(autouse=True)
def _little_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_loader, "_AHEAD", 8)
    monkeypatch.setattr(queue_loader, "_AT_ONCE", 2)
    monkeypatch.setattr(queue_loader, "_AHEAD_MIN", 2)


def test_messages_that_fall_due_at_once_are_loaded_as_they_are_delivered(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        due_at = world.clock.now_ms() + 1000
        ids = [world.publish("q", visible_at=due_at) for _ in range(400)]
        await world.engine.commits.checkpoint()
        cold = world.queue("q").messages.cold
        before = len(cold)
        assert before > 90
        assert await world.next("q") is None
        world.clock.advance(1000)
        for number, id in enumerate(ids):
            assert (await world.claim("q")).id == id
            assert before - len(cold) <= number // 4 + 4, "the bucket of the message, and those read ahead"
        assert await world.next("q") is None

    with small_buckets(4, 3):
        run(tmp_path / "s", steps)


def test_messages_that_fall_due_at_once_come_by_priority(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        due_at = world.clock.now_ms() + 1000
        found = []
        for number in range(400):
            priority, visible_at = number * 7 % 5, (due_at, -1, due_at + 1)[number % 3]
            found.append((visible_at > due_at, priority, world.publish("q", priority=priority, visible_at=visible_at)))
        await world.engine.commits.checkpoint()
        world.clock.advance(1000)
        for number, (later, _priority, id) in enumerate(sorted(found)):
            if number % 100 == 50:
                await world.engine.commits.checkpoint()
            if later and world.clock.now_ms() == due_at:
                assert await world.next("q") is None
                world.clock.advance(1)
            entry = await world.claim("q")
            assert entry.id == id
            world.engine.operations.ack(world.queue("q"), (entry,))
            world.engine.commits.commit_journal()
        assert await world.next("q") is None

    with small_buckets(4, 3):
        run(tmp_path / "s", steps)


def test_an_urgent_message_does_not_load_the_backlog_before_it(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        ids = [world.publish("q") for _ in range(400)]
        await world.engine.commits.checkpoint()
        cold = world.queue("q").messages.cold
        before = len(cold)
        urgent = world.publish("q", priority=0)
        await world.next("q")
        await asyncio.gather(*world.engine.loader._loading.values())
        assert before - len(cold) <= 1
        assert (await world.claim("q")).id == urgent
        for number, id in enumerate(ids):
            assert (await world.claim("q")).id == id
            assert before - len(cold) <= number // 4 + 4, "the bucket of the message, and those read ahead"

    with small_buckets(4, 3):
        run(tmp_path / "s", steps)
