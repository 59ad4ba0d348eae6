"""The files of a local store: recovery after a power loss, sync, and deletion of unneeded ones."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
from pathlib import Path

from ...errors import StoreError, StoreFull
from ..slatedb.object_store import locate
from ..slatedb.slate_admin import SlateAdmin, collect_all
from . import power_loss

log = logging.getLogger(__name__)


async def prepare(url: str, instance: str, folder: Path, *, sync: bool, room_bytes: int, seconds: float) -> bool:
    """Prepare to open the database in ``folder``: move out files that a power loss damaged, free space on a full disk.

    An open database must write before it may delete, and its compactor uses the space that was freed.

    Args:
        room_bytes: if less space is free, garbage is deleted first.
        seconds: the time limit of the deletion.

    Returns:
        True if a power loss may have torn the end of the journal.
    """
    healing = power_loss.Healing()
    if not sync:
        power_loss.forget(folder)
    else:
        healing = power_loss.heal_after_power_loss(folder)
        if files := healing.moved:
            log.warning("after a power loss %d unsynced files were put aside: %s", len(files), ", ".join(files))
    if not (folder / "manifest").is_dir() or shutil.disk_usage(folder).free >= room_bytes:
        return healing.power_lost
    try:
        async with asyncio.timeout(seconds):
            await collect_all(SlateAdmin(locate(url, instance, create=False)))
    except (TimeoutError, StoreError) as exc:
        log.warning("the disk is almost full, and garbage could not be deleted: %s", _reason(exc))
    return healing.power_lost


class StoreFiles:
    """The sync of an open store's files.

    A thread performs the sync and continues if its caller is cancelled, so a lock prevents two syncs at the same time.

    Args:
        folder: the database's; None for a store that is not local.
    """

    def __init__(self, folder: Path | None, *, sync: bool) -> None:
        self._folder = folder
        self._sync = sync
        self._sync_point: power_loss.SyncPoint | None = None
        self._recording = threading.Lock()
        self._is_closed = False

    async def sync(self) -> bool:
        """Make all earlier writes survive a power loss; return False if the disk is full."""
        if self._folder is not None and self._sync:
            return await self._try_record(self._folder)
        return True

    async def _try_record(self, folder: Path, *, closed: bool = False) -> bool:
        try:
            await asyncio.to_thread(self._record, folder, closed=closed)
        except StoreFull as exc:
            log.warning("%s; the journal keeps what was written since the last time", exc.text)
            return False
        return True

    def _record(self, folder: Path, *, closed: bool = False) -> None:
        """Sync, in a thread. A sync after the call with ``closed`` has no effect."""
        with self._recording:
            if closed:
                power_loss.mark_clean(folder)
            elif not self._is_closed:
                self._sync_point = power_loss.sync_tree(folder, self._sync_point)
            self._is_closed = self._is_closed or closed

    async def end(self, admin: SlateAdmin, seconds: float) -> None:
        """Finish after the database was closed: delete all garbage, and record the remaining files as synced.

        No file is deleted before its replacement is recorded, so none is deleted on a full disk.
        """
        if self._folder is None or not await self.sync():
            return
        try:
            async with asyncio.timeout(seconds):
                await collect_all(admin)
        except (TimeoutError, StoreError) as exc:
            log.warning("not all garbage was deleted; the next broker deletes the rest: %s", _reason(exc))
        if self._sync:
            await self._try_record(self._folder, closed=True)


def _reason(exc: TimeoutError | StoreError) -> str:
    return exc.text if isinstance(exc, StoreError) else "it took too long"
