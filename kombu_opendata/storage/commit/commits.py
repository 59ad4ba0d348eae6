"""Commits: effects become durable in the journal immediately, and in the store with the next checkpoint.

With a journal (a local folder) a commit is synchronous and takes 0.1 ms; checkpoints follow in the background. Without
one (an object store, memory) every commit is a checkpoint. In both cases no client may see a change before its commit
has returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Set
from typing import Protocol

from ...errors import OpenDataError, StoreError, StoreFull, StoreUnwritable
from ...file_system import remedy
from ..clock import Clock, TimeSlice
from ..effects import Effect, codec
from ..effects.publishes import SyncedTimeEffect
from ..messages.payloads import Payloads
from ..records.payload import NewMessage, message_rows
from ..records.payload_places import EnvelopePlace
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_writer import SlateStore
from ..state.store_state import Queue, StoreState
from . import checkpoint
from .journal import Journal
from .journal_format import RECORD_BYTES
from .measurements import EngineMetrics, MeasuredCommit, stopwatch
from .payload_segments import LocalSegments, Segments

#: a batch of this size is written immediately; writing it takes about five times as much memory
LARGE_BATCH_BYTES = 2 << 20
#: at this size of the batch, publishes should wait for the current checkpoint
FULL_BATCH_BYTES = 3 << 20


class Participant(Protocol):
    """A service with separate records that the same checkpoints write."""

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""

    def snapshot(self, batch: WriteBatch) -> None:
        """Add all changed records to a checkpoint's batch."""

    async def before_deletion(self, ids: Set[int], batch: WriteBatch) -> None:
        """Prepare for the deletion of messages by the checkpoint.

        Their records can still be read, and other records can be added to the batch.
        """

    def end_flush(self) -> None:
        """Release the data that the completed checkpoint wrote to the store."""


class Commits:
    """The commits and checkpoints of one instance.

    Attributes:
        effects: the changes since the last commit; a commit clears the list and does not replace it.
        needs_sync: a client waits for a reply, so the commit must survive a power loss.
        sync_soon: the commit must survive a power loss after the next interval of checkpoints, but not before.
        new_bytes: the size of the payloads in ``effects``.
        room_bytes: a lower bound of the journal's room, without its reserve; :meth:`check_room` corrects it.
        batch: records for the next checkpoint.
        text_bytes: the size of the tasks' reports that the next checkpoint adds to the batch.
        checkpointing: a lock, held while a checkpoint has taken changes from the dirty sets that the store lacks.
        tidying: a lock, held while the memtable is flushed or the store is reopened. Acquired before ``checkpointing``.
        count: the number of appends to the journal, or of batches if there is no journal.
        is_large: set while the next checkpoint's batch is large; only with a journal.
        snapshot_seconds: the time for which the last checkpoint's snapshot blocked the event loop.
        released_upto: the number of the last journal record that the store contains.
        watches: sets to which checkpoints add the messages that they delete.
        failure: the error after which no commit is possible.
    """

    def __init__(
        self,
        store: SlateStore,
        journal: Journal | None,
        clock: Clock,
        state: StoreState,
        payloads: Payloads,
        metrics: EngineMetrics,
        history: Participant,
        segments: Segments | None = None,
        *,
        sync: bool,
        on_full: Callable[[bool], None],
    ) -> None:
        """Create the commits.

        Args:
            segments: for the envelopes of large messages; None if they are in the records.
            on_full: called with True when the next checkpoint's batch becomes full, and with False when it has room
                again.
        """
        self._store = store
        self._journal = journal
        self._clock = clock
        self._state = state
        self._payloads = payloads
        self._metrics = metrics
        self._history = history
        self.segments = segments
        #: size of the smallest envelope that is written to a segment, and of the smallest that needs :meth:`written`
        self.large_bytes = segments.large_bytes if segments is not None else sys.maxsize
        self.own_bytes = segments.own_bytes if segments is not None else sys.maxsize
        self._written: dict[int, EnvelopePlace] = {}  # by the id() of an envelope, until its message is stored
        self._writing = asyncio.Lock()
        self._sync, self._on_full = sync, on_full
        self._reserved_bytes = state.sizes.reserved_bytes
        self.effects: list[Effect] = []
        self.needs_sync = False
        self.sync_soon = False
        self.new_bytes = 0
        self.room_bytes = 0 if journal is not None else sys.maxsize
        self.batch = store.batch()
        self.text_bytes = 0
        self.checkpointing = asyncio.Lock()
        self.tidying = asyncio.Lock()
        self._waiting_since: float | None = None
        self._open_checkpoints = 0  # checkpoints that wait or run
        self.count = 0
        self.is_large = asyncio.Event()
        self.snapshot_seconds = 0.0
        self.released_upto: int | None = None
        self.watches: list[set[int]] = []
        self.failure: OpenDataError | None = None

    # ------------------------------------------------------------------ the next commit
    def check_room(self, size: int) -> None:
        """Refuse a change that would use the reserve of the journal.

        Raises:
            StoreFull: the disk is full, or the store accepts no writes.
        """
        journal = self._journal
        if journal is None:
            return
        need = self.new_bytes + 2 * size + self._reserved_bytes
        has_room = journal.room >= need or journal.make_room(need)
        self.room_bytes = journal.room - self._reserved_bytes
        if not has_room:
            raise StoreFull(
                "the broker's disk is full or its store takes no writes: nothing was stored; "
                f"{remedy(journal.folder)} and publish again",
                path=str(journal.folder),
            )

    def check_room_for(self, envelope: bytes) -> None:
        """Refuse a new message as :meth:`check_room` does, which is called only if the room may be too small."""
        if self.new_bytes + 2 * len(envelope) > self.room_bytes:
            self.check_room(self.journal_bytes(envelope))

    def journal_bytes(self, envelope: bytes) -> int:
        """Return about the size of a new message or result in the journal: of a large one, only its place is there."""
        return min(len(envelope), self.large_bytes)

    def write_large(self, envelope: bytes) -> EnvelopePlace | None:
        """Write a large envelope, or value of a result, to a segment; return its place, None for a small one.

        Raises:
            StoreFull, StoreError: it can't be written; nothing was changed.
        """
        if len(envelope) < self.large_bytes or self.segments is None:
            return None
        return self._written.pop(id(envelope), None) or self.segments.append(envelope)

    @contextlib.asynccontextmanager
    async def written(self, envelopes: Iterable[bytes]) -> AsyncIterator[None]:
        """Write very large envelopes, one at a time in a thread, for calls of :meth:`write_large` with these objects.

        A segment whose envelope was not stored in the context is removed at its end.

        Raises:
            StoreFull, StoreError: one can't be written; nothing was changed.
        """
        segments, paths = self.segments, dict[int, str]()
        if not isinstance(segments, LocalSegments):
            yield
            return
        try:
            for envelope in envelopes:
                if len(envelope) >= self.own_bytes:
                    paths[id(envelope)] = path = segments.reserve()
                    async with self._writing:
                        place = await asyncio.to_thread(segments.write_own, path, envelope)
                    self._written[id(envelope)] = place
            yield
        finally:
            segments.reserved.difference_update(paths.values())
            for key, path in paths.items():
                self._written.pop(key, None)
                if not self._state.segments.needs(path):
                    await asyncio.to_thread(segments.remove, path)

    def apply(self, effect: Effect) -> None:
        """Apply an effect to the state; the next commit makes it durable."""
        effect.apply(self._state)
        self.effects.append(effect)

    def stage(self, id: int, metadata: bytes, envelope: bytes) -> None:
        """Add a new message's metadata and payload to the batch of the next checkpoint."""
        batch, payloads = self.batch, self._payloads
        batch.put_all(message_rows(id, metadata, b"", envelope))
        payloads.pending[id] = envelope
        payloads.pending_metadata[id] = metadata
        if batch.nbytes >= FULL_BATCH_BYTES:
            self._on_full(True)

    def stage_large(self, id: int, metadata: bytes, record: bytes, envelope: bytes) -> None:
        """Add a new message's metadata and payload record to the batch; its envelope was appended to a segment."""
        self.stage_all((NewMessage(id, metadata, record, b""),))
        if self.segments is None or not self.segments.waiting_bytes:
            self._payloads.keep(id, envelope)
            return
        self._payloads.pending[id] = envelope  # its object does not exist yet
        if self._batch_bytes >= FULL_BATCH_BYTES:
            self._on_full(True)

    @property
    def _batch_bytes(self) -> int:
        """The size of what the next checkpoint writes."""
        return self.batch.nbytes + (self.segments.waiting_bytes if self.segments is not None else 0)

    def stage_all(self, records: Iterable[NewMessage]) -> None:
        """Add the records of new messages to the batch of the next checkpoint."""
        rows: list[tuple[bytes, bytes]] = []
        for record in records:
            if record.uri:
                rows += message_rows(*record)
                self._payloads.pending_staged[record.id] = record
            else:
                self.stage(record.id, record.metadata, record.envelope)
        self.batch.put_all(rows)

    # ------------------------------------------------------------------ the journal
    def commit_journal(self) -> None:
        """Make the pending effects survive the end of the process, and a power loss if a client waits for a reply.

        Raises:
            StoreFull: no room; the effects stay pending and must not be visible to clients.
            StoreError: the disk or a checkpoint failed, now or earlier; the engine must be abandoned.
        """
        assert self._journal is not None
        if self.failure is not None:
            raise self.failure
        if not self.effects and not self.needs_sync:
            return
        start = stopwatch()
        count = len(self.effects)
        size = 0
        try:
            if self.segments is not None and self.segments.needs_sync:
                self.segments.sync()
            if count:
                self._state.newest_ms = newest = max(self._state.newest_ms, self._clock.now_ms())
                payload = codec.encode([*self.effects, SyncedTimeEffect(newest, self._journal.unsynced)])
                self._journal.append(payload, sync=self.needs_sync)
                size = len(payload)
                self.room_bytes -= size + RECORD_BYTES
            else:
                self._journal.sync()
        except StoreUnwritable as exc:
            self.failure = exc  # the journal may contain the effects, so they must not be written again
            raise
        if count:
            self.count += 1
            self.effects.clear()
            self.new_bytes = 0
            if self.batch.nbytes + self.text_bytes >= LARGE_BATCH_BYTES:
                self.is_large.set()
        if self.needs_sync:
            self.needs_sync = self.sync_soon = False
        end = stopwatch()
        self._metrics.commits.append(MeasuredCommit(end - start, count, size, end))

    async def commit(self) -> None:
        """Make the pending effects durable in any kind of store."""
        if self._journal is not None:
            self.needs_sync = True
            self.commit_journal()
        else:
            await self.checkpoint()

    # ------------------------------------------------------------------ the store
    @property
    def has_unused_segment(self) -> bool:
        """True if :meth:`release_segments` would release one. Results expire without a journal record."""
        return self._state.segments.has_unused

    def release_segments(self) -> None:
        """Let segments be deleted whose messages were all deleted. If the open one is among them, end it."""
        segments, state = self.segments, self._state
        if segments is not None and state.segments.is_unused(segments.path):
            segments.end_segment()
        state.staged.unneeded += state.segments.release(segments.path if segments is not None else "")

    async def checkpoint(self) -> None:
        """Bring the store to the state in memory, in one atomic batch.

        A checkpoint continues if its caller is cancelled: the changes that it took from the dirty sets exist nowhere
        else.

        Raises:
            StoreError: the store failed permanently; the engine must be abandoned.
        """
        await asyncio.shield(asyncio.get_running_loop().create_task(self._checkpoint()))

    async def checkpoint_ended(self) -> None:
        """Wait for the current checkpoint, if there is one.

        Raises:
            StoreError: it failed; the engine must be abandoned.
        """
        async with self.checkpointing:
            if self.failure is not None:
                raise self.failure

    async def catch_up(self) -> None:
        """Bring the store to the state in memory, with a checkpoint if one is needed.

        Raises:
            StoreError: the store failed permanently; the engine must be abandoned.
        """
        if self.is_dirty:
            await self.checkpoint()
        else:
            await self.checkpoint_ended()

    def unwatch(self, watch: set[int]) -> None:
        """Stop adding deleted messages to a set."""
        self.watches = [other for other in self.watches if other is not watch]

    async def _checkpoint(self) -> None:
        clock = asyncio.get_running_loop().time
        self._open_checkpoints += 1
        if self._waiting_since is None:
            self._waiting_since = clock()
        try:
            await self._write_checkpoint()
        finally:
            self._open_checkpoints -= 1
            self._waiting_since = clock() if self._open_checkpoints else None

    async def _write_checkpoint(self) -> None:
        async with self.checkpointing:
            position = None
            count = len(self.effects)
            if self._journal is not None:
                self.needs_sync |= self.sync_soon
                self.commit_journal()
                position = self._journal.sequence
            else:
                self.effects.clear()
                self.new_bytes = 0
            upload = self.segments.begin_flush() if self.segments is not None else None
            now = self._clock.now_ms()
            self._state.time(now)
            batch = self.batch
            self.batch = self._store.batch()
            self.text_bytes = 0
            self.is_large.clear()
            self._payloads.begin_flush()
            start = asyncio.get_running_loop().time()
            try:
                touched = await self._write(batch, position, now, upload)
                self.count += self._journal is None
            except BaseException as exc:
                self.failure = exc if isinstance(exc, OpenDataError) else StoreError(f"a checkpoint failed: {exc!r}")
                raise
            seconds = asyncio.get_running_loop().time() - start
            self._metrics.checkpointed(seconds, batch.nbytes, self._clock.now_ms())
            if self._journal is None:
                self._metrics.commits.append(MeasuredCommit(seconds, count, batch.nbytes, stopwatch()))
            await self._end_flush(touched, now)
            if self._batch_bytes < FULL_BATCH_BYTES:
                self._on_full(False)
            if self._journal is not None and position is not None and not self._sync:
                self._journal.release(position)
            self.released_upto = position

    async def _write(
        self, batch: WriteBatch, position: int | None, now: int, upload: Callable[[], None] | None
    ) -> list[Queue]:
        """Write all changes; return the queues that changed."""
        start = asyncio.get_running_loop().time()
        dirty = checkpoint.snapshot(self._state, batch, position, now)
        self._history.snapshot(batch)
        self.snapshot_seconds = asyncio.get_running_loop().time() - start
        if upload is not None:  # after the snapshot: publishes during it have their records in the next batch
            await asyncio.to_thread(upload)
        fresh = checkpoint.Fresh(self._payloads.flushing, self._payloads.flushing_staged)
        deleted_ids = await checkpoint.resolve(dirty, batch, self._store, fresh, self._state)
        for watch in self.watches:
            watch.update(deleted_ids)
        await self._history.before_deletion(deleted_ids, batch)
        await self._store.write(batch)
        await self._store.flush_wal()
        return dirty.touched

    async def _end_flush(self, touched: list[Queue], now: int) -> None:
        piece = TimeSlice()
        for queue in touched:
            for _ in queue.messages.evict(now):
                await piece.pause()
        available_ids: list[int] = []
        for queue in touched:
            available_ids += queue.messages.available.keys() & self._payloads.flushing.keys()
        self._payloads.end_flush(available_ids)
        self._state.results.end_flush()
        self._state.idempotency.end_flush()
        self._state.staged.end_flush()
        self._state.segments.end_flush()
        self._history.end_flush()

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        journal, state = self._journal, self._state
        if self.effects or state.dirty or state.results.is_dirty or state.staged.is_dirty or state.segments.is_dirty:
            return True
        if state.idempotency.is_dirty or state.running.dirty or state.handled.is_dirty:
            return True
        return self._history.is_dirty or (journal is not None and journal.sequence != (self.released_upto or 0))

    @property
    def rewrites_partitions(self) -> bool:
        """True if a checkpoint writes a bucket of most partitions, so that later it would write hardly more buckets."""
        queues = (self._state.queues.get(name) for name in self._state.changed)
        messages = [queue.messages for queue in queues if queue is not None]
        counts = [(len(each.partitions), len(each.dirty)) for each in messages if each.partitions is not None]
        return 0 < sum(partitions for partitions, _ in counts) <= 2 * sum(dirty for _, dirty in counts)

    @property
    def stored(self) -> int | None:
        """A number that changes with every write to the store: its last journal record, or the number of batches."""
        return self.released_upto if self._journal is not None else self.count

    @property
    def waiting_seconds(self) -> float:
        """The seconds for which a checkpoint has been waiting or running without completion; 0 if there is none."""
        if self._waiting_since is None:
            return 0.0
        return asyncio.get_running_loop().time() - self._waiting_since

    @property
    def stalled_seconds(self) -> float:
        """The seconds for which a requested commit has not completed; 0 with a journal, whose commits don't wait."""
        return self.waiting_seconds if self._journal is None else 0.0
