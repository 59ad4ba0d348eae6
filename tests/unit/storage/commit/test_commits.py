"""Commits when the disk fails, and partitions that changed again."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kombu_opendata.errors import StoreUnwritable
from kombu_opendata.storage.commit.file_calls import FileCalls
from kombu_opendata.storage.records.definitions import QueueOverrides
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.engine import SETTINGS, World, run, sized


def test_nothing_is_committed_again_after_a_sync_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal has the effects by then: with a second record of them, a recovery would apply them twice."""

    def broken(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def steps(world: World) -> None:
        commits, journal = world.engine.commits, world.engine.journal
        assert journal is not None
        world.publish("q")
        await commits.commit()
        entry = await world.claim("q")
        commits.commit_journal()  # nobody waits, so it is not synced
        world.engine.operations.ack(world.queue("q"), (entry,))
        with monkeypatch.context() as patched:
            patched.setattr(FileCalls, "sync_data", staticmethod(broken))
            with pytest.raises(StoreUnwritable):
                await commits.commit()
        sequence = journal.sequence
        with pytest.raises(StoreUnwritable):
            await commits.commit()
        with pytest.raises(StoreUnwritable):
            await commits.checkpoint()
        assert journal.sequence == sequence
        await world.crash()
        assert world.queue("q").counts.as_dict()["acked"] == 1

    run(tmp_path / "s", steps, replace(SETTINGS, sync=True))


def test_the_known_room_is_never_more_than_the_room(tmp_path: Path) -> None:
    async def steps(world: World) -> None:
        commits, journal = world.engine.commits, world.engine.journal
        assert journal is not None
        reserved, bounds = world.settings.sizes.reserved_bytes, set()
        for number in range(300):
            size = 10 + 997 * number % 5000
            if number % 7 == 0:
                commits.check_room(size)
            for _ in range(number % 3):
                world.publish("q", envelope=bytes(size))
            commits.commit_journal()
            assert commits.room_bytes <= journal.room - reserved
            bounds.add(commits.room_bytes)
            if number % 50 == 49:
                await commits.checkpoint()
                journal.prepare_spare()
        assert max(bounds) > 0 > min(bounds), "the bound allowed publishes, and was corrected"

    run(tmp_path / "s", steps, sized(reserved_bytes=4 << 10))


@pytest.mark.parametrize(("tenants", "rewrites"), [("a", False), ("ab", False), ("abc", True), ("abcd", True)])
def test_most_partitions_have_changed_again(tmp_path: Path, tenants: str, rewrites: bool) -> None:
    """There are four partitions, and the first one of every queue. A queue without partitions counts nothing."""

    async def steps(world: World) -> None:
        world.engine.definitions.declare_queue("plain", QueueSettings())
        world.engine.definitions.override_queue("q", QueueOverrides(arguments={"x-partition-by": "tenant"}))
        for tenant in "abcd":
            world.publish("q", headers={"tenant": tenant})
        await world.engine.commits.checkpoint()
        world.publish("plain")
        assert not world.engine.commits.rewrites_partitions
        for tenant in tenants:
            world.publish("q", headers={"tenant": tenant})
        assert world.engine.commits.rewrites_partitions is rewrites

    run(tmp_path / "s", steps)
