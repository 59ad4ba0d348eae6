"""The storage engine: one instance's state in memory, its commits and its checkpoints.

With a journal (a local folder) a commit is synchronous and takes a tenth of a millisecond; checkpoints follow in the
background. Without one (an object store, memory) every commit is a checkpoint. Either way nothing may be shown to
anybody before the commit that covers it returned.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..errors import CorruptRecord, OpenDataError, StoreError, StoreFull
from . import checkpoint, effects, powerloss, recovery
from .clock import Clock
from .collector import Collector
from .disk_space import LOOK_SECONDS, DiskSpace
from .figures import EngineFigures, stopwatch
from .history.service import DEFAULT_RETENTION_SECONDS, History
from .idempotency import Idempotency
from .idle_store import IdleStore
from .journal import SEGMENT_BYTES, Journal
from .log_retention import LogSweep
from .object_store import locate
from .operations import Call
from .operations_by_id import OperationsById
from .payloads import Payloads
from .queue_buckets import Entry
from .records import active, keys
from .results import Results
from .routing import Router
from .size_limit import SizeLimit
from .slate import SlateSettings, SlateStore
from .slate_admin import SlateAdmin, collect_all
from .staged import Staging
from .state import Queue, StoreState

log = logging.getLogger(__name__)

#: messages of a backlog that are read from the store in one go, and how few left to deliver make it happen
_AHEAD = 2048
_AHEAD_MIN = 512
#: a queue whose payloads could not be read is tried again after
_RETRY_SECONDS = 1.0
#: who fails messages whose payloads are lost
_BROKER_SESSION = bytes(16)


@dataclass(frozen=True)
class EngineSettings:
    """How an engine works. Sizes in bytes, times in the unit the name ends with."""

    sync: bool = True
    checkpoint_interval_ms: int = 100
    tidy_interval_seconds: float = 5.0
    retention_interval_seconds: float = 10.0
    payload_cache_bytes: int = 16 << 20
    result_cache_bytes: int = 16 << 20
    journal_segment_bytes: int = SEGMENT_BYTES
    journal_max_bytes: int = 1 << 30
    stall_seconds: float = 5.0
    close_seconds: float = 20.0
    slow_commit_seconds: float = 1.0  # is worth a line in the log
    retention_bytes: int = 0  # past it the oldest settled messages go early; 0: no limit
    idle_seconds: float = 300.0  # without writes, then SlateDB looks into a bucket less often; 0: never
    history: bool = True  # off: nothing is written or found; what was written stays
    history_retention_seconds: float = DEFAULT_RETENTION_SECONDS
    log_retention_seconds: float = 0.0  # since a message was received; 0: while a queue needs it; inf: for ever
    slate: SlateSettings = field(default_factory=SlateSettings)


class Engine(OperationsById):
    """One instance of a store. Use :meth:`open`."""

    def __init__(self, store: SlateStore, journal: Journal | None, clock: Clock, settings: EngineSettings) -> None:
        super().__init__()
        self.store = store
        self.journal = journal
        self.clock = clock
        self.settings = settings
        self.state = StoreState()
        self.payloads = Payloads(store, settings.payload_cache_bytes)
        self.batch = store.batch()
        self.collector = Collector(self)
        self.results = Results(self)
        self.router = Router(self)
        self.figures = EngineFigures(settings.slow_commit_seconds)
        self.idempotency = Idempotency(self)
        self.staging = Staging(self)
        self.payloads.batches = self.staging.reader
        self.history = History(self)
        self.log_sweep = LogSweep(self)
        self.disk_space = DiskSpace(store.admin, store.clock)
        self.size_limit = SizeLimit(self, settings.retention_bytes)
        self.failure: OpenDataError | None = None
        self.commits = 0  # appends to the journal, or batches where there is none
        self.checkpoint_started_at: float | None = None
        self.checkpointing = asyncio.Lock()  # held while the store is behind the state's dirty sets
        self.stored_upto = 0  # the records of all messages below this id are in the store
        self.watches: list[set[int]] = []  # to each is added what checkpoints collect
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._folder: Path | None = None
        self._sync_point: powerloss.SyncPoint | None = None

    @classmethod
    async def open(cls, url: str, instance: str, clock: Clock, settings: EngineSettings | None = None) -> Engine:
        """Open or create an instance of a store.

        Args:
            url: an object store: ``file:///folder``, ``s3://bucket/prefix``, ``memory://name``, …
            instance: the name of the instance, one path element.

        Raises:
            StoreUnwritable, StoreInUse, NewerFormat, CorruptRecord, StoreError: it can't be opened; the text says why.
        """
        settings = settings or EngineSettings()
        folder = Path(unquote(url.removeprefix("file://"))) / instance if url.startswith("file://") else None
        if folder is not None and not settings.sync:
            powerloss.forget(folder)
        elif folder is not None:
            moved = powerloss.heal_after_power_loss(folder)
            if moved:
                log.warning("after a power loss %d unsynced files were put aside: %s", len(moved), ", ".join(moved))
        if folder is not None and (folder / "manifest").is_dir():
            await _make_room(url, instance, folder, settings)
        store = await SlateStore.open(url, instance, settings=settings.slate)
        journal = None
        try:
            await recovery.check_header(store, instance, clock.now_ms())
            if folder is not None:
                journal = Journal(
                    folder.with_name(f"{instance}.journal"),
                    segment_bytes=settings.journal_segment_bytes,
                    max_bytes=settings.journal_max_bytes,
                    sync=settings.sync,
                )
            engine = cls(store, journal, clock, settings)
            engine._folder = folder
            await engine._recover()
        except BaseException:
            await store.close()
            if journal is not None:
                journal.close()
            raise
        return engine

    async def _recover(self) -> None:
        history = await self.history.load() if self.settings.history else None
        self.state, publishes = await recovery.recover(self.store, self.journal, self.clock, history)
        self.log_sweep.configure(self.settings.log_retention_seconds)
        for shelf in (self.state.results.results, self.state.results.parts):
            shelf.cache_bytes, shelf.complete_since_ms = self.settings.result_cache_bytes, self.clock.now_ms()
        for effect in publishes:
            if effect[0] == effects.STAGED_ROUTE:
                self.staging.restage(effect)
                continue
            _, id, created, received, visible, _deadline, retention, headers, envelope, *_rest = effect
            row = checkpoint.message_rows(id, created, received, visible, retention, headers)
            self._stage(id, envelope, row)
        if self.journal is not None:
            self.journal.start()
        await self.checkpoint()
        await self.tidy()

    # ------------------------------------------------------------------ commits
    def commit_journal(self) -> None:
        """Make all effects so far survive the end of the process, and a power loss if something waits for an answer.

        Raises:
            StoreFull: no room; the effects stay pending, and nothing of them may be shown.
        """
        assert self.journal is not None
        if not self.effects and not self.needs_sync:
            return
        began = stopwatch()
        count = len(self.effects)
        size = 0
        if count:
            self.state.time(self.clock.now_ms())
            payload = effects.encode([*self.effects, (effects.TIME, self.state.newest_ms)])
            self.journal.append(payload)
            size = len(payload)
            self.commits += 1
            self.effects = []
            self.new_bytes = 0
        if self.needs_sync:
            self.journal.sync()
            self.needs_sync = self.sync_soon = False
        self.figures.committed(stopwatch() - began, count, size)

    async def commit(self) -> None:
        """Make all effects so far durable, whatever the kind of store."""
        if self.journal is not None:
            self.needs_sync = True
            self.commit_journal()
        else:
            await self.checkpoint()

    async def checkpoint(self) -> None:
        """Bring the store to the state in memory, in one atomic batch.

        A checkpoint that began goes on when its caller is cancelled: what it took from the dirty sets is nowhere else.

        Raises:
            StoreError: the store failed for good; the engine must be given up.
        """
        await asyncio.shield(asyncio.get_running_loop().create_task(self._checkpoint()))

    async def checkpoint_ended(self) -> None:
        """Wait for the checkpoint under way, if there is one.

        Raises:
            StoreError: it failed; the engine must be given up.
        """
        async with self.checkpointing:
            if self.failure is not None:
                raise self.failure

    def unwatch(self, watch: set[int]) -> None:
        """No longer add to a set what checkpoints collect."""
        self.watches = [one for one in self.watches if one is not watch]

    async def _checkpoint(self) -> None:
        async with self.checkpointing:
            position = None
            count = len(self.effects)
            if self.journal is not None:
                self.needs_sync |= self.sync_soon
                self.commit_journal()
                position = self.journal.sequence
            else:
                self.effects = []
                self.new_bytes = 0
            now = self.clock.now_ms()
            self.state.time(now)
            batch, self.batch = self.batch, self.store.batch()
            self.payloads.begin_flush()
            began = self.checkpoint_started_at = asyncio.get_running_loop().time()
            try:
                next_id = self.state.next_id
                dirty = checkpoint.snapshot(self.state, batch, position, now)
                self.history.snapshot(batch)
                gone = await checkpoint.resolve(dirty, batch, self.store, self.payloads.flushing, self.state)
                for watch in self.watches:
                    watch.update(gone)
                await self.history.keep_headers(gone, batch)
                await self.store.write(batch)
                await self.store.flush_wal()
                self.commits += self.journal is None
            except BaseException as exc:
                self.failure = exc if isinstance(exc, OpenDataError) else StoreError(f"a checkpoint failed: {exc!r}")
                raise
            self.checkpoint_started_at = None
            self.stored_upto = next_id
            seconds = asyncio.get_running_loop().time() - began
            self.figures.checkpointed(seconds, batch.nbytes)
            if self.journal is None:
                self.figures.committed(seconds, count, batch.nbytes)
            self._end_checkpoint(now, position)

    def _end_checkpoint(self, now: int, position: int | None) -> None:
        wanted: list[int] = []
        for queue in self.state.queues.values():
            queue.messages.evict(now)
            wanted += queue.messages.available.keys() & self.payloads.flushing.keys()
        self.payloads.end_flush(wanted)
        self.state.results.end_flush()
        self.state.idempotency.end_flush()
        self.state.staged.end_flush()
        self.history.end_flush()
        if self.journal is not None and position is not None and not self.settings.sync:
            self.journal.release(position)
        self._released_upto = position

    _released_upto: int | None = None

    @property
    def _stored(self) -> int | None:
        """What the store holds, to tell whether it was written: the journal's last record, or the number of batches."""
        return self._released_upto if self.journal is not None else self.commits

    @property
    def is_dirty(self) -> bool:
        """Whether a checkpoint has anything to do."""
        journal = self.journal
        state = self.state
        return bool(self.effects) or bool(state.dirty) or state.results.is_dirty or state.staged.is_dirty or (
            state.idempotency.shelf.is_dirty or self.history.is_dirty
        ) or (
            journal is not None and journal.sequence != (self._released_upto or 0)
        )  # fmt: skip

    @property
    def stalled_seconds(self) -> float:
        """How long the store has not taken the checkpoint under way, past the usual."""
        if self.checkpoint_started_at is None:
            return 0.0
        waited = asyncio.get_running_loop().time() - self.checkpoint_started_at
        return waited if waited > self.settings.stall_seconds else 0.0

    async def tidy(self) -> None:
        """Sync the store's files, release the journal, collect SlateDB's garbage. Every few seconds."""
        async with self.checkpointing:
            upto = self._released_upto
            await self.store.flush_memtable(keys.STORE_HEADER_KEY)
            if self._folder is not None and self.settings.sync:
                self._sync_point = await asyncio.to_thread(powerloss.sync_tree, self._folder, self._sync_point)
            if self.journal is not None and upto is not None:
                self.journal.release(upto)
            if await self.store.collect_garbage():
                self.disk_space.collected()
            if self._folder is not None and self.settings.sync:
                self._sync_point = await asyncio.to_thread(powerloss.sync_tree, self._folder, self._sync_point)
        await self.staging.remove_unneeded()

    async def run_maintenance(self) -> None:
        """Checkpoint and tidy until cancelled. Retention is the broker's to start: see :class:`Collector`.

        Raises:
            StoreError: the store failed for good.
        """
        loop = asyncio.get_running_loop()
        next_tidy = loop.time() + self.settings.tidy_interval_seconds
        next_look = loop.time()
        tidied_at = self._stored
        idle = None
        if self.journal is None and self.settings.idle_seconds:
            idle = IdleStore(self.store, self.settings.slate, self.settings.idle_seconds)
        while True:
            await asyncio.sleep(self.settings.checkpoint_interval_ms / 1000)
            if self.journal is not None:
                if self.is_dirty:
                    try:
                        await self.checkpoint()
                    except StoreFull:
                        log.warning("the journal is full; waiting for the store")
                if not self.journal.has_spare:
                    await asyncio.to_thread(self.journal.prepare_spare)
            if loop.time() >= next_look:
                if idle is None or not idle.is_idle or self.disk_space.is_held:
                    await self.disk_space.look()
                next_look = loop.time() + LOOK_SECONDS
            if loop.time() >= next_tidy:
                was_written = self._stored != tidied_at
                if was_written or self.disk_space.is_worth_collecting:
                    await self.tidy()
                    tidied_at = self._stored
                if idle is not None and (settings := idle.change(was_written)) is not None:
                    # not cut in two by a cancellation: the end of the engine needs an open store
                    await asyncio.shield(loop.create_task(self._reopen(idle, settings)))
                next_tidy = loop.time() + self.settings.tidy_interval_seconds

    async def _reopen(self, idle: IdleStore, settings: SlateSettings) -> None:
        async with self.checkpointing:
            try:
                await idle.reopen(settings)
            except StoreError as exc:
                self.failure = exc
                raise

    async def close(self) -> None:
        """Write everything to the store and close it cleanly."""
        self.router.close()
        for task in self._loading.values():
            task.cancel()
        try:
            if self.failure is None:
                async with asyncio.timeout(self.settings.close_seconds):
                    await self.checkpoint()
                    await self.tidy()
        except TimeoutError:
            if self.journal is None:
                raise StoreError(f"the store took no writes for {self.settings.close_seconds:g} s at the end") from None
            log.error("the store takes no writes (disk full?): the rest stays in the journal")
            return
        finally:
            await self._close_store()
            if self.journal is not None:
                self.journal.close()
        if self.failure is None and self._folder is not None:
            await self._close_folder(self._folder)

    async def _close_folder(self, folder: Path) -> None:
        """Delete what nobody needs any more, and record that all the rest is on the disk."""
        if self.settings.sync:
            await asyncio.to_thread(powerloss.sync_tree, folder, self._sync_point)
        try:
            async with asyncio.timeout(self.settings.close_seconds):
                await collect_all(self.store.admin)
        except (TimeoutError, StoreError) as exc:
            reason = exc.text if isinstance(exc, StoreError) else "it took too long"
            log.warning("not all garbage was deleted; the next broker goes on with it: %s", reason)
        if self.settings.sync:
            await asyncio.to_thread(powerloss.mark_clean, folder)

    async def _close_store(self) -> None:
        self.staging.close()
        try:
            async with asyncio.timeout(self.settings.close_seconds):
                await self.store.close()
        except TimeoutError:
            log.error("the store could not be closed within %g s", self.settings.close_seconds)

    # ------------------------------------------------------------------ reading what is not in memory
    def next_entry(self, queue: Queue, now: int) -> tuple[Entry | None, bool]:
        """The next message to deliver, with its payload at hand, or (None, whether one is being loaded).

        Expired messages on the way are removed. After a load the ``on_loaded`` callback runs.
        """
        messages = queue.messages
        messages.promote(now)
        while True:
            entry = messages.peek(now)
            wanted = messages.wanted(now, entry)
            if wanted is not None or (entry is not None and self.payloads.find(entry.id) is None):
                self._load(queue)
                return None, True
            if entry is None or not entry.deadline or entry.deadline > now or entry.id in messages.fresh:
                return entry, False
            self.remove(queue, [entry], "expired")

    def prefetch(self, queue: Queue) -> None:
        """Called for each delivery: load what comes next before it is needed."""
        queue.at_hand -= 1
        if queue.at_hand < _AHEAD_MIN and queue.messages.next_cold() is not None:
            self._load(queue)

    def on_loaded(self, queue: Queue) -> None:
        """Called when a load is over; replaced by the owner."""

    def _load(self, queue: Queue) -> None:
        if queue.name not in self._loading:
            task = asyncio.get_running_loop().create_task(self._load_next(queue))
            self._loading[queue.name] = task
            task.add_done_callback(lambda done: self._load_done(queue, done))

    def _load_done(self, queue: Queue, task: asyncio.Task[None]) -> None:
        self._loading.pop(queue.name, None)
        if not task.cancelled():
            exc = task.exception()
            if exc is not None:
                log.error("queue %r can't be read: %s", queue.name, exc)
                if isinstance(exc, StoreError) and not isinstance(exc, CorruptRecord):
                    asyncio.get_running_loop().call_later(_RETRY_SECONDS, self.on_loaded, queue)
                return
            self.on_loaded(queue)

    async def _load_next(self, queue: Queue) -> None:
        now = self.clock.now_ms()
        messages = queue.messages
        number = messages.wanted(now, messages.peek(now))
        upcoming: list[Entry] = []
        while number is not None or len(upcoming := messages.upcoming(_AHEAD)) < _AHEAD:
            number = messages.next_cold() if number is None else number
            if number is None:
                break
            await self.load_bucket(queue, number)
            if number in messages.cold:
                return  # the queue was deleted, or the bucket changed meanwhile
            messages.promote(now)
            number = None
        broken = await self.payloads.load_some([entry.id for entry in upcoming])
        queue.at_hand = len(upcoming) - len(broken)
        for id, exc in broken.items():
            self._give_up(queue, id, exc)

    def _give_up(self, queue: Queue, id: int, reason: CorruptRecord) -> None:
        """A message whose payload is lost goes to the failed list; the others are delivered."""
        entry = queue.messages.available.get(id)
        if entry is not None and self.state.queues.get(queue.name) is queue:
            log.error("message %d of queue %r can't be delivered and has failed: %s", id, queue.name, reason)
            self.claim(queue, (entry,), _BROKER_SESSION)
            self.fail(queue, (entry,), "opendata-queue broker", "")

    async def load_bucket(self, queue: Queue, number: int) -> None:
        """Bring a cold bucket into memory."""
        key = keys.active_key(queue.name, number)
        summary = queue.messages.cold.get(number)
        value = await self.store.get(key)
        current = summary is not None and queue.messages.cold.get(number) is summary
        if current and self.state.queues.get(queue.name) is queue:
            lists = active.decode(key, value or b"")
            queue.messages.restore(number, lists[0], lists[1], self.clock.now_ms())

    async def find_entries(self, queue: Queue, ids: Iterable[int]) -> None:
        """Load the cold buckets that may have these messages, usually one for each: ids ascend with the buckets."""
        for number in queue.messages.cold_buckets_of(ids):
            if number in queue.messages.cold and self.state.queues.get(queue.name) is queue:
                await self.load_bucket(queue, number)

    async def purge(self, queue: Queue, call: Call | None = None) -> int:
        """Remove every available message; returns how many.

        Args:
            call: whose purge it is. If the broker ended during the same call before, it goes on with that, and returns
                how many were removed in all.
        """
        before = self.removal_of(call)
        if before.is_over:
            return before.messages
        removed = await self._remove_available(queue, call)
        self.note_removal(call, removed, is_over=True)
        await self.commit()
        return removed

    async def _remove_available(self, queue: Queue, call: Call | None = None) -> int:
        """When this returns there is no cold bucket; they are loaded one after the other."""
        messages = queue.messages
        removed = self.removal_of(call).messages
        removed += self.remove(queue, list(messages.available.values()))
        self.note_removal(call, removed)
        while messages.cold:
            await self.load_bucket(queue, next(iter(messages.cold)))
            removed += self.remove(queue, list(messages.available.values()))
            self.note_removal(call, removed)
        return removed

    async def delete_queue(self, queue: Queue, call: Call | None = None) -> int:
        """Remove a queue with everything in it; returns how many messages were waiting. ``call`` as for a purge."""
        await self.idempotency.look()
        removed = await self._remove_available(queue, call)
        self.note_removal(call, removed, is_over=True)
        self.idempotency.drop_queue(queue.name)
        self.drop_queue(queue.name)  # with no await in between: nothing is left in it
        await self.checkpoint()
        return removed

    def report(self) -> dict[str, Any]:
        """Figures for the status call; those of queues are not among them."""
        return {
            "next_message_id": self.state.next_id,
            "results": {
                "cached_bytes": self.state.results.results.size_bytes + self.state.results.parts.size_bytes,
                "open_chords": sum(bool(chord.parts) for chord in self.state.results.chords.values()),
            },
            "commits": self.commits,
            "journal_bytes": self.journal.waiting_bytes if self.journal else 0,
            "stalled_seconds": round(self.stalled_seconds, 1),
            "disk": self.disk_space.report() | self.size_limit.report(),
        }


async def _make_room(url: str, instance: str, folder: Path, settings: EngineSettings) -> None:
    """On a disk that is almost full, delete what nobody needs before the database is opened.

    An open one must write before it may delete, and its compactor takes what was freed.
    """
    if shutil.disk_usage(folder).free >= settings.journal_max_bytes:
        return
    try:
        async with asyncio.timeout(settings.close_seconds):
            await collect_all(SlateAdmin(locate(url, instance, create=False)))
    except (TimeoutError, StoreError) as exc:
        reason = exc.text if isinstance(exc, StoreError) else "it took too long"
        log.warning("the disk is almost full, and garbage could not be deleted: %s", reason)
