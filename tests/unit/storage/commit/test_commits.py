"""Commits when the disk fails."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from kombu_opendata.errors import StoreUnwritable
from tests.support.engine import SETTINGS, World, run


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
            patched.setattr(os, "fdatasync", broken)
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
