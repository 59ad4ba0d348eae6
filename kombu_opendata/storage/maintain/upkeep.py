"""Upkeep of an engine: checkpoints, and tidies of the store's files, until the broker stops.

:meth:`Upkeep.run` has two loops, as checkpoints must not wait for the rest: one for checkpoints, and one for tidies and
readings.

* A **checkpoint** moves the journal's content into SlateDB, every 100 ms or earlier if the batch is large. Only its
  batch is in memory, and publishes are delayed while the batch is full. If the journal is full, the loop waits and
  tries again: the store may accept writes later. Without a journal each commit is a checkpoint, so this loop ends.
* A **tidy** makes the checkpoints durable and frees space: it flushes the memtable, syncs the files, releases the
  journal's segments, and deletes SlateDB's garbage.
* A **reading of the disk use** from the manifest, which shows garbage that is worth a tidy. A bucket that is idle is
  read only while a checkpoint keeps tables.

Intervals are those of the event loop's clock, which does not jump. Retention, the size limit, recovery and the shutdown
also call :meth:`Upkeep.tidy`.

**Partitions.** A checkpoint writes the whole bucket of each partition that changed: with a thousand busy ones, a
thousand buckets for two thousand messages. So if the last snapshot blocked the event loop for more than 5 ms, and most
partitions have changed again, the next checkpoint waits for two or three intervals (:func:`pause_intervals`) and writes
hardly more. A large batch does not wait, nor does the sync of results. Recovery then has up to 0.3 s of the journal to
apply, and readers beside the broker see changes that much later.

**Order within a tidy.** A journal segment may be deleted only if its commits survive a power loss in the store. So the
position is read first, then the memtable is flushed up to it, then the files are synced, and only then the segments are
released. A full disk ends the tidy before the release: nothing is lost, and the next tidy tries again. The same holds
after a crash or a cancellation at any step. Garbage is deleted after the sync, because a file that is still referred to
by the last synced manifest must exist after a power loss; the second sync records the deletions. Staged objects are
deleted last, when the deletion of their messages survives a power loss. If the store is not synced, each checkpoint
releases the journal.

**Errors.** A reading that fails is logged. Any other :exc:`.StoreError` ends ``run``, and the broker ends with it:
SlateDB has retried before.

**When a tidy is due** (:meth:`Upkeep._is_untidy`). The simple way, a tidy at each interval, costs more than it frees:
a tidy syncs files, which commits wait for on the same disk, and it writes a table, however small, which causes
compactions. An idle store would never come to rest. So a tidy is due

===================  ====================================================================================
store                due if something was written since the last tidy, or a payload segment is unused, and
===================  ====================================================================================
with a journal       more than one segment waits, or six intervals have passed
bucket, memory       64 WAL files have accumulated (a broker that opens the store reads each), or
                     ``bucket_tidy_seconds`` have passed: a tidy is a dozen requests
any                  also without a write: a mebibyte of unreferenced tables can be deleted
===================  ====================================================================================

**Locks.** ``commits.tidying`` is held during a tidy and during a reopening, ``commits.checkpointing`` during a
checkpoint and a reopening; ``tidying`` is acquired first. A tidy does not hold ``checkpointing``: checkpoints continue
during it, as it takes seconds on a busy disk. A hand-over (:meth:`Upkeep.shorten_recovery`) acquires ``tidying`` until
the engine is closed, because writes of a tidy and those of the next broker's opening would conflict.

**An idle bucket** (:class:`IdleStore`). SlateDB's writer, its compactor and the compactor's worker each poll the bucket
every few seconds (6,000 requests an hour), and the interval is fixed when the database is opened. So an idle database
is reopened with longer intervals:

=======  ========  =================================================================
from     to        when
=======  ========  =================================================================
in use   idle      no commit for ``idle_seconds``
idle     in use    at least 10 commits in each of three consecutive steps, because
                   compaction would be late; fewer commits do not need it
=======  ========  =================================================================

Only commits at that moment wait for the reopening. A cancellation must not interrupt it, because ``close`` needs an
open store; and if it fails, the engine has failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import Any

from ...errors import StoreError, StoreFull
from ..clock import Clock
from ..commit.commits import Commits
from ..commit.journal import Journal
from ..commit.store_files import StoreFiles
from ..engine_settings import EngineSettings
from ..operations.staged_jobs import Staging
from ..records import keys
from ..slatedb.slate_admin import DiskUse, SlateAdmin
from ..slatedb.slate_settings import SlateSettings
from ..slatedb.store_writer import MayOpen, SlateStore

log = logging.getLogger(__name__)

#: shorter than the lifetime of a compaction's checkpoint, so that each is seen
READ_SECONDS = 10.0
BUCKET_READ_SECONDS = 60.0
#: an idle store keeps garbage below this: collecting it writes a small table, which may cause another compaction
_WORTH_BYTES = 1 << 20


class DiskSpace:
    """The disk use of a database, read from its manifest periodically.

    Attributes:
        use: the disk use at the last reading; None before the first.
        freed_bytes: the size of unreferenced tables, which may still exist.
    """

    def __init__(self, admin: SlateAdmin, clock: Clock) -> None:
        self._admin, self._clock = admin, clock
        self._held_tables: dict[str, int] = {}
        self.use: DiskUse | None = None
        self.freed_bytes = 0

    async def read(self) -> None:
        """Read the disk use again. If that fails, log the error and keep the old values."""
        try:
            use = await self._admin.disk_use(self._clock.now_ms())
        except StoreError as exc:
            log.warning("the size of the tables could not be read: %s", exc.text)
            return
        self.freed_bytes += sum(size for id, size in self._held_tables.items() if id not in use.held)
        self.use, self._held_tables = use, use.held

    @property
    def is_held(self) -> bool:
        """True if a checkpoint keeps tables that could be deleted otherwise."""
        return bool(self._held_tables)

    def report(self) -> dict[str, Any]:
        """Return the disk use for the status call; times in ms since the epoch, 0 means never."""
        use = self.use or DiskUse(0, 0, {}, ())
        places = sorted((held.name, held.created_at_ms, held.expires_at_ms or 0) for held in use.checkpoints)
        return {
            "live_bytes": use.live_bytes,
            "waiting_bytes": sum(use.held.values()) + self.freed_bytes,
            "checkpoints": [dict(zip(("name", "created_at_ms", "expires_at_ms"), row, strict=True)) for row in places],
            "tables": use.tables,
            "runs": use.runs,
            "unsorted_tables": use.unsorted,
            "compactions_running": [compaction.report() for compaction in use.compactions if compaction.is_active],
            "compactions_ended": [compaction.report() for compaction in use.compactions if not compaction.is_active],
            "at_ms": use.at_ms,
        }


#: WAL files of a bucket after which a tidy deletes them
_WAL_FILES = 64
#: intervals between two tidies while the journal has no full segment
_RARE_TIDIES = 6
#: consecutive steps with at least ``_BUSY_COMMITS`` commits after which the store is no longer idle
_BUSY_STEPS = 3
_BUSY_COMMITS = 10
#: a checkpoint follows at least this number of times the duration of the last snapshot later
_PAUSE_FACTOR, _MAX_INTERVALS = 20, 3


def pause_intervals(snapshot_seconds: float, interval_seconds: float) -> int:
    """Return the number of intervals until the next checkpoint, at most three, by the duration of the last snapshot.

    Snapshots then take a twentieth of the loop's time, and more only if three intervals are too few.
    """
    return min(max(math.ceil(_PAUSE_FACTOR * snapshot_seconds / interval_seconds), 1), _MAX_INTERVALS)


class Upkeep:
    """The upkeep of one engine.

    Args:
        may_reopen: called before an idle store is reopened; raises an error if another broker may be active.
    """

    def __init__(
        self,
        store: SlateStore,
        journal: Journal | None,
        commits: Commits,
        files: StoreFiles,
        staging: Staging,
        disk_space: DiskSpace,
        settings: EngineSettings,
        may_reopen: MayOpen | None = None,
    ) -> None:
        self._store, self._journal, self._commits = store, journal, commits
        self._files, self._staging, self._disk_space = files, staging, disk_space
        self._settings = settings
        self._idle: IdleStore | None = None
        if journal is None and settings.idle_seconds:
            self._idle = IdleStore(store, settings.slate, settings.idle_seconds, may_reopen)
        self._tidied_at_seconds = 0.0
        self._tidied_position: int | None = None
        self._counted_position: int | None = None
        self._handed_over = False

    async def tidy(self) -> bool:
        """Sync the store's files, release the journal, delete SlateDB's garbage.

        This takes seconds on a busy disk, and some 30 sequential requests to a bucket. Checkpoints continue during it.

        Returns:
            False if the disk is full: then try again later.
        """
        async with self._commits.tidying:
            upto = self._commits.released_upto
            self._commits.release_segments()
            unneeded = len(self._staging.state.unneeded)
            await self._store.flush_memtable(keys.STORE_HEADER_KEY)
            if not await self._files.sync():
                return False
            if self._journal is not None and upto is not None:
                self._journal.release(upto)
            freed = self._disk_space.freed_bytes
            if await self._store.collect_garbage():
                self._disk_space.freed_bytes -= freed  # a reading in the meantime may have added to it
            await self._files.sync()
        await self._staging.remove_unneeded(unneeded)
        return True

    async def shorten_recovery(self) -> None:
        """Flush the memtable, so that the next process that opens the store has few WAL files to read. Ends tidies."""
        await self._commits.tidying.acquire()
        self._handed_over = True
        await self._store.flush_memtable(keys.STORE_HEADER_KEY)

    def close(self) -> None:
        """Allow the last tidy of the engine after :meth:`shorten_recovery`."""
        if self._handed_over:
            self._commits.tidying.release()

    async def run(self) -> None:
        """Checkpoint and tidy until cancelled. The broker starts retention: see :class:`.Collector`.

        Raises:
            StoreError: the store failed permanently.
        """
        await asyncio.gather(self._checkpoint_repeatedly(), self._tidy_repeatedly())

    # ------------------------------------------------------------------ checkpoints
    async def _checkpoint_repeatedly(self) -> None:
        commits, journal, seconds = self._commits, self._journal, self._settings.checkpoint_interval_ms / 1000
        pause = 0  # intervals until the next checkpoint
        while journal is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await commits.is_large.wait()
            pause -= 1
            if commits.is_dirty:
                try:
                    if pause <= 0 or commits.is_large.is_set() or not commits.rewrites_partitions:
                        await commits.checkpoint()
                        pause = pause_intervals(commits.snapshot_seconds, seconds)
                    elif commits.sync_soon:
                        await commits.commit()
                except StoreFull:
                    log.warning("the journal is full; waiting for the store")
                    await asyncio.sleep(seconds)
            if not journal.has_spare:
                await asyncio.to_thread(journal.prepare_spare)  # allocating a file may take tens of milliseconds

    # ------------------------------------------------------------------ tidies
    async def _tidy_repeatedly(self) -> None:
        time, disk_space, idle = asyncio.get_running_loop().time, self._disk_space, self._idle
        reading_seconds = READ_SECONDS if self._journal is not None else BUCKET_READ_SECONDS
        next_reading = self._tidied_at_seconds = time()
        next_tidy = next_reading + self._settings.tidy_interval_seconds
        self._tidied_position = self._counted_position = self._commits.stored
        while True:
            await asyncio.sleep(self._settings.checkpoint_interval_ms / 1000)
            if time() >= next_reading:
                if idle is None or not idle.is_idle or disk_space.is_held:
                    await disk_space.read()
                next_reading = time() + reading_seconds
            if time() >= next_tidy:
                await self._tidy_if_due()
                if idle is not None:
                    await self._reopen_if_due(idle)
                next_tidy = time() + self._settings.tidy_interval_seconds

    async def _tidy_if_due(self) -> None:
        # the position before the tidy: later writes make another one due
        time, position = asyncio.get_running_loop().time, self._commits.stored
        is_due = self._is_untidy(time() - self._tidied_at_seconds) or self._disk_space.freed_bytes >= _WORTH_BYTES
        if is_due and await self.tidy():
            self._tidied_position, self._tidied_at_seconds = position, time()

    def _is_untidy(self, seconds: float) -> bool:
        """Return True if a tidy is due, ``seconds`` after the last one; see the table above."""
        position = self._commits.stored
        if position == self._tidied_position and not self._commits.has_unused_segment:
            return False
        if (journal := self._journal) is not None:
            has_full = journal.waiting_bytes > journal.segment_bytes
            return has_full or seconds >= _RARE_TIDIES * self._settings.tidy_interval_seconds
        files = (position or 0) - (self._tidied_position or 0)
        return files >= _WAL_FILES or seconds >= self._settings.bucket_tidy_seconds

    # ------------------------------------------------------------------ idle buckets
    async def _reopen_if_due(self, idle: IdleStore) -> None:
        before, self._counted_position = self._counted_position, self._commits.stored
        settings = idle.change((self._counted_position or 0) - (before or 0))
        if settings is not None:
            await asyncio.shield(asyncio.get_running_loop().create_task(self._reopen(idle, settings)))

    async def _reopen(self, idle: IdleStore, settings: SlateSettings) -> None:
        async with self._commits.tidying, self._commits.checkpointing:
            try:
                await idle.reopen(settings)
            except StoreError as exc:
                self._commits.failure = exc
                raise


class IdleStore:
    """The poll intervals of a store, which is reopened when it becomes idle or busy.

    Attributes:
        is_idle: True while SlateDB rarely polls the bucket.
    """

    def __init__(
        self, store: SlateStore, settings: SlateSettings, idle_seconds: float, may_reopen: MayOpen | None = None
    ) -> None:
        self._store, self._settings, self._idle_seconds = store, settings, idle_seconds
        self._may_reopen = may_reopen
        self._written_at = asyncio.get_running_loop().time()
        self._busy_steps = 0
        self.is_idle = False

    def change(self, commits: int) -> SlateSettings | None:
        """Return the settings for reopening the store; None to leave it open. Call it every few seconds.

        ``commits``: the number of commits since the last call.
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

    async def reopen(self, settings: SlateSettings) -> None:
        """Reopen the store with these settings, unless a read is running. No write may be running.

        Raises:
            StoreFenced: another process writes to it.
            StoreError: it can't be reopened.
        """
        if await self._store.reopen(settings, self._may_reopen):
            self.is_idle = settings is not self._settings
            log.debug("%s is %s", self._store.url, "idle" if self.is_idle else "busy again")
