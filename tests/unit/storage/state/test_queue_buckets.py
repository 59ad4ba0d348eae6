"""Deadlines, delays and sizes by a queue's arguments, on real stores, with crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kombu_opendata.protocol.queue_arguments import UNLIMITED_ATTEMPTS
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.state.queue_buckets import TTL_HEADER, stored_deadline
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import OTHER, SESSION, SMALL_BUCKETS, World, run
from tests.support.plain_store import PlainStore

pytestmark = pytest.mark.contract(8, 9)


def declare(world: World, name: str, max_attempts: int = 20, lease_seconds: int = 60, **arguments: int) -> None:
    given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    world.engine.definitions.declare_queue(
        name, QueueSettings(max_attempts, lease_seconds=lease_seconds, arguments=given)
    )


def deadlines(world: World, *names: str) -> list[int]:
    """Of each queue's only message, ms from now."""
    found = []
    for name in names:
        messages = world.queue(name).messages
        (entry,) = (*messages.available.values(), *messages.in_flight.values())
        found.append(entry.deadline and entry.deadline - world.clock.now_ms())
    return found


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("claimed", [False, True])
def test_a_message_has_a_deadline_in_each_queue(tmp_path: Path, checkpointed: bool, claimed: bool) -> None:
    async def steps(world: World) -> None:
        names = "none", "short", "long", "instant"
        for name, arguments in zip(names, [{}, {"message_ttl": 1500}, {"message_ttl": 9000}, {}], strict=True):
            declare(world, name, **arguments)
        world.publish(*names[:3], ttl_ms=4000)
        world.publish("instant", visible_at=world.clock.now_ms() + 700)
        declare(world, "later", message_ttl=100)
        world.publish("later", visible_at=world.clock.now_ms() + 700)
        if claimed:
            for name in names[:3]:
                await world.claim(name)
        await (world.engine.commits.checkpoint() if checkpointed else world.engine.commits.commit())
        await world.crash()
        assert deadlines(world, *names, "later") == [4000, 1500, 4000, 0, 800]
        world.clock.advance(1500)
        for name in names:
            await world.engine.collector.expire(world.queue(name), world.clock.now_ms())
        waiting = [len(world.queue(name).messages) for name in names[:3]]
        assert waiting == ([0, 0, 0] if claimed else [1, 0, 1])

    run(tmp_path / "s", steps)


RETURNS = {
    "released": {"costs_attempt": False},
    "requeued": {"costs_attempt": True},
    "lease expired": {"costs_attempt": True, "lease_expired": True},
}


@pytest.mark.parametrize("ttl_ms", [4050, 4000, 400])
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("how", RETURNS)
def test_a_message_that_was_held_at_a_crash_expires_to_the_millisecond(
    tmp_path: Path, how: str, checkpointed: bool, ttl_ms: int
) -> None:
    ends_at = 0

    async def again(world: World) -> None:
        """Claimed before a crash and returned after it."""
        await world.claim("q")
        await (world.engine.commits.checkpoint() if checkpointed else world.engine.commits.commit())
        await world.crash()
        (entry,) = world.queue("q").messages.in_flight.values()
        world.clock.advance(ends_at - 1 - world.clock.now_ms())
        world.engine.operations.put_back(world.queue("q"), (entry,), "worker", **RETURNS[how])

    async def steps(world: World) -> None:
        nonlocal ends_at
        ends_at = world.clock.now_ms() + ttl_ms
        world.publish("q", ttl_ms=ttl_ms)
        await again(world)
        assert await world.next("q") is not None
        world.clock.advance(1)
        assert await world.next("q") is None

    run(tmp_path / "s", steps)


@pytest.mark.parametrize("ttl_ms", [0, 1, 999, 1000, 1001, 4050, 1 << 50])
def test_the_metadata_says_the_deadline_to_the_millisecond(tmp_path: Path, ttl_ms: int) -> None:
    """That is where replay and redrive read it."""
    received_at = 0

    async def steps(world: World) -> None:
        nonlocal received_at
        received_at = world.clock.now_ms()
        world.publish("q", ttl_ms=ttl_ms)

    (stored,) = PlainStore(run(tmp_path / "s", steps).root).of[RecordKind.METADATA].values()
    assert stored.retention_seconds == min(max(-(-ttl_ms // 1000), 1), 0xFFFF_FFFF)
    assert stored_deadline(received_at, stored.retention_seconds, stored.headers) == received_at + ttl_ms
    assert len(stored.headers) == (ttl_ms != 1000 * stored.retention_seconds)


@pytest.mark.parametrize("text", ["1000", "3001", "-1", "", "x", "9" * 5000, "\u0662"])
def test_a_producers_own_header_does_not_change_a_deadline(text: str) -> None:
    assert stored_deadline(5, 3, {TTL_HEADER: text}) == 3005
    assert stored_deadline(5, 0, {TTL_HEADER: text}) == 0


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_delay_after_a_return_survives_a_crash(tmp_path: Path, checkpointed: bool) -> None:
    async def steps(world: World) -> None:
        declare(world, "slow", retry_delay=1000, retry_max_delay=1500)
        world.publish("slow")
        for attempt, delay in enumerate([1000, 1500, 1500], 1):
            entry = await world.claim("slow")
            assert entry.attempts == attempt
            world.engine.operations.put_back(world.queue("slow"), (entry,), "worker", costs_attempt=True)
            await (world.engine.commits.checkpoint() if checkpointed else world.engine.commits.commit())
            await world.crash()
            world.clock.advance(delay - 1)
            assert await world.next("slow") is None
            world.clock.advance(1)
            assert await world.next("slow") is not None
        entry = await world.claim("slow")
        world.engine.operations.put_back(world.queue("slow"), (entry,), "worker", costs_attempt=False)
        assert await world.next("slow") is entry  # a release costs nothing

    run(tmp_path / "s", steps)


def test_no_limit_of_attempts(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world, "patient", UNLIMITED_ATTEMPTS)
        world.publish("patient")
        for _ in range(3):
            entry = await world.claim("patient")
            entry.attempts = UNLIMITED_ATTEMPTS
            world.engine.operations.put_back(world.queue("patient"), (entry,), "worker", costs_attempt=True)
        assert len(world.queue("patient").messages) == 1

    store = PlainStore(run(tmp_path / "s", steps).root)
    assert store.rows(RecordKind.FAILED, "patient") == []


def test_leases_are_renewed_by_their_queues_lease(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world, "short", lease_seconds=30)
        declare(world, "long", lease_seconds=600)
        world.publish("short", "long")
        held = [await world.claim(name) for name in ("short", "long")]
        world.clock.advance(20_000)
        world.engine.operations.renew_by_queue(SESSION)
        world.engine.operations.renew_by_queue(OTHER)
        now = world.clock.now_ms()
        assert [entry.lease_until - now for entry in held] == [30_000, 600_000]
        await world.engine.commits.commit()
        await world.crash()
        held = [entry for name in ("short", "long") for entry in world.queue(name).messages.in_flight.values()]
        assert [entry.lease_until - now for entry in held] == [30_000, 600_000]

    run(tmp_path / "s", steps)


def test_sizes_are_known_after_a_crash_also_of_cold_buckets(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world, "bytes", max_length_bytes=1)
        sizes = [*range(40), 70_000]
        for size in sizes:
            world.publish("bytes", envelope=b"x" * size)
        messages = world.queue("bytes").messages
        assert messages.available_bytes == sum(sizes)
        await world.engine.commits.checkpoint()
        assert messages.cold
        assert messages.available_bytes == sum(sizes)
        for size in (50, 60):  # in the journal only
            world.publish("bytes", envelope=b"x" * size)
        await world.claim("bytes")
        entry = await world.claim("bytes")
        assert entry.size == 1
        await world.engine.commits.commit()
        await world.crash()
        messages = world.queue("bytes").messages
        assert messages.cold
        assert messages.available_bytes == sum(sizes) + 110 - 1
        world.engine.operations.put_back(
            world.queue("bytes"), tuple(messages.in_flight.values()), "w", costs_attempt=False
        )
        assert messages.available_bytes == sum(sizes) + 110
        drop = world.engine.collector.drop_oldest(world.queue("bytes"), lambda: messages.available_bytes > 70_110)
        assert await drop == 40
        assert not messages.cold
        assert [entry.size for entry in messages.available.values()] == [70_000, 50, 60]
        await world.engine.commits.commit()
        await world.crash()
        assert [entry.size for entry in world.queue("bytes").messages.available.values()] == [70_000, 50, 60]

    run(tmp_path / "s", steps, SMALL_BUCKETS)


def test_expired_messages_of_cold_buckets_go(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        declare(world, "q2", message_ttl=5000)
        queue = world.queue("q2")
        for number in range(40):
            world.publish("q2", ttl_ms=1000 if number % 2 else -1)
        await world.engine.commits.checkpoint()
        assert queue.messages.cold
        now = world.clock.now_ms()
        assert queue.messages.next_deadline == now + 1000
        assert await world.engine.collector.expire(queue, now + 999) == 0
        world.clock.advance(1000)
        assert await world.engine.collector.expire(queue, now + 1000) == 20
        assert (len(queue.messages), queue.messages.next_deadline) == (20, now + 5000)
        await world.engine.commits.commit()
        await world.crash()
        queue = world.queue("q2")
        assert await world.engine.collector.expire(queue, now + 1000) == 0
        assert (len(queue.messages), queue.messages.next_deadline) == (20, now + 5000)
        assert await world.engine.collector.expire(queue, now + 5000) == 20
        assert queue.messages.next_deadline == 0

    run(tmp_path / "s", steps, SMALL_BUCKETS)
