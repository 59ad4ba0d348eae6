"""The files of an open store: one sync at a time, also after a caller that was cancelled; and on a full disk."""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kombu_opendata.storage.commit import power_loss, store_files
from kombu_opendata.storage.engine_settings import EngineSettings
from tests.support.disks import small_disk
from tests.support.engine import World, run


def test_a_sync_that_goes_on_after_its_caller_was_cancelled_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, together = threading.Event(), threading.Event()
    inside = 0

    def sync_tree(_folder: Path, since: object) -> object:
        nonlocal inside
        inside += 1
        if inside > 1:
            together.set()
        entered.set()
        together.wait(0.3)
        inside -= 1
        return since

    async def collect_all(_admin: object) -> None:
        """There is no garbage."""

    monkeypatch.setattr(power_loss, "sync_tree", sync_tree)
    monkeypatch.setattr(power_loss, "mark_clean", lambda folder: sync_tree(folder, None))
    monkeypatch.setattr(store_files, "collect_all", collect_all)

    async def cancel_and_end() -> None:
        files = store_files.StoreFiles(tmp_path, sync=True)
        first = asyncio.create_task(files.sync())
        await asyncio.to_thread(entered.wait, 10)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        await files.end(cast(Any, SimpleNamespace()), 10)

    asyncio.run(cancel_and_end())
    assert not together.is_set(), "two threads wrote the sync point at once"


@pytest.mark.parametrize("free_bytes", [0, 4096])
def test_on_a_full_disk_the_last_sync_point_stays(free_bytes: int) -> None:
    """Also if a part of the new one has room."""
    with small_disk("size=1m", "mode=700") as disk:
        folder = disk / "db"
        tables = folder / "compacted"
        tables.mkdir(parents=True)
        files = store_files.StoreFiles(folder, sync=True)
        assert asyncio.run(files.sync())
        before = power_loss.read_sync_point(folder)
        for number in range(500):
            (tables / f"{number}.sst").touch()
        ballast = fill(disk, free_bytes)
        assert not asyncio.run(files.sync())
        assert power_loss.read_sync_point(folder) == before
        ballast.unlink()
        assert asyncio.run(files.sync())
        found = power_loss.read_sync_point(folder)
        assert found is not None
        assert len(found.tables) == 500


def fill(disk: Path, but_bytes: int) -> Path:
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        usage = os.statvfs(disk)
        file.write(bytes(usage.f_bavail * usage.f_frsize - but_bytes))
    return ballast


def test_what_can_not_be_synced_stays_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(world: World) -> None:
        async def publish() -> None:
            for _ in range(20):
                world.publish("q", envelope=bytes(10_000))
            await world.engine.commits.checkpoint()

        await publish()
        journal = world.engine.journal
        assert journal is not None
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda _file, _data: 0)  # as on a full disk
            before = journal.waiting_bytes
            assert not await world.engine.upkeep.tidy()
            await publish()
            assert journal.waiting_bytes > before
        assert await world.engine.upkeep.tidy()
        assert journal.waiting_bytes <= before

    run(tmp_path / "s", steps, EngineSettings(journal_segment_bytes=64 << 10))
