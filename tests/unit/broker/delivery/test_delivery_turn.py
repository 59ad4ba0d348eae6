"""Where there is no journal, an answer waits for the checkpoint that has what it tells of, whoever began that one."""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from pathlib import Path
from typing import Any, cast

import pytest

from kombu_opendata.broker.delivery.active_lease import ActiveLease, seconds_since_boot
from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.broker.wire.connection import ConnectionProtocol
from kombu_opendata.protocol.messages import DeclareQueue, Publish, PublishConfirm
from kombu_opendata.storage.engine import Engine
from tests.support.caller import Caller
from tests.support.clock import ManualClock
from tests.support.engine import World, run
from tests.support.waiting import turns, until

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
            patch.setattr(os, "pwritev", full)
            Caller(instance, session)(Publish(11, 1, "", "q", b"envelope", {}, 0, 1))
            await until(lambda: attempts)
            await turns()
            assert peer.confirmed == []
        await until(lambda: peer.confirmed)
        instance.policies.stop()
        await world.crash()
        assert len(world.queue("q").messages) == 1

    run(tmp_path / "s", steps)
