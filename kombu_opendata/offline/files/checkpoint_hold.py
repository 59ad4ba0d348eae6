"""Named checkpoint in SlateDB's manifest, which keeps the tables that are being read while the broker continues."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import threading
from collections.abc import Coroutine
from typing import Any

from ...errors import StoreError
from ...storage.slatedb.object_store import locate
from ...storage.slatedb.slate_admin import Manifest, SlateAdmin
from .store_location import StoreLocation

log = logging.getLogger(__name__)

#: lifetime of the checkpoint of a reader that ended without a release
LIFETIME_SECONDS = 180.0
#: time limit of a call to the store
_CALL_SECONDS = 10.0


class Hold:
    """Checkpoint that keeps the tables of one commit until it is released. A thread renews it, even during a busy loop.

    Call :meth:`before` before the reader is opened, and :meth:`take` afterwards.

    Attributes:
        why_not: the reason why no tables are kept; None if they are.
        manifest_id: the manifest whose files are kept; None if none are.
    """

    def __init__(self, location: StoreLocation, who: str, lifetime_seconds: float = LIFETIME_SECONDS) -> None:
        self._lifetime_seconds = lifetime_seconds
        self.why_not = _why_not(location)
        self._admin = SlateAdmin(locate(location.url, location.instance, create=False))
        self._name = f"{who} on {platform.node()}, pid {os.getpid()}"
        self._before: Manifest | None = None
        self.manifest_id: int | None = None
        self._id = ""
        self._released = threading.Event()

    async def before(self) -> None:
        """Record the tables that exist before the reader is opened."""
        if self.why_not is None:
            try:
                self._before = await self._within_limit(self._admin.manifest())
            except StoreError as exc:
                self.why_not = exc.text

    async def take(self) -> bool:
        """Keep the tables.

        Return False if a compaction changed them since :meth:`before`: the caller then reopens the reader.
        """
        if self.why_not is not None:
            return True
        try:
            creation = self._admin.create_checkpoint(self._name, self._lifetime_seconds)
            self._id, self.manifest_id = await self._within_limit(creation)
            threading.Thread(target=self._renew, name="checkpoint", daemon=True).start()
            manifest = await self._within_limit(self._admin.manifest(self.manifest_id))
        except StoreError as exc:
            self.why_not = exc.text
            await self.release()
            return True
        before = self._before
        if manifest and before and manifest.runs == before.runs and before.tables.keys() <= manifest.tables.keys():
            return True
        await self.release()
        return False

    async def release(self) -> None:
        self._released.set()
        if self._id:
            with contextlib.suppress(StoreError):
                await self._within_limit(self._admin.delete_checkpoint(self._id))

    def _renew(self) -> None:
        while not self._released.wait(self._lifetime_seconds / 3):
            try:
                asyncio.run(self._within_limit(self._admin.refresh_checkpoint(self._id, self._lifetime_seconds)))
            except StoreError as exc:
                log.warning("a reader's checkpoint could not be renewed: %s", exc.text)

    async def _within_limit(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await call
        except TimeoutError as exc:
            raise StoreError(f"the store did not answer within {_CALL_SECONDS:g} s") from exc


def _why_not(location: StoreLocation) -> str | None:
    """Return the reason why this process should not write to the store; None if it may."""
    if location.database is None:
        return None
    try:
        if location.database.stat().st_uid == os.geteuid():
            return None
    except OSError as exc:
        return f"{location.database}: {exc.strerror}"
    return "the folder belongs to another user, whose broker might be unable to read files written by this one"
