"""The reader of a SlateDB database, beside its writer or without one."""

from __future__ import annotations

import asyncio
from typing import Any

from ... import errors
from . import ffi, ffi_choice
from .block_cache import BlockCache
from .databases import build
from .object_store import locate
from .slate_errors import translated
from .store_reads import Reads

#: the poll interval of a frozen reader, which reads the manifest only once more, right after it is opened
_NEVER_MS = 365 * 86_400_000
#: bounds of the time that a frozen reader waits for SlateDB's first read of the manifest
_FREEZE_SECONDS = 0.01
_MAX_FREEZE_SECONDS = 0.5
_MEMTABLE_BYTES = 64 << 20
_RETRIES = 5


class ReadOnlyStore(Reads):
    """A reader beside the writer, or without one. It shows durable writes, with a short delay.

    It writes nothing to the store, not even a checkpoint, so the files that it reads may be deleted: then open another
    reader.
    """

    _frozen_at: int | None = None
    """SlateDB's sequence number of a frozen reader's state."""

    @classmethod
    async def open(
        cls,
        url: str,
        path: str,
        *,
        deadline_seconds: float = 30,
        frozen: bool = False,
        skip_wal: bool = False,
        cache: BlockCache | None = None,
    ) -> ReadOnlyStore:
        """Open the database `path` in the store at `url` for reading.

        Args:
            frozen: show the present state in every read, or raise :class:`errors.StoreChanged`.
            skip_wal: leave out the rows that are in WAL files only.
            cache: receives all blocks that are read.

        Raises:
            errors.StoreError: there is no such database, or the store did not respond within `deadline_seconds`.
            errors.CorruptRecord: the database is damaged.
        """
        location = locate(url, path, create=False)
        u = ffi.public()
        builder = u.DbReaderBuilder(location.path, location.store)
        builder.with_reader_mode(u.ReaderMode.FOLLOW_LATEST())
        if cache is not None:
            cache.join(builder)
        if frozen or skip_wal:
            builder.with_options(_options(frozen, skip_wal))
        now = asyncio.get_running_loop().time
        binding = await ffi_choice.select()
        start = now()
        opened = cls(location, await build(builder, url, deadline_seconds), binding)
        opened.keeps_blocks = cache is not None
        if frozen:
            try:
                await opened._freeze(now() - start)
            except BaseException:
                await opened.close()
                raise
        return opened

    async def _freeze(self, took: float) -> None:
        """Wait until SlateDB has read the manifest, which it does right after opening, regardless of the interval.

        SlateDB does not report the end of this read; it takes about as long as the opening ``took``. If it takes
        longer, :meth:`check` detects it.
        """
        first = self._frozen_at = self._shown()
        now = asyncio.get_running_loop().time
        until = now() + min(max(took, _FREEZE_SECONDS), _MAX_FREEZE_SECONDS)
        while self._frozen_at == first and now() < until:
            await asyncio.sleep(_FREEZE_SECONDS / 10)
            self._frozen_at = self._shown()
        if self._frozen_at != first:
            await asyncio.sleep(_FREEZE_SECONDS)  # SlateDB sets the number first, and then the state

    def _shown(self) -> int:
        with translated(self.url):
            return int(self._db.status().durable_seq)

    def check(self) -> None:
        if self._frozen_at is not None and self._shown() != self._frozen_at:
            raise errors.StoreChanged(f"{self.url} was written while it was opened; open it again", url=self.url)


def _options(frozen: bool, skip_wal: bool) -> Any:
    return ffi.public().ReaderOptions(
        manifest_poll_interval_ms=_NEVER_MS if frozen else 1000,
        checkpoint_lifetime_ms=2 * _NEVER_MS,  # there is no checkpoint, but this must be longer than the interval
        max_memtable_bytes=_MEMTABLE_BYTES,
        skip_wal_replay=skip_wal,
        object_store_max_retries=_RETRIES,  # otherwise SlateDB retries a missing file until the deadline
    )
