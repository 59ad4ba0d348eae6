"""The storage engine: opens one instance of a store, composes its parts, runs its maintenance and closes it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from ..errors import StoreSilent
from ..staging.folder_url import StagedFolder
from .clock import Clock
from .commit import recovery
from .commit.commits import Commits
from .commit.journal import Journal
from .commit.measurements import EngineMetrics
from .commit.payload_segments import Segments
from .commit.store_files import StoreFiles
from .databases import Databases
from .engine_parts import EngineParts
from .engine_settings import EngineSettings
from .history.failure_view import FailureView
from .history.service import History
from .maintain.background_router import Router
from .maintain.retention import Collector, LogSweep
from .maintain.size_limit import SizeLimit
from .maintain.upkeep import DiskSpace, Upkeep
from .messages.payload_reader import PayloadReader
from .messages.payloads import Payloads
from .operations.archive_and_delete import SettledMoves
from .operations.definitions import Definitions
from .operations.message_operations import Operations
from .operations.moves import Moves
from .operations.queue_loader import QueueLoader
from .operations.repartitioner import Repartitioner
from .operations.repeated_requests import Idempotency, RepeatedCalls
from .operations.staged_jobs import Staging
from .operations.task_results import ResultStore
from .operations.task_runs import TaskRuns
from .operations.unique_keys import UniqueKeys
from .read.queue_pages import QueuePages
from .read.settled_buckets import SettledBuckets
from .slatedb.caches import BlockCache
from .slatedb.store_writer import MayOpen, SlateStore
from .state.store_state import StoreState

log = logging.getLogger(__name__)


class Engine:
    """One instance of a store. Use :meth:`open`."""

    def __init__(
        self,
        store: SlateStore,
        journal: Journal | None,
        clock: Clock,
        settings: EngineSettings,
        files: StoreFiles,
        on_full: Callable[[bool], None] = lambda _is_full: None,
        may_reopen: MayOpen | None = None,
        segments: Segments | None = None,
    ) -> None:
        self.store = store
        self.journal = journal
        self.clock = clock
        self.settings = settings
        self._files = files
        self._staged_folder = StagedFolder(store.location.url, store.location.name)
        state = self.state = StoreState(settings.sizes)
        reader = PayloadReader(store, self._staged_folder)
        self.payloads = Payloads(store, reader, settings.payload_cache_bytes, state.staged.object_of)
        self.metrics = EngineMetrics(settings.slow_commit_seconds)
        retention_ms = int(1000 * settings.history_retention_seconds)
        self.history = History(store, state, self.payloads, lambda: self.commits.checkpoint(), retention_ms)
        self.commits = Commits(
            store,
            journal,
            clock,
            state,
            self.payloads,
            self.metrics,
            self.history,
            segments,
            sync=settings.sync,
            on_full=lambda is_full: on_full(is_full and not self.stalled_seconds),
        )
        parts = EngineParts(store, state, clock, self.commits, self.payloads)
        self._compose_operations(parts)
        self._compose_maintenance(parts, may_reopen)

    def _compose_operations(self, parts: EngineParts) -> None:
        """Create the services that clients' calls use."""
        operations = self.operations = Operations(parts.state, parts.payloads, parts.clock, parts.commits)
        self.loader = QueueLoader(parts, operations)
        self.idempotency = Idempotency(parts)
        self.unique_keys = UniqueKeys(parts, operations, self.loader, self.idempotency)
        self.repeats = RepeatedCalls(parts)
        self.definitions = Definitions(parts, operations, self.loader, self.idempotency, self.repeats)
        buckets = self.buckets = SettledBuckets(parts)
        self.pages = QueuePages(parts, buckets)
        self.repartitioner = Repartitioner(parts, operations, self.loader, self.pages, self.idempotency)
        self.settled_moves = SettledMoves(parts, buckets)
        self.moves = Moves(parts, buckets, self.pages, self.loader, self.idempotency, self.repeats)
        self.router = Router(parts, buckets)
        self.failures = FailureView(parts.state, self.history, buckets)
        self.task_runs = TaskRuns(parts, operations, enabled=self.settings.task_outcomes)
        self.results = ResultStore(parts)
        self.staging = Staging(parts, operations, self.loader, self._staged_folder)

    def _compose_maintenance(self, parts: EngineParts, may_reopen: MayOpen | None) -> None:
        """Create the services that delete unneeded data, and limit and tidy the store."""
        store = self.store
        commits = self.commits
        settings = self.settings
        self.log_sweep = LogSweep(parts)
        sweepers = self.log_sweep, self.results, self.idempotency, self.history
        self.collector = Collector(parts, self.operations, self.loader, self.buckets, sweepers)
        disk_space = self.disk_space = DiskSpace(store.admin, store.clock)
        self.upkeep = Upkeep(store, self.journal, commits, self._files, self.staging, disk_space, settings, may_reopen)
        self.size_limit = SizeLimit(
            parts,
            self.buckets,
            self.log_sweep,
            self.history,
            disk_space,
            tidy=self.upkeep.tidy,
            settings=settings.slate,
            limit_bytes=settings.retention_bytes,
        )

    @classmethod
    async def open(
        cls,
        url: str,
        instance: str,
        clock: Clock,
        settings: EngineSettings | None = None,
        cache: BlockCache | None = None,
        *,
        on_full: Callable[[bool], None] = lambda _is_full: None,
        may_reopen: MayOpen | None = None,
        databases: Databases | None = None,
    ) -> Engine:
        """Open or create an instance of a store.

        Args:
            url: an object store: ``file:///folder``, ``s3://bucket/prefix``, ``memory://name``, …
            instance: the name of the instance, one path element.
            cache: blocks that were read before, see :meth:`.Databases.read_ahead`.
            on_full: called with True when publishes should wait for the store, and with False when it has caught up.
            may_reopen: called before an idle store is reopened; raises an error if another broker may be active.
            databases: those of the store; made from the URL if None.

        Raises:
            StoreUnwritable, StoreInUse, UnsupportedFormat, CorruptRecord, StoreError: it can't be opened; the text
                gives the reason.
        """
        opened = await (databases or Databases(url)).open(instance, clock, settings or EngineSettings(), cache)
        store, journal = opened.store, opened.journal
        try:
            engine = cls(store, journal, clock, opened.settings, opened.files, on_full, may_reopen, opened.segments)
            await engine._recover(power_lost=opened.power_lost)
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
            cache.cache_bytes = self.settings.result_cache_bytes
            cache.complete_since_ms = self.clock.now_ms()
        for effects in commits:
            for effect in effects:
                self.commits.stage_all(effect.new_messages())
        if self.journal is not None:  # without one the store needs no changes, and requests cost time
            self.journal.start()
            await self.commits.checkpoint()
            await self.upkeep.tidy()

    # ------------------------------------------------------------------ shutdown
    async def close(self) -> None:
        """Write all changes to the store and close it cleanly."""
        self.upkeep.close()
        self.router.close()
        self.loader.close()
        self.repartitioner.close()
        commits = self.commits
        deadline = asyncio.get_running_loop().time() + self.settings.close_seconds
        try:
            if commits.failure is None:
                async with asyncio.timeout_at(deadline):
                    await commits.checkpoint()
                    if self.journal is not None:
                        await self.upkeep.tidy()
                if self.journal is None:  # all is stored; the next broker deletes the remaining garbage
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(deadline):
                            await self.upkeep.tidy()
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
            if self.commits.segments is not None:
                self.commits.segments.close()
        if commits.failure is None:
            await self._files.end(self.store.admin, self.settings.close_seconds)

    async def _close_store(self) -> None:
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
        """Return metrics for the status call, without those of queues. A time of 0 means never."""
        return {
            "next_message_id": self.state.next_id,
            "results": {
                "cached_bytes": self.state.results.results.size_bytes + self.state.results.parts.size_bytes,
                "open_chords": sum(bool(chord.parts) for chord in self.state.results.chords.values()),
            },
            "commits": self.commits.count,
            "journal_bytes": self.journal.waiting_bytes if self.journal else 0,
            "journal_limit_bytes": self.journal.max_bytes if self.journal else 0,
            "checkpoint": self.metrics.last_checkpoint,
            "stalled_seconds": round(self.stalled_seconds, 1),
            "stalled_since_ms": self.clock.now_ms() - int(1000 * stalled) if (stalled := self.stalled_seconds) else 0,
            "disk": self.disk_space.report() | self.size_limit.report(),
        }
