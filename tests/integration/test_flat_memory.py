"""Client and broker forget what has ended: their memory stays flat while objects of each kind come and go."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from kombu_opendata.broker import memory
from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.declared import Declared
from kombu_opendata.storage.engine import Engine
from tests.support.caller import Caller
from tests.support.clock import ManualClock

from ..support.kombu_client import connected, declare, drain_until, send
from ..support.processes import wait_until

#: what a cycle may leave behind: tables grow, and the broker samples figures
BYTES_PER_CYCLE = 250
WARM_UP = 200
ROUNDS = 4


class World:
    """A broker in this process, a channel to it, and a new name for each cycle."""

    def __init__(self, url: str, connection: Any) -> None:
        self.url = url
        self.connection = connection
        self.channel = connection.channel()
        self.control = Celery(broker=url, set_as_current=False).control
        self._numbers = count()
        self.channel.exchange_declare("topic", "topic", durable=True, auto_delete=False)
        declare(self.channel, "fixed")

    def name(self) -> str:
        return f"name {next(self._numbers)}"

    def call(self, message: Any) -> Any:
        return self.channel.connection.call(message)


@contextmanager
def traced() -> Iterator[None]:
    """Trace allocations until SlateDB's threads rest: CPython may crash if it stops tracing while others allocate."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


@pytest.fixture
def world() -> Iterator[World]:
    name = uuid.uuid4().hex
    url = f"opendata+memory://{name}"
    with traced():
        with connected(url) as connection:
            yield World(url, connection)
        memory.stop(name)


def _cycle_queue(world: World, *, durable: bool = False, **properties: Any) -> str:
    name = world.name()
    declare(world.channel, name, durable=durable, **properties)
    return name


def stored_queue(world: World) -> None:
    world.channel.queue_delete(_cycle_queue(world, durable=True))


def transient_queue(world: World) -> None:
    name = _cycle_queue(world)
    world.channel.queue_bind(name, "topic", name)
    world.channel.queue_delete(name)


def exclusive_queue(world: World) -> None:
    world.channel.queue_delete(_cycle_queue(world, exclusive=True))


def expired_queue(world: World) -> None:
    _cycle_queue(world, exclusive=True, arguments={"x-expires": 1})


def auto_delete_queue(world: World) -> None:
    name = _cycle_queue(world, auto_delete=True)
    world.channel.basic_cancel(world.channel.basic_consume(name, callback=print))


def single_active_consumer(world: World) -> None:
    name = _cycle_queue(world, exclusive=True, arguments={"x-single-active-consumer": True})
    got: list[Any] = []
    world.channel.basic_consume(name, callback=got.append, on_cancel=lambda tag: None)
    send(world.channel, name, "message")
    drain_until(world.connection, lambda: got)
    got[0].ack()
    world.channel.queue_delete(name)


def stored_queue_with_a_single_active_consumer(world: World) -> None:
    name = _cycle_queue(world, durable=True, arguments={"x-single-active-consumer": True})
    world.channel.basic_cancel(world.channel.basic_consume(name, callback=print))
    world.channel.queue_delete(name)


def exchange(world: World) -> None:
    name = world.name()
    world.channel.exchange_declare(name, "topic", durable=False, auto_delete=False)
    world.channel.queue_bind("fixed", name, "a.*")
    world.channel.exchange_delete(name)


def binding(world: World) -> None:
    name = world.name()
    world.channel.queue_bind("fixed", "topic", f"{name}.*")
    send(world.channel, "of no binding", exchange="topic")
    world.channel.queue_unbind("fixed", "topic", f"{name}.*")


def consumer(world: World) -> None:
    world.channel.basic_cancel(world.channel.basic_consume("fixed", callback=print, consumer_tag=world.name()))


def channel(world: World) -> None:
    opened = world.connection.channel()
    opened.basic_qos(0, 3, False)
    opened.basic_consume("fixed", callback=print)
    opened.close()


def filter_queue(world: World) -> None:
    world.channel.queue_delete(_cycle_queue(world, arguments={"x-filter": f"task = '{world.name()}'"}))
    world.call(m.Read(0, "fixed", 1, 1000, selector=f"task = '{world.name()}'"))


def replay(world: World) -> None:
    world.call(m.Replay(0, "fixed", "first", "now"))


def watch(world: World) -> None:
    name = world.name().encode()
    world.call(m.WatchResults(0, [name]))
    world.channel.connection.io.send(m.UnwatchResults(0, [name]))


def connection(world: World) -> None:
    """With a producer's identity, a queue of its own and an answer that is kept for a repetition."""
    with connected(world.url) as other:
        opened = other.channel()
        name = world.name()
        declare(opened, name, durable=False, exclusive=True)
        send(opened, name, "message")
        opened.connection.call(m.SettleMessages(0, "fixed", 0, [(1, 0)]))


def ping_of_workers(world: World) -> None:
    world.control.ping(timeout=0.001)


#: how often each kind comes and goes, in a quick run and in a slow one; some commit to the store each time
CYCLES: dict[Callable[[World], None], tuple[int, int]] = {
    stored_queue: (300, 1000),
    transient_queue: (400, 5000),
    exclusive_queue: (400, 5000),
    auto_delete_queue: (400, 5000),
    single_active_consumer: (400, 5000),
    stored_queue_with_a_single_active_consumer: (300, 1000),
    exchange: (400, 5000),
    binding: (300, 1000),
    consumer: (400, 5000),
    channel: (400, 5000),
    filter_queue: (400, 5000),
    replay: (300, 1000),
    watch: (400, 5000),
    connection: (300, 1000),
    ping_of_workers: (300, 1000),
}


def _check_memory(cycle: Callable[[World], None], world: World, cycles: int, settle: Callable[[], None]) -> None:
    """Run cycles in rounds: what is never forgotten grows in each, an enlarged table or a checkpoint in one."""

    def run(times: int) -> None:
        for _ in range(times):
            cycle(world)

    def memory_bytes() -> int:
        settle()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    run(WARM_UP)
    for number in range(ROUNDS):
        before = memory_bytes()
        if number == ROUNDS - 1:
            snapshot = tracemalloc.take_snapshot()
        run(cycles)
        grown = memory_bytes() - before
        if grown / cycles < BYTES_PER_CYCLE:
            return
    places = tracemalloc.take_snapshot().compare_to(snapshot, "lineno")[:20]
    pytest.fail(f"{grown:,} bytes more after {cycles:,} cycles:\n" + "\n".join(map(str, places)))


def _alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.parametrize("run", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["quick", "slow"])
@pytest.mark.parametrize("cycle", CYCLES, ids=lambda cycle: cycle.__name__)
def test_what_ends_is_forgotten(world: World, cycle: Callable[[World], None], run: int) -> None:
    _check_memory(cycle, world, CYCLES[cycle][run], lambda: world.call(m.Ping(0)))


def test_queues_that_expire_are_forgotten(world: World) -> None:
    def settle() -> None:
        names = m.ListQueues(0)
        wait_until(lambda: len(world.call(names).queues) == 1, 60, "the end of all queues but one")

    _check_memory(expired_queue, world, 1000, settle)


@pytest.mark.slow
def test_sessions_that_are_lost_are_forgotten(world: World) -> None:
    def lost_connection(world: World) -> None:
        with connected(world.url) as other:
            opened = other.channel().connection
            opened.call(m.DeclareQueue(0, world.name(), False, True, False, {}, False))
            opened.link.drop()

    gc.collect()
    before = _alive(Session)

    def settle() -> None:
        wait_until(lambda: _alive(Session) <= before, 60, "the end of the lost sessions")

    _check_memory(lost_connection, world, 300, settle)


def test_staged_jobs_that_are_aborted_are_forgotten(tmp_path: Path) -> None:
    asyncio.run(_abort_jobs(tmp_path))


async def _abort_jobs(folder: Path) -> None:
    engine = await Engine.open(f"file://{folder}/store", "default", ManualClock())
    instance = Instance("default", engine, grace_ms=2000, max_message_bytes=1 << 20)
    session = instance.sessions[b"s" * 16] = Session(b"s" * 16, "a driver")
    call = Caller(instance, session)

    async def run(jobs: int) -> int:
        for _ in range(jobs):
            call(m.AbortJob(1, str(uuid.uuid4()), []))
            await call.done()
        await engine.commits.commit()
        session.replies.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    with traced():
        try:
            before = await run(WARM_UP)
            assert (await run(300) - before) / 300 < BYTES_PER_CYCLE
        finally:
            await engine.close()


def test_a_binding_declared_with_other_arguments_is_remembered_once(tmp_path: Path) -> None:
    asyncio.run(_bind_again(tmp_path))


async def _bind_again(folder: Path) -> None:
    engine = await Engine.open(f"file://{folder}/store", "default", ManualClock())
    instance = Instance("default", engine, grace_ms=2000, max_message_bytes=1 << 20)
    session = instance.sessions[b"s" * 16] = Session(b"s" * 16, "a client")
    declared = session.declared = Declared()
    call = Caller(instance, session)
    call(m.DeclareQueue(1, "q", False, False, False, {}, False))
    for number in range(50):
        call(m.Bind(1, "q", "amq.topic", "k", {"n": number}))
        call(m.Bind(1, "q", "amq.headers", "", {"n": number}))
    assert len(list(declared.declarations())) == 1 + 1 + 50
    call(m.Unbind(1, "q", "amq.topic", "k", {"n": "another"}))
    call(m.Unbind(1, "q", "amq.headers", "", {"n": 7}))
    assert len(list(declared.declarations())) == 1 + 49
    await engine.close()
