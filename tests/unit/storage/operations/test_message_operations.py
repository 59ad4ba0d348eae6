"""Messages: stored once, however often their publish is repeated, and in one state until they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SESSION, SMALL_BUCKETS, World, run, sized

pytestmark = pytest.mark.contract(1, 2, 5, 6, 7, 8, 9)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_repeated_publish_is_known_after_a_crash(tmp_path: Path, checkpoint: bool) -> None:
    async def steps(world: World) -> None:
        for _ in range(3):
            world.publish("q")
        assert world.engine.operations.published(SESSION, 3) is not None
        await (world.engine.commits.checkpoint() if checkpoint else world.engine.commits.commit())
        await world.crash()
        assert all(world.engine.operations.published(SESSION, seq) is not None for seq in (1, 2, 3))
        assert world.engine.operations.published(SESSION, 4) is None

    run(tmp_path / "s", steps)


def test_a_message_past_its_deadline_is_not_next(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.publish("q", ttl_ms=10)
        kept = world.publish("q", ttl_ms=1000)
        world.clock.advance(11)
        assert (await world.claim("q")).id == kept
        assert world.engine.operations.expired == 1

    run(tmp_path / "s", steps)


def test_a_message_of_two_queues_stays_until_both_have_ended_it(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("r", QueueSettings())
        id = world.publish("q", "r")
        await world.engine.commits.checkpoint()
        world.engine.operations.remove(world.queue("q"), list(world.queue("q").messages.available.values()))
        await world.engine.commits.checkpoint()
        await world.crash()
        assert (await world.claim("r")).id == id
        world.engine.operations.delete(world.queue("r"), list(world.queue("r").messages.in_flight.values()))
        await world.engine.commits.checkpoint()
        assert await world.engine.pages.metadata_of(id) is None

    run(tmp_path / "s", steps)


def test_acknowledged_messages_of_two_queues_are_done(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("r", QueueSettings())
        ids = {name: world.publish(name) for name in "qr"}
        await world.engine.commits.checkpoint()
        claimed = {name: [await world.claim(name)] for name in "qr"}
        for name, entries in claimed.items():
            world.engine.operations.ack(world.queue(name), entries)
        await world.engine.commits.commit()
        await world.crash()
        for name, id in ids.items():
            rows, _next = await world.engine.pages.settled_rows(world.queue(name), "done", -1, 10)
            assert [row.id for row in rows] == [id]
            assert not world.queue(name).messages.in_flight
            assert not len(world.queue(name).messages)

    run(tmp_path / "s", steps)


def test_a_message_in_flight_stays_when_the_others_of_its_bucket_end(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(12):
            world.publish("q")
        await world.engine.commits.checkpoint()
        claimed = [await world.claim("q") for _ in range(8)]
        world.engine.operations.ack(world.queue("q"), claimed[:-1])
        await world.engine.commits.checkpoint()
        await world.crash()
        assert list(world.queue("q").messages.in_flight) == [claimed[-1].id]
        assert len(world.queue("q").messages) == 4

    run(tmp_path / "s", steps, SMALL_BUCKETS)


def test_attempts_count_but_not_for_a_release(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        queue, operations = world.queue("q"), world.engine.operations  # with two attempts
        world.publish("q")
        for costs_attempt in (False, True, False):
            operations.put_back(queue, [await world.claim("q")], "worker", costs_attempt=costs_attempt)
        entry = await world.claim("q")
        assert entry.attempts == 2
        operations.put_back(queue, [entry], "worker", costs_attempt=True)
        assert await world.next("q") is None
        assert queue.failed.unsaved_ids() == [entry.id]

    run(tmp_path / "s", steps)


def test_a_message_is_delivered_after_its_delay_and_by_priority(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        queue, now = world.queue("q"), world.clock.now_ms()
        low, high = world.publish("q", priority=200), world.publish("q", priority=100)
        early = world.publish("q", priority=0, visible_at=now + 500)
        assert [(await world.claim("q")).id for _ in range(2)] == [high, low]
        world.clock.advance(499)
        assert await world.next("q") is None
        world.clock.advance(1)
        entry = await world.claim("q")
        assert entry.id == early
        world.engine.operations.release(queue, [entry], "worker", 300)
        world.clock.advance(299)
        assert await world.next("q") is None
        world.clock.advance(1)
        assert (await world.claim("q")).id == early

    run(tmp_path / "s", steps)


def test_the_order_is_the_same_for_messages_that_are_not_in_memory(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        priorities = [7, 3, 9, 1, 3, 3, 8, 0, 5, 9, 9, 2, 7, 7, 6, 4, 1, 8]
        ids = [world.publish("q", priority=priority) for priority in priorities]
        await world.engine.commits.checkpoint()
        await world.crash()
        assert world.queue("q").messages.cold
        order = [(await world.claim("q")).id for _ in ids]
        assert order == [id for _priority, id in sorted(zip(priorities, ids, strict=True))]

    run(tmp_path / "s", steps, sized(SMALL_BUCKETS, load_below=0, load_first=1, load_messages=1))
