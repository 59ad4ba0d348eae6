"""The storage engine: opens one instance of a store, composes its parts, runs its maintenance and closes it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..errors import StoreError, StoreFull, StoreSilent
from ..staging.folder_url import StagedFolder
from .clock import Clock
from .commit import recovery
from .commit.cache_warm_up import warm_up
from .commit.commits import Commits
from .commit.journal import Journal
from .commit.measurements import EngineFigures
from .commit.store_files import StoreFiles, prepare
from .engine_settings import EngineSettings
from .history.failures.view import FailureView
from .history.service import History
from .maintain.background_router import Router
from .maintain.disk_space import BUCKET_READ_SECONDS, READ_SECONDS, DiskSpace
from .maintain.idle_store import IdleStore
from .maintain.retention import Collector, LogSweep
from .maintain.size_limit import SizeLimit
from .messages.payload_reader import PayloadReader
from .messages.payloads import Payloads
from .operations.archive_and_delete import SettledMoves
from .operations.definitions import Definitions, Removals
from .operations.message_operations import Operations
from .operations.moves import Moves
from .operations.queue_loader import QueueLoader
from .operations.repeated_requests import Idempotency, RepeatedCalls
from .operations.staged_jobs import Staging
from .operations.task_results import ResultStore
from .operations.task_runs import TaskRuns
from .read.queue_pages import QueuePages
from .read.settled_buckets import SettledBuckets
from .records import keys
from .slatedb.block_cache import BlockCache
from .slatedb.disk_cache import DiskCache
from .slatedb.slate_settings import SlateSettings
from .slatedb.store_writer import MayOpen, SlateStore
from .state.store_state import StoreState

log = logging.getLogger(__name__)

#: WAL files of a bucket after which a tidy deletes them: a broker that opens the store reads each of them
_WAL_FILES = 64
#: intervals between two tidies while the journal has no full segment
_RARE_TIDIES = 6


class Engine:
    """One instance of a store. Use :meth:`open`."""

    def __init__(
        self, store: SlateStore, journal: Journal | None, clock: Clock, settings: EngineSettings, files: StoreFiles
    ) -> None:
        self.store, self.journal, self.clock, self.settings = store, journal, clock, settings
        self._files = files
        self.before_reopening: MayOpen | None = None
        self._tidied = False
        state = self.state = StoreState()
        folder = self._staged_folder = StagedFolder(store.location.url, store.location.name)
        payloads = self.payloads = Payloads(store, PayloadReader(store, folder), settings.payload_cache_bytes)
        self.figures = EngineFigures(settings.slow_commit_seconds)
        commits = self.commits = Commits(store, journal, clock, state, payloads, self.figures, sync=settings.sync)
        self.definitions = Definitions(state, clock, commits)
        operations = self.operations = Operations(state, payloads, clock, commits)
        self.task_runs = TaskRuns(state, payloads, clock, commits, operations, enabled=settings.task_outcomes)
        self.loader = QueueLoader(store, state, payloads, clock, operations)
        self.idempotency = Idempotency(store, state, clock, commits)
        repeats = self.repeats = RepeatedCalls(state, clock, commits)
        self.removals = Removals(commits, operations, self.definitions, self.loader, self.idempotency, repeats)
        self.results = ResultStore(store, state, clock, commits)
        buckets = self.buckets = SettledBuckets(store, state, commits)
        self.pages = QueuePages(store, clock, commits, payloads, buckets)
        self.settled_moves = SettledMoves(store, state, clock, commits, payloads, buckets)
        self.moves = Moves(store, state, clock, commits, payloads, buckets, self.pages, self.loader, repeats)
        self.router = Router(store, state, clock, commits, buckets)
        self.staging = Staging(store, state, clock, commits, operations, folder)
        self.history = History(
            store, state, payloads, commits.checkpoint, int(1000 * settings.history_retention_seconds)
        )  # fmt: skip
        commits.participants.append(self.history)
        self.failures = FailureView(state, self.history, buckets)
        self.log_sweep = LogSweep(store, state, commits)
        sweepers = self.log_sweep, self.results, self.idempotency, self.history
        self.collector = Collector(state, clock, commits, operations, self.loader, buckets, sweepers)
        self.disk_space = DiskSpace(store.admin, store.clock)
        self.size_limit = SizeLimit(
            store, state, clock, commits, buckets, self.log_sweep, self.history, self.disk_space,
            tidy=self.tidy, settings=settings.slate, limit_bytes=settings.retention_bytes,
        )  # fmt: skip

    @classmethod
    async def open(
        cls,
        url: str,
        instance: str,
        clock: Clock,
        settings: EngineSettings | None = None,
        cache: BlockCache | None = None,
    ) -> Engine:
        """Open or create an instance of a store.

        Args:
            url: an object store: ``file:///folder``, ``s3://bucket/prefix``, ``memory://name``, …
            instance: the name of the instance, one path element.
            cache: blocks that were read before, see :func:`.commit.cache_warm_up.warmed_cache`.

        Raises:
            StoreUnwritable, StoreInUse, UnsupportedFormat, CorruptRecord, StoreError: it can't be opened; the text
                gives the reason.
        """
        settings = settings or EngineSettings()
        folder = Path(unquote(url.removeprefix("file://"))) / instance if url.startswith("file://") else None
        power_lost = False
        if folder is not None:
            power_lost = await prepare(
                url, instance, folder,
                sync=settings.sync, room_bytes=settings.journal_max_bytes, seconds=settings.close_seconds,
            )  # fmt: skip
        journal = disk_cache = None
        if urlsplit(url).scheme not in ("file", "memory"):
            slate = settings.slate.for_bucket()
            if settings.cache_dir is not None:
                disk_cache = DiskCache(settings.cache_dir, url, instance)
                slate = replace(slate, cache_folder=str(disk_cache.folder))
            settings = replace(settings, slate=slate)
        store = await SlateStore.open(url, instance, settings=settings.slate, disk_cache=disk_cache, cache=cache)
        try:
            if folder is None:
                await warm_up(store)
            await recovery.check_header(store, instance, clock.now_ms())
            if folder is not None:
                journal = Journal(
                    folder.with_name(f"{instance}.journal"),
                    segment_bytes=settings.journal_segment_bytes,
                    max_bytes=settings.journal_max_bytes,
                    sync=settings.sync,
                )
            engine = cls(store, journal, clock, settings, StoreFiles(folder, sync=settings.sync))
            await engine._recover(power_lost=power_lost)
        except BaseException:
            await store.close()
            if journal is not None:
                journal.close()
            raise
        return engine

    async def _recover(self, *, power_lost: bool) -> None:
        history = await self.history.load() if self.settings.history else None
        commits = await recovery.read_journal(self.store, self.journal, power_lost=power_lost)
        await recovery.rebuild(self.state, self.store, commits, self.clock, history)
        self.log_sweep.configure(self.settings.log_retention_seconds)
        for cache in (self.state.results.results, self.state.results.parts):
            cache.cache_bytes, cache.complete_since_ms = self.settings.result_cache_bytes, self.clock.now_ms()
        for effects in commits:
            for effect in effects:
                self.commits.stage_all(effect.new_messages())
        if self.journal is not None:  # without one the store needs no changes, and requests cost time
            self.journal.start()
            await self.commits.checkpoint()
            await self.tidy()

    # ------------------------------------------------------------------ maintenance
    async def shorten_recovery(self) -> None:
        """Flush the memtable, so that the next process that opens the store has few WAL files to read.

        Tidying ends here: its writes and those of the next opening would conflict.
        """
        await self.commits.tidying.acquire()
        self._tidied = True
        await self.store.flush_memtable(keys.STORE_HEADER_KEY)

    async def tidy(self) -> bool:
        """Sync the store's files, release the journal, delete SlateDB's garbage; called periodically.

        This takes seconds on a busy disk, and some 30 sequential requests to a bucket. Checkpoints continue during it.

        Returns:
            False if the disk is full: then try again later.
        """
        async with self.commits.tidying:
            upto = self.commits.released_upto
            await self.store.flush_memtable(keys.STORE_HEADER_KEY)
            if not await self._files.sync():
                return False
            if self.journal is not None and upto is not None:
                self.journal.release(upto)
            if await self.store.collect_garbage():
                self.disk_space.collected()
            await self._files.sync()
        await self.staging.remove_unneeded()
        return True

    async def run_maintenance(self) -> None:
        """Checkpoint and tidy until cancelled. The broker starts retention: see :class:`Collector`.

        Raises:
            StoreError: the store failed permanently.
        """
        await asyncio.gather(self._checkpoint_for_ever(), self._tidy_for_ever())

    async def _checkpoint_for_ever(self) -> None:
        """Write the journal's content to the store; without a journal, each commit is a checkpoint."""
        commits, journal = self.commits, self.journal
        while journal is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.checkpoint_interval_ms / 1000):
                    await commits.is_large.wait()
            if commits.is_dirty:
                try:
                    await commits.checkpoint()
                except StoreFull:
                    log.warning("the journal is full; waiting for the store")
                    await asyncio.sleep(self.settings.checkpoint_interval_ms / 1000)
            if not journal.has_spare:
                await asyncio.to_thread(journal.prepare_spare)

    async def _tidy_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        read_seconds = READ_SECONDS if self.journal is not None else BUCKET_READ_SECONDS
        next_tidy = loop.time() + self.settings.tidy_interval_seconds
        next_look = tidied = loop.time()
        tidied_at = last_position = self.commits.stored
        idle = None
        if self.journal is None and self.settings.idle_seconds:
            idle = IdleStore(self.store, self.settings.slate, self.settings.idle_seconds)
        while True:
            await asyncio.sleep(self.settings.checkpoint_interval_ms / 1000)
            if loop.time() >= next_look:
                if idle is None or not idle.is_idle or self.disk_space.is_held:
                    await self.disk_space.read()
                next_look = loop.time() + read_seconds
            if loop.time() >= next_tidy:
                if self._is_untidy(tidied_at, loop.time() - tidied) or self.disk_space.is_worth_collecting:
                    position = self.commits.stored
                    if await self.tidy():
                        tidied_at, tidied = position, loop.time()
                before, last_position = last_position, self.commits.stored
                if idle is not None and (settings := idle.change((last_position or 0) - (before or 0))) is not None:
                    # a cancellation must not interrupt this: close() needs an open store
                    await asyncio.shield(loop.create_task(self._reopen(idle, settings)))
                next_tidy = loop.time() + self.settings.tidy_interval_seconds

    def _is_untidy(self, tidied_at: int | None, seconds: float) -> bool:
        """Return True if a tidy is due, ``seconds`` after the last one.

        Each tidy syncs files, which commits wait for, and writes a table, however small. So with a journal a tidy is
        due for each segment that can be released, and otherwise after several intervals.
        """
        position = self.commits.stored
        if position == tidied_at:
            return False
        if (journal := self.journal) is not None:
            has_full = journal.waiting_bytes > journal.segment_bytes
            return has_full or seconds >= _RARE_TIDIES * self.settings.tidy_interval_seconds
        files = (position or 0) - (tidied_at or 0)
        return files >= _WAL_FILES or seconds >= self.settings.bucket_tidy_seconds

    async def _reopen(self, idle: IdleStore, settings: SlateSettings) -> None:
        async with self.commits.tidying, self.commits.checkpointing:
            try:
                await idle.reopen(settings, self.before_reopening)
            except StoreError as exc:
                self.commits.failure = exc
                raise

    # ------------------------------------------------------------------ shutdown
    async def close(self) -> None:
        """Write all changes to the store and close it cleanly."""
        if self._tidied:
            self.commits.tidying.release()
        self.router.close()
        self.loader.close()
        commits = self.commits
        deadline = asyncio.get_running_loop().time() + self.settings.close_seconds
        try:
            if commits.failure is None:
                async with asyncio.timeout_at(deadline):
                    await commits.checkpoint()
                    if self.journal is not None:
                        await self.tidy()
                if (
                    self.journal is None
                ):  # all is stored; the next broker deletes the remaining garbage, which may be large
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(deadline):
                            await self.tidy()
        except TimeoutError:
            if self.journal is None:
                seconds = self.settings.close_seconds
                text = f"the store took no writes for {seconds:g} s at the end"
                commits.failure = StoreSilent(text, deadline_seconds=seconds)
                raise commits.failure from None
            log.error("the store takes no writes (disk full?): the rest stays in the journal")
            return
        finally:
            await self._close_store()
            if self.journal is not None:
                self.journal.close()
        if commits.failure is None:
            await self._files.end(self.store.admin, self.settings.close_seconds)

    async def _close_store(self) -> None:
        self._staged_folder.close()
        if isinstance(self.commits.failure, StoreSilent):  # the next broker recovers it as after a crash
            return
        try:
            async with asyncio.timeout(self.settings.close_seconds):
                await self.store.close()
        except TimeoutError:
            log.error("the store could not be closed within %g s", self.settings.close_seconds)

    # ------------------------------------------------------------------ metrics
    @property
    def stalled_seconds(self) -> float:
        """The seconds for which a requested checkpoint has not completed, if they exceed the stall limit; else 0."""
        waited = self.commits.waiting_seconds
        return waited if waited > self.settings.stall_seconds else 0.0

    def free_memory(self) -> None:
        """Release the caches whose content can be read again from the store."""
        self.payloads.shrink()
        self.failures.free_memory()

    def report(self) -> dict[str, Any]:
        """Return metrics for the status call, without those of queues."""
        return {
            "next_message_id": self.state.next_id,
            "results": {
                "cached_bytes": self.state.results.results.size_bytes + self.state.results.parts.size_bytes,
                "open_chords": sum(bool(chord.parts) for chord in self.state.results.chords.values()),
            },
            "commits": self.commits.count,
            "journal_bytes": self.journal.waiting_bytes if self.journal else 0,
            "journal_limit_bytes": self.journal.max_bytes if self.journal else 0,
            "checkpoint": self._last_checkpoint(),
            "stalled_seconds": round(self.stalled_seconds, 1),
            "stalled_since_ms": self.clock.now_ms() - int(1000 * stalled) if (stalled := self.stalled_seconds) else 0,
            "disk": self.disk_space.report() | self.size_limit.report(),
        }

    def _last_checkpoint(self) -> dict[str, Any]:
        """Return the end (0 before the first), the duration and the size of the last checkpoint."""
        at_ms, seconds, size = self.figures.last_checkpoint or (0, 0.0, 0)
        return {"at_ms": at_ms, "seconds": round(seconds, 4), "bytes": size}
