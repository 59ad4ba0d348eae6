"""A reader of a SlateDB database, beside its writer or without one."""

from __future__ import annotations

import asyncio

from ... import errors
from . import ffi
from .databases import build
from .object_store import locate
from .slate_errors import translated
from .store_reads import Reads

#: of a reader that does not look at the manifest again, but for once right after it is opened
_NEVER_MS = 365 * 86_400_000
#: how long a frozen reader waits for SlateDB's first look, at least and at most
_FREEZE_SECONDS = 0.01
_MAX_FREEZE_SECONDS = 0.5
_MEMTABLE_BYTES = 64 << 20
_RETRIES = 5


class ReadOnlyStore(Reads):
    """A reader beside the writer, or without one. It sees what is durable, a moment later.

    It writes nothing to the store, so nothing holds back the files that it reads: open another one for another look.
    """

    _frozen_at: int | None = None
    """SlateDB's sequence number of what a frozen reader shows."""

    @classmethod
    async def open(
        cls,
        url: str,
        path: str,
        *,
        deadline_seconds: float = 30,
        store_options: dict[str, str] | None = None,
        frozen: bool = False,
        skip_wal: bool = False,
    ) -> ReadOnlyStore:
        """Open the database `path` in the store at `url` for reading.

        Args:
            frozen: go on showing what is durable now, or raise :class:`errors.StoreChanged`; else what is durable then.
            skip_wal: leave out what is in WAL files only, for a store whose WAL is damaged.

        Raises:
            errors.StoreError: there is no such database, or the store did not answer within `deadline_seconds`.
            errors.CorruptRecord: the database is damaged.
        """
        location = locate(url, path, store_options, create=False)
        u = ffi.public()
        builder = u.DbReaderBuilder(location.path, location.store)
        builder.with_reader_mode(u.ReaderMode.FOLLOW_LATEST())
        if frozen or skip_wal:
            builder.with_options(
                u.ReaderOptions(
                    manifest_poll_interval_ms=_NEVER_MS if frozen else 1000,
                    checkpoint_lifetime_ms=2 * _NEVER_MS,  # there is no checkpoint, but it must be the larger one
                    max_memtable_bytes=_MEMTABLE_BYTES,
                    skip_wal_replay=skip_wal,
                    object_store_max_retries=_RETRIES,  # without it a missing file is asked for until the deadline
                )
            )
        now = asyncio.get_running_loop().time
        binding = await ffi.select()
        began = now()
        opened = cls(location, await build(builder, url, deadline_seconds), binding)
        if frozen:
            try:
                await opened._freeze(now() - began)
            except BaseException:
                await opened.close()
                raise
        return opened

    async def _freeze(self, took: float) -> None:
        """Let SlateDB take the look at the manifest that it takes right after opening, whatever the interval.

        It is not told when that is over; it takes about what the opening ``took``. Later is noticed by :meth:`check`.
        """
        first = self._frozen_at = self._shown()
        now = asyncio.get_running_loop().time
        until = now() + min(max(took, _FREEZE_SECONDS), _MAX_FREEZE_SECONDS)
        while self._frozen_at == first and now() < until:
            await asyncio.sleep(_FREEZE_SECONDS / 10)
            self._frozen_at = self._shown()
        if self._frozen_at != first:
            await asyncio.sleep(_FREEZE_SECONDS)  # the number is first, what it stands for comes after it

    def _shown(self) -> int:
        with translated(self.url):
            return int(self._db.status().durable_seq)

    def check(self) -> None:
        if self._frozen_at is not None and self._shown() != self._frozen_at:
            raise errors.StoreChanged(f"{self.url} was written while it was opened; open it again", url=self.url)
