"""Less frequent polls of SlateDB for an idle bucket.

SlateDB's writer, its compactor and the compactor's worker each poll the bucket every few seconds (6,000 requests an
hour), and the interval is fixed when the database is opened. So an idle database is reopened with longer intervals. It
is reopened once more when it is written so often that compaction may be late. Only commits at that moment wait for it.
"""

from __future__ import annotations

import asyncio
import logging

from ..slatedb.slate_settings import SlateSettings
from ..slatedb.store_writer import MayOpen, SlateStore

log = logging.getLogger(__name__)

#: consecutive steps with at least ``_BUSY_COMMITS`` commits after which the store is no longer idle
_BUSY_STEPS = 3
_BUSY_COMMITS = 10


class IdleStore:
    """The poll intervals of a store, which is reopened when it becomes idle or busy.

    Attributes:
        is_idle: True while SlateDB rarely polls the bucket.
    """

    def __init__(self, store: SlateStore, settings: SlateSettings, idle_seconds: float) -> None:
        self._store, self._settings, self._idle_seconds = store, settings, idle_seconds
        self._written_at = asyncio.get_running_loop().time()
        self._busy_steps = 0
        self.is_idle = False

    def change(self, commits: int) -> SlateSettings | None:
        """Return the settings for reopening the store; None to leave it open. Call it every few seconds.

        Args:
            commits: the number of commits since the last call.
        """
        now = asyncio.get_running_loop().time()
        if commits:
            self._written_at = now
        self._busy_steps = self._busy_steps + 1 if commits >= _BUSY_COMMITS else 0
        if self.is_idle and self._busy_steps >= _BUSY_STEPS:
            return self._settings
        if not self.is_idle and now - self._written_at >= self._idle_seconds:
            return self._settings.for_idleness()
        return None

    async def reopen(self, settings: SlateSettings, may_open: MayOpen | None = None) -> None:
        """Reopen the store with these settings, unless a read is running. No write may be running.

        Raises:
            StoreFenced: another process writes to it.
            StoreError: it can't be reopened.
        """
        if await self._store.reopen(settings, may_open):
            self.is_idle = settings is not self._settings
            log.debug("%s is %s", self._store.url, "idle" if self.is_idle else "busy again")
