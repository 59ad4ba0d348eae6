"""Where there is no journal, an answer waits for the checkpoint that has what it tells of, whoever began that one."""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from kombu_opendata.broker.delivery.active_lease import ActiveLease, seconds_since_boot
from kombu_opendata.broker.delivery.slow_turns import DELIVERY, SlowTurns
from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.model.sessions import ConsumedQueue, Session
from kombu_opendata.broker.wire.connection import ConnectionProtocol
from kombu_opendata.protocol.messages import (
    Cancel,
    Consume,
    Credit,
    DeclareQueue,
    Deliver,
    Delivery,
    Get,
    Got,
    Outcome,
    PauseQueue,
    Publish,
    PublishConfirm,
    Qos,
    Read,
    ReadMessages,
    ResumeQueue,
)
from kombu_opendata.storage.commit.file_calls import FileCalls
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from tests.support.caller import Caller
from tests.support.clock import AdvancedLoop, ManualClock
from tests.support.engine import World, run
from tests.support.waiting import turns, until
from tests.unit.broker.model.test_queue import World as QueueWorld
from tests.unit.broker.model.test_queue import run as run_world

pytestmark = pytest.mark.contract(1)


class Peer:
    """A connection that remembers which publishes were confirmed."""

    writable = True

    def __init__(self) -> None:
        self.confirmed: list[int] = []

    def send_all(self, messages: list[Any]) -> None:
        self.confirmed += [message.rid for message in messages if isinstance(message, PublishConfirm)]


class Gate:
    """Holds each flush of the store until it is let through."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._arrived = asyncio.Semaphore(0)
        self._open = asyncio.Semaphore(0)
        flush = engine.store.flush_wal

        async def held() -> None:
            self._arrived.release()
            await self._open.acquire()
            await flush()

        monkeypatch.setattr(engine.store, "flush_wal", held)

    async def arrived(self) -> None:
        async with asyncio.timeout(60):
            await self._arrived.acquire()

    def let_through(self) -> bool:
        self._open.release()
        return True


def test_an_answer_waits_for_another_ones_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_another_ones_checkpoint(monkeypatch))


async def _another_ones_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await Engine.open(f"memory://{uuid.uuid4().hex}", "default", ManualClock())
    instance = Instance("default", engine, grace_ms=2000, max_message_bytes=1 << 20)
    session = instance.sessions[b"s" * 16] = Session(b"s" * 16, "a producer")
    peer = Peer()
    session.connection = cast(ConnectionProtocol, peer)
    call = Caller(instance, session)
    call(DeclareQueue(1, "q", True, False, False, {}, False))
    await engine.commits.commit()
    gate = Gate(engine, monkeypatch)

    call(Publish(11, 1, "", "q", b"envelope", {}, 0, 1))
    await gate.arrived()  # the first publish is on its way to the store
    other = asyncio.create_task(engine.commits.checkpoint())  # as that of a queue's deletion
    call(Publish(12, 2, "", "q", b"envelope", {}, 0, 1))
    await turns()
    gate.let_through()
    await gate.arrived()  # the second publish, with the other's checkpoint
    await turns(10)
    assert peer.confirmed == [11]
    gate.let_through()
    await other
    await until(lambda: gate.let_through() and peer.confirmed != [11])
    assert peer.confirmed == [11, 12]
    gate.let_through()
    gate.let_through()
    await engine.close()


def test_an_answer_that_needs_no_commit_waits_until_the_tenure_is_renewed() -> None:
    asyncio.run(_over())


async def _over() -> None:
    engine = await Engine.open(f"memory://{uuid.uuid4().hex}", "default", ManualClock())
    active_lease = ActiveLease()
    instance = Instance("default", engine, active_lease, grace_ms=2000, max_message_bytes=1 << 20)
    session = instance.sessions[b"s" * 16] = Session(b"s" * 16, "a producer")
    peer = Peer()
    session.connection = cast(ConnectionProtocol, peer)
    call = Caller(instance, session)
    call(DeclareQueue(1, "q", False, False, False, {}, False))
    await engine.commits.commit()
    active_lease.extend(seconds_since_boot() - 1)
    call(Publish(11, 1, "", "q", b"envelope", {}, 0, 1))  # to a transient queue
    await engine.commits.commit()
    await turns(20)
    assert peer.confirmed == []
    active_lease.extend(seconds_since_boot() + 60)
    await until(lambda: peer.confirmed)
    assert peer.confirmed == [11]
    await engine.close()


def test_an_answer_waits_until_the_disk_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        instance = Instance("default", world.engine, grace_ms=2000, max_message_bytes=1 << 20)
        session = instance.sessions[b"s" * 16] = Session(b"s" * 16, "a producer")
        peer = Peer()
        session.connection = cast(ConnectionProtocol, peer)
        attempts = 0

        def full(*_arguments: Any) -> int:
            nonlocal attempts
            attempts += 1
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(FileCalls, "write_parts", staticmethod(full))
            Caller(instance, session)(Publish(11, 1, "", "q", b"envelope", {}, 0, 1))
            await until(lambda: attempts)
            await turns()
            assert peer.confirmed == []
        await until(lambda: peer.confirmed)
        instance.policies.stop()
        await world.crash()
        assert len(world.queue("q").messages) == 1

    run(tmp_path / "s", steps)


class Receiver:
    """A connection that remembers its deliveries and the tags of those that are new.

    Attributes:
        sizes: the numbers of deliveries that were sent together.
        taken: for each reply to a Get or Read, by its number, the ids of its messages.
    """

    is_local, writable, heartbeat_seconds = True, True, 0.0

    def __init__(self) -> None:
        self.tags: list[str] = []
        self.deliveries: list[Delivery] = []
        self.sizes: list[int] = []
        self.taken: dict[int, list[int]] = {}

    def send_all(self, messages: list[Any]) -> None:
        for message in messages:
            if isinstance(message, Got):
                self.taken[message.rid] = [message.delivery.id] if message.delivery is not None else []
            if isinstance(message, ReadMessages):
                self.taken[message.rid] = [row[0] for row in message.messages]
            if isinstance(message, Deliver):
                self.sizes.append(len(message.deliveries))
                self.tags += [delivery.tag for delivery in message.deliveries]
                self.deliveries += message.deliveries

    def abort(self) -> None:
        """End nothing."""


class Consumers:
    """A queue in memory, a session with consumers, and their deliveries in order."""

    def __init__(self, world: QueueWorld, **arguments: object) -> None:
        self.world = world
        self.queue = world.declare("work", **arguments)
        self.receiver = Receiver()
        world.session.connection = cast(ConnectionProtocol, self.receiver)
        self._published = 0

    def consume(self, tag: str, channel: int = 1, *, no_ack: bool = False, priority: int = 0) -> None:
        self.world.call(Consume(0, channel, tag, "work", no_ack, False, {"x-priority": priority}))

    def publish(self, count: int, *, visible_at: int = 0, envelope: bytes = b"envelope") -> None:
        for _ in range(count):
            self._published += 1
            now = self.world.clock.now_ms()
            self.world.call(Publish(0, self._published, "", "work", envelope, {}, 0, now, visible_at, -1))

    def acknowledge(self, count: int) -> None:
        """Acknowledge the first deliveries."""
        deliveries = self.receiver.deliveries
        leases = [(delivery.queue, delivery.id, delivery.token) for delivery in deliveries[:count]]
        del deliveries[:count]
        self.world.instance.leases.settle(self.world.session, Outcome.ACK, leases)

    def timer_at(self) -> float:
        """Return the time of the loop at which the queue is woken."""
        assert self.queue.timer is not None
        return self.queue.timer.when()

    async def delivered(self) -> str:
        """Return the tags of the consumers of new deliveries."""
        await turns(20)
        tags, self.receiver.tags = "".join(self.receiver.tags), []
        return tags


def consumers_test(steps: Callable[[Consumers], Awaitable[None]], **arguments: object) -> None:
    async def main(world: QueueWorld) -> None:
        await steps(Consumers(world, **arguments))

    run_world(False, main, AdvancedLoop)


def test_three_consumers_take_turns() -> None:
    async def steps(queue: Consumers) -> None:
        for tag in "abc":
            queue.consume(tag)
        queue.publish(7)
        assert await queue.delivered() == "abcabca"

    consumers_test(steps)


def test_consumers_take_turns_and_priorities_come_first() -> None:
    async def steps(queue: Consumers) -> None:
        queue.consume("a")
        queue.consume("b")
        queue.publish(5)
        assert await queue.delivered() == "ababa"
        queue.publish(2)
        assert await queue.delivered() == "ba"
        queue.consume("c", 2, priority=5)
        queue.consume("d", 2, priority=5)
        queue.publish(3)
        assert await queue.delivered() == "cdc"
        queue.world.call(Qos(0, 2, 3))
        queue.publish(4)
        assert await queue.delivered() == "abab", "the channel of the others holds three"

    consumers_test(steps)


def test_a_consumer_without_credit_gets_nothing() -> None:
    async def steps(queue: Consumers) -> None:
        queue.world.call(Qos(0, 1, 2))
        queue.consume("a")
        queue.publish(4)
        assert await queue.delivered() == "aa"
        queue.consume("n", 1, no_ack=True)
        assert await queue.delivered() == "nn", "what needs no settlement is not limited"
        queue.receiver.writable = False
        queue.publish(1)
        assert await queue.delivered() == ""
        queue.receiver.writable = True
        queue.world.session.suspended = True
        queue.world.instance.queues.wake(queue.queue)
        assert await queue.delivered() == ""
        queue.world.session.suspended = False
        queue.world.instance.queues.wake(queue.queue)
        assert await queue.delivered() == "n"

    consumers_test(steps)


def test_each_delivery_costs_one_credit_of_the_channel() -> None:
    async def steps(queue: Consumers) -> None:
        queue.consume("a")
        queue.world.call(Credit(1, 3))
        queue.publish(5)
        before = queue.world.instance.traffic.delivered
        assert await queue.delivered() == "aaa"
        assert queue.world.instance.traffic.delivered == before + 3
        queue.publish(1)
        assert await queue.delivered() == ""
        queue.world.call(Credit(1, 1))
        assert await queue.delivered() == "a"

    consumers_test(steps)


def test_a_client_gets_half_a_mebibyte_in_a_turn() -> None:
    async def steps(queue: Consumers) -> None:
        queue.consume("a")
        queue.publish(5, envelope=bytes(200 << 10))
        assert await queue.delivered() == "aaaaa"
        assert queue.receiver.sizes == [3, 2]

    consumers_test(steps)


def test_a_request_for_a_message_waits_for_it_or_ends_without_it() -> None:
    async def steps(queue: Consumers) -> None:
        call, taken = queue.world.call, queue.receiver.taken
        for rid in (1, 2):
            call(Get(rid, 1, "work", True))
        queue.publish(1)
        await until(lambda: len(taken) == 2)
        assert [len(taken[rid]) for rid in (1, 2)] == [1, 0]
        call(Read(3, "work", 1, 1000, 3_600_000))
        call(PauseQueue(4, "work"))
        call(Get(5, 1, "work", True))
        queue.publish(2)
        await until(lambda: len(taken) == 3)
        assert taken[5] == []
        call(ResumeQueue(6, "work"))
        call(Get(7, 1, "work", True))
        await until(lambda: len(taken) == 5)
        assert taken[3] < taken[7], "the first request gets the first message"

    consumers_test(steps)


class SlowGetter:
    """A request that takes a message while the time of the loop advances by a second."""

    def __init__(self, session: Session, loop: AdvancedLoop) -> None:
        self.session, self._loop = session, loop

    def take(self, _queue: ConsumedQueue, _entry: QueueEntry, _now: int) -> bool:
        self._loop.advance(1)
        return True

    def nothing(self) -> bool:
        return True

    def end(self) -> None:
        """End nothing."""

    def drop(self) -> None:
        """Drop nothing."""


def test_a_slow_turn_whose_commits_were_fast_counts_as_a_slow_delivery() -> None:
    async def steps(queue: Consumers) -> None:
        loop, world = cast(AdvancedLoop, asyncio.get_running_loop()), queue.world
        world.instance.policies.stop()
        slow_turns = SlowTurns(loop)
        instance = Instance("default", world.engine, grace_ms=2000, max_message_bytes=1 << 20, slow_turns=slow_turns)
        call = Caller(instance, world.session)
        call(DeclareQueue(1, "slow", False, False, False, {}, False))
        instance.queues["slow"].getters.append(SlowGetter(world.session, loop))
        call(Publish(2, 1, "", "slow", b"envelope", {}, 0, world.clock.now_ms(), 0, -1))
        await until(lambda: slow_turns.counts)
        assert slow_turns.counts == {DELIVERY: 1}
        instance.policies.stop()

    consumers_test(steps)


def test_an_acknowledgement_delivers_from_the_queues_that_waited_for_the_channel_in_their_order() -> None:
    async def steps(queue: Consumers) -> None:
        queue.world.call(Qos(0, 1, 2))
        queues = [queue.queue, *(queue.world.declare(name) for name in ("second", "third", "fourth"))]
        for tag, each in zip("abcd", queues, strict=True):
            queue.world.call(Consume(0, 1, tag, each.name, False, False, {}))
        for number, each in enumerate((queues[0], queues[0], *queues[1:]), 1):
            queue.world.call(Publish(0, number, "", each.name, b"envelope", {}, 0, queue.world.clock.now_ms()))
        assert await queue.delivered() == "aa", "the channel holds two"
        queue.acknowledge(1)
        assert await queue.delivered() == "b", "and another one for each that it settles"
        queues[2].deleting = True
        queue.acknowledge(2)
        assert await queue.delivered() == "d", "a queue that is being deleted delivers nothing"

    consumers_test(steps)


def test_a_single_active_consumer_is_succeeded_by_the_next() -> None:
    async def steps(queue: Consumers) -> None:
        queue.consume("a")
        queue.consume("b", 2)
        queue.world.call(Qos(0, 1, 2))
        queue.publish(3)
        assert await queue.delivered() == "aa", "the other one waits, although this one is full"
        queue.world.call(Cancel(0, 1, "a"))
        assert await queue.delivered() == "b"

    consumers_test(steps, **{"x-single-active-consumer": True})


def test_a_delayed_message_is_delivered_at_its_time() -> None:
    async def steps(queue: Consumers) -> None:
        queue.consume("a")
        loop = cast(AdvancedLoop, asyncio.get_running_loop())
        before = loop.time()
        queue.publish(1, visible_at=queue.world.clock.now_ms() + 5000)
        assert await queue.delivered() == ""
        assert before + 5 <= queue.timer_at() <= loop.time() + 5
        queue.publish(1, visible_at=queue.world.clock.now_ms() + 86_400_000)
        assert await queue.delivered() == ""
        queue.world.clock.advance(5000)
        loop.advance(6)
        before = loop.time()
        assert await queue.delivered() == "a"
        assert before + 3600 <= queue.timer_at() <= loop.time() + 3600, "at most an hour"

    consumers_test(steps)


def test_a_queue_at_its_rate_delivers_at_the_time_of_the_next_token() -> None:
    async def steps(queue: Consumers) -> None:
        queue.consume("a")
        loop = cast(AdvancedLoop, asyncio.get_running_loop())
        before = loop.time()
        queue.publish(4)
        assert await queue.delivered() == "aa"
        assert before + 9.9 <= queue.timer_at() <= loop.time() + 10, "the bucket has a slack of 50 ms"
        queue.world.clock.advance(10_000)
        loop.advance(11)
        assert await queue.delivered() == "a"

    consumers_test(steps, **{"x-rate": "6/m:2"})
