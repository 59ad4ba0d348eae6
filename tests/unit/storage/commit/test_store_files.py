"""The files of an open store: one sync at a time, also after a caller that was cancelled."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kombu_opendata.storage.commit import power_loss, store_files


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
