"""What a queue counts, alike for stored and transient queues; on a real engine in memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.model.queue import BrokerQueue
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.errors import StoreError
from kombu_opendata.protocol.messages import DeclareQueue, DeleteQueue, Get, Outcome, Publish, PurgeQueue
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.slatedb.store_writer import SlateStore
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from kombu_opendata.storage.state.queue_counters import QueueCounts
from tests.support.caller import Caller
from tests.support.clock import AdvancedLoop, ManualClock
from tests.support.waiting import until

pytestmark = pytest.mark.contract(2, 5)

PATIENCE_SECONDS = 60
GRACE_MS = 2000
SETTINGS = EngineSettings(retention_interval_seconds=1000)


class World:
    """An instance with a queue ``q`` of either kind, whose dead letters go to ``dead``, and a client that uses it."""

    def __init__(self, durable: bool) -> None:
        self.durable = durable
        self.clock = ManualClock()

    async def open(self) -> None:
        self.engine = await Engine.open(f"memory://{uuid.uuid4().hex}", "default", self.clock, SETTINGS)
        self.instance = Instance("default", self.engine, grace_ms=GRACE_MS, max_message_bytes=1 << 20)
        self.new_session(b"s")
        self.declare("dead")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 2}
        self.queue = self.declare("q", **(arguments | ({"x-delivery-limit": 2} if self.durable else {})))

    def new_session(self, letter: bytes) -> None:
        self.session = self.instance.sessions[16 * letter] = Session(16 * letter, "a consumer")
        self.session.lost_at_ms = self.clock.now_ms()  # it has no connection
        self.call = Caller(self.instance, self.session)

    def restart(self) -> None:
        """Open another instance with the same store, which has no sessions."""
        self.instance.policies.stop()
        self.instance = Instance("default", self.engine, grace_ms=GRACE_MS, max_message_bytes=1 << 20)

    def declare(self, name: str, **arguments: object) -> BrokerQueue:
        self.call(DeclareQueue(1, name, self.durable, False, False, arguments, False))
        return self.instance.queues[name]

    def publish(self, *, ttl_ms: int = -1) -> None:
        seq = self.instance.traffic.published + 1
        self.call(Publish(2, seq, "", "q", b"envelope", {}, 0, self.clock.now_ms(), 0, ttl_ms))

    async def claim(self, *, no_ack: bool = False) -> QueueEntry | None:
        before = set(self.queue.messages.in_flight)
        delivered = self.queue.counts.delivered
        self.call(Get(3, 1, "q", no_ack))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await until(lambda: self.queue.counts.delivered != delivered)
        new = set(self.queue.messages.in_flight) - before
        return self.queue.messages.in_flight[new.pop()] if new else None

    async def settle(self, outcome: Outcome) -> None:
        entry = await self.claim()
        assert entry is not None
        self.instance.leases.settle(self.session, outcome, [("q", entry.id, entry.claimed_at)])
        self.clock.advance(2)  # what came back is visible after its claim


def counted(world: World) -> dict[str, int]:
    """What is not 0."""
    return {name: value for name, value in world.queue.counts.as_dict().items() if value}


Test = Callable[[World], Awaitable[None]]


def run(durable: bool, test: Test, loop: type[AdvancedLoop] | None = None) -> None:
    async def main() -> None:
        world = World(durable)
        await world.open()
        await test(world)
        await world.engine.commits.commit()
        world.instance.policies.stop()
        await world.engine.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


both_kinds = pytest.mark.parametrize("durable", [True, False], ids=["stored", "transient"])


@both_kinds
def test_every_end_of_a_lease_has_a_counter(durable: bool) -> None:
    async def steps(world: World) -> None:
        world.publish()
        world.publish()
        await world.settle(Outcome.ACK)
        await world.settle(Outcome.RELEASE)
        await world.settle(Outcome.REQUEUE)
        await world.settle(Outcome.REJECT)
        world.publish()
        assert await world.claim(no_ack=True) is None
        assert counted(world) == {
            "published": 3, "delivered": 5, "redelivered": 2, "acked": 2, "released": 1, "requeued": 1, "rejected": 1,
            "dead_lettered": 1,
        }  # fmt: skip

    run(durable, steps)


@both_kinds
def test_expired_dropped_and_purged_messages_are_told_apart(durable: bool) -> None:
    async def steps(world: World) -> None:
        for _ in range(3):
            world.publish()
        world.instance.policies.end_turn()  # at most two
        world.call(PurgeQueue(9, "q"))
        await world.call.done()
        world.publish(ttl_ms=10)
        world.clock.advance(20)
        await world.instance.policies.tend()
        assert counted(world) == {"published": 4, "dropped": 1, "purged": 2, "expired": 1, "dead_lettered": 2}

    run(durable, steps)


@both_kinds
def test_a_lease_that_ends_with_its_session_is_no_requeue(durable: bool) -> None:
    async def steps(world: World) -> None:
        world.publish()
        await world.claim()
        world.clock.advance(GRACE_MS + 1)
        assert world.instance.lease_expiry.expire() == 1
        assert counted(world) == {"published": 1, "delivered": 1, "lease_expired": 1}
        world.new_session(b"t")
        world.clock.advance(2)
        await world.claim()
        assert counted(world) == {"published": 1, "delivered": 2, "redelivered": 1, "lease_expired": 1}

    run(durable, steps)


def test_a_message_without_attempts_left_counts_as_exhausted() -> None:
    async def steps(world: World) -> None:
        world.publish()
        await world.settle(Outcome.REQUEUE)
        await world.settle(Outcome.REQUEUE)
        assert counted(world) == {
            "published": 1, "delivered": 2, "redelivered": 1, "requeued": 2, "exhausted": 1, "dead_lettered": 1,
        }  # fmt: skip

    run(True, steps)


def test_counters_add_up() -> None:
    total, one = QueueCounts(), QueueCounts()
    one.published, one.purged = 3, 1
    total.add(one)
    total.add(one)
    assert {name for name, value in total.as_dict().items() if value} == {"published", "purged"}
    assert (total.published, total.purged) == (6, 2)


def test_a_queue_that_could_not_be_deleted_takes_messages_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scan(*_args: object, **_options: object) -> None:
        raise StoreError("the store does not answer")

    async def steps(world: World) -> None:
        world.publish()
        with monkeypatch.context() as patch:
            patch.setattr(SlateStore, "scan", scan)
            world.call(DeleteQueue(9, "q", False, False))
            await world.call.done()
        world.publish()
        assert (world.queue.counts.published, len(world.queue.messages)) == (2, 2)
        world.call(DeleteQueue(10, "q", False, False))
        await world.call.done()
        assert "q" not in world.instance.queues

    run(True, steps)
