"""The deletion of a queue whose commit fails: the queue exists, or its name is free."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.errors import StoreFull
from kombu_opendata.protocol.messages import DeclareQueue, Publish
from kombu_opendata.storage.commit.file_calls import FileCalls
from tests.support.caller import Caller
from tests.support.disks import failing
from tests.support.engine import SMALL_BUCKETS, World, run
from tests.support.waiting import until


def test_a_queue_that_was_deleted_while_the_disk_was_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        instance = Instance("default", world.engine, grace_ms=1000, max_message_bytes=1 << 20)
        instance.sessions[16 * b"s"] = session = Session(16 * b"s", "a producer")
        call = Caller(instance, session)
        declare = DeclareQueue(1, "w", True, False, False, {}, False)
        call(declare)
        queue = instance.queues["w"]
        await world.engine.commits.commit()
        with monkeypatch.context() as patch:
            patch.setattr(FileCalls, "write_parts", staticmethod(failing(errno.ENOSPC)))
            with pytest.raises(StoreFull):
                await instance.queues.delete(queue)
        assert queue.deleting
        assert "w" not in instance.queues
        call(declare)
        call(Publish(2, 1, "", "w", b"envelope", {}, 0, world.clock.now_ms(), 0, -1))
        await world.engine.commits.commit()
        instance.policies.stop()
        await world.crash()
        assert len(world.queue("w").messages) == 1

    run(tmp_path / "s", steps)


def test_a_deletion_that_is_cancelled_keeps_the_queue(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        for _ in range(700):
            world.publish("q")
        await world.engine.commits.checkpoint()
        await world.crash()
        instance = Instance("default", world.engine, grace_ms=1000, max_message_bytes=1 << 20)
        deletion = asyncio.create_task(instance.queues.delete(instance.queues["q"]))
        await until(lambda: len(world.queue("q").messages) < 700, poll_seconds=0)
        deletion.cancel()
        with pytest.raises(asyncio.CancelledError):
            await deletion
        assert not instance.queues["q"].deleting
        instance.policies.stop()

    run(tmp_path / "s", steps, SMALL_BUCKETS)
