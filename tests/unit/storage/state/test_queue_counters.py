"""A queue's counters are stored: with each checkpoint, and counted again from the journal."""

from __future__ import annotations

from pathlib import Path

from kombu_opendata.storage.records import definitions, keys
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from kombu_opendata.storage.state.store_state import QueueSettings

from ....support.engine import OTHER, World, run

EXPECTED = {
    "published": 9, "delivered": 9, "redelivered": 4, "acked": 1, "rejected": 1, "requeued": 2, "released": 2,
    "lease_expired": 1, "exhausted": 1, "expired": 1, "purged": 2, "deleted": 1, "archived": 1, "dead_lettered": 3,
}  # fmt: skip


def counted(world: World, name: str = "q") -> dict[str, int]:
    """What is not 0."""
    return {name: value for name, value in world.queue(name).counts.as_dict().items() if value}


async def do_everything(world: World) -> None:
    """Each kind of end once or twice, in the queue ``many``."""
    engine = world.engine
    engine.definitions.declare_queue(
        "many", QueueSettings(max_attempts=2, arguments={"x-dead-letter-exchange": "amq.fanout"})
    )
    queue = world.queue("many")

    async def claim() -> QueueEntry:
        world.clock.advance(2)
        return await world.claim("many", OTHER)

    for _ in range(8):
        world.publish("many")
    engine.operations.ack(queue, [await claim()])
    engine.operations.fail(queue, [await claim()], "c")
    engine.operations.put_back(queue, [await claim()], "c", costs_attempt=True)
    engine.operations.put_back(queue, [await claim()], "c", costs_attempt=True)  # it has no attempt left
    engine.operations.put_back(queue, [await claim()], "c", costs_attempt=True, lease_expired=True)
    engine.operations.release(queue, [await claim()], "c", 0)
    engine.operations.put_back(queue, [await claim()], "c", costs_attempt=False)
    engine.operations.delete(queue, [await claim()])
    world.clock.advance(2)
    engine.operations.archive(queue, [next(iter(queue.messages.available.values()))], "c")
    engine.operations.delete(queue, [next(iter(queue.messages.available.values()))])
    engine.operations.remove(queue, [next(iter(queue.messages.available.values()))], "expired")
    engine.operations.remove(queue, list(queue.messages.available.values()), "")
    world.publish("many")
    world.clock.advance(2)
    await world.claim("many", OTHER)


def test_counters_survive_a_clean_restart_and_a_crash(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await do_everything(world)
        expected = counted(world, "many")
        since = world.queue("many").counts.since_ms
        await world.engine.commits.commit()
        await world.crash()  # all of it is in the journal
        assert counted(world, "many") == expected
        world.clock.advance(5000)
        await world.engine.close()
        await world.open()  # all of it is in the store
        assert counted(world, "many") == expected
        assert world.queue("many").counts.since_ms == world.queue("many").counts.created_at_ms == since
        world.publish("many")
        await world.engine.commits.commit()
        await world.crash()  # some of it is here, some there
        assert counted(world, "many") == {**expected, "published": expected["published"] + 1}

    run(tmp_path / "store", steps)


def test_everything_is_counted_once(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        await do_everything(world)
        counts = counted(world, "many")
        assert counts == EXPECTED
        held = len(world.queue("many").messages.in_flight)
        ended = ("acked", "rejected", "requeued", "released", "lease_expired", "deleted")
        assert counts["delivered"] == held + sum(counts[name] for name in ended)
        assert counts["dead_lettered"] == counts["rejected"] + counts["exhausted"] + counts["expired"]

    run(tmp_path / "store", steps)


def test_a_queue_that_comes_again_begins_at_0(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.publish("q")
        await world.engine.commits.checkpoint()
        world.clock.advance(1000)
        world.engine.definitions.drop_queue("q")
        world.engine.definitions.declare_queue("q", QueueSettings())
        await world.engine.commits.commit()
        await world.crash()
        assert counted(world) == {}
        assert world.queue("q").counts.created_at_ms == world.clock.now_ms()
        world.engine.definitions.drop_queue("q")
        await world.engine.commits.checkpoint()
        assert await world.engine.store.get(keys.queue_counts_key("q")) is None

    run(tmp_path / "store", steps)


def test_a_store_without_counters_opens(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.publish("q")
        await world.engine.commits.checkpoint()
        batch = world.engine.store.batch()
        batch.delete(keys.queue_counts_key("q"))
        await world.engine.store.write(batch)
        await world.engine.store.flush_wal()
        world.clock.advance(1000)
        await world.engine.close()
        await world.open()
        counts = world.queue("q").counts
        assert (counted(world), counts.created_at_ms, counts.since_ms) == ({}, 0, world.clock.now_ms())
        world.publish("q")

    run(tmp_path / "store", steps)


def test_counters_are_written_for_queues_in_which_something_happened(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("idle", QueueSettings())
        await world.engine.commits.checkpoint()
        batch = world.engine.store.batch()
        for name in ("q", "idle"):
            batch.delete(keys.queue_counts_key(name))
        await world.engine.store.write(batch)
        world.publish("q")
        world.engine.operations.ack(world.queue("q"), [await world.claim("q")])
        await world.engine.commits.checkpoint()
        value = await world.engine.store.get(keys.queue_counts_key("q"))
        assert value is not None
        assert definitions.decode_counts(b"", value).values[:4] == (1, 1, 0, 1)
        assert await world.engine.store.get(keys.queue_counts_key("idle")) is None

    run(tmp_path / "store", steps)
