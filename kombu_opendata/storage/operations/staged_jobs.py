"""Commit, routing and deletion of staged jobs and their objects. No client may see a change before the commit.

docs/rfcs/0008-staged-batches.md defines the protocol, :mod:`..state.staged_state` the state; the broker determines the
routes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from heapq import nsmallest
from itertools import chain, groupby

from ...errors import InvalidURL, OpenDataError
from ...staging.batch_block import IndexBlock
from ...staging.folder import FolderEntry
from ...staging.folder_url import StagedFolder
from ..clock import TimeSlice
from ..commit.payload_segments import LocalSegments
from ..effects import Effect
from ..effects.staged_jobs import (
    CancelJobEffect,
    CommitStagedEffect,
    CommitStagedJobEffect,
    CompleteJobEffect,
    DeleteJobEffect,
    FollowStagedEffect,
    RouteStagedEffect,
    StagedChunk,
    records_of,
)
from ..engine_parts import EngineParts, EngineService
from ..records import field_types, keys
from ..records.payload_places import is_segment
from ..records.staged_jobs import StagedJob
from ..state.partitions import Partition
from ..state.queue_state import QueueState
from ..state.staged_state import NO_OPTIONS, JobOptions, StagedBatch
from ..state.store_state import Queue
from .archive_and_delete import GARBAGE_PER_CHECKPOINT
from .message_operations import Operations
from .queue_loader import QueueLoader

log = logging.getLogger(__name__)

#: retention of a job after its last task ended
JOB_RETENTION_MS = 7 * 86_400_000
#: the age at which staged objects that no committed job refers to are removed
ORPHAN_AGE_MS = 24 * 3_600_000
#: by which the clocks of brokers and of the bucket may differ
_CLOCKS_MS = 60_000
#: files that are removed with one call
_DELETE = 1000
_FORGET_LIMIT = 10_000
#: the most counts of queues in one page of jobs
_PAGE_COUNTS = 20_000
#: approximate journal bytes of one batch of a job
_BATCH_BYTES = 150


class Staging(EngineService):
    def __init__(self, parts: EngineParts, operations: Operations, loader: QueueLoader, folder: StagedFolder) -> None:
        super().__init__(parts)
        self._operations, self._loader = operations, loader
        self.state = parts.state.staged
        self.folder = folder
        self.orphan_age_ms = ORPHAN_AGE_MS
        self.removed = 0  # objects, since startup
        self._opened_at_ms = parts.clock.now_ms()

    # ------------------------------------------------------------------ jobs
    def running(self) -> Counter[str]:
        """Return the number of tasks that run, by job."""
        tasks, queues = self._state.running, self._state.queues
        ids = [id for _queue, id, _token in tasks.by_lease]
        for name, id, token in chain.from_iterable(tasks.late.values()):
            entry = queues[name].messages.in_flight.get(id) if name in queues else None
            if entry is not None and entry.claimed_at == token:
                ids.append(id)
        return Counter(job_id for id in ids if (job_id := self.state.job_id_of(id)) is not None)

    def follow(self, id: int, predecessor: int, queues: list[str]) -> None:
        """Record that a new message in these queues follows another message of a task of a job."""
        self._commits.apply(FollowStagedEffect(id, predecessor, queues))

    def commit(self, job_id: str, batches: list[StagedBatch], options: JobOptions = NO_OPTIONS) -> StagedJob:
        """Add a job, whose messages are the rows of these batches."""
        self._commits.check_room(_BATCH_BYTES * (1 + len(batches)) + len(options.on_complete))
        fields = job_id, self._clock.now_ms(), self._operations.allocate_ids(sum(batch.rows for batch in batches))
        self._apply(
            CommitStagedEffect(*fields, batches)
            if options == NO_OPTIONS
            else CommitStagedJobEffect(*fields, batches, options)
        )
        return self.state.jobs[job_id]

    def _apply(self, effect: Effect) -> None:
        self._commits.apply(effect)
        self._commits.needs_sync = True

    def cancel(self, job: StagedJob) -> None:
        """Record that a job is cancelled, and drop its rows that are not routed."""
        self._apply(CancelJobEffect(job.id, self._clock.now_ms()))

    def complete(self, job: StagedJob) -> None:
        """Record that a job's message on completion was sent, or can't be sent."""
        self._apply(CompleteJobEffect(job.id, self._clock.now_ms()))

    def delete(self, job: StagedJob) -> None:
        """Delete the record of a settled job."""
        self._apply(DeleteJobEffect(job.id, job.settled_at_ms))

    async def remove_waiting(self, job: StagedJob, queue: Queue, on_step: Callable[[], None]) -> int:
        """Remove the messages of a job's tasks that wait in a queue; return their number.

        Args:
            on_step: called after each step, to commit it.
        """
        messages, pace, removed = queue.messages, TimeSlice(), 0
        ids = range(job.first_id, job.first_id + job.rows)
        others = self.state.tasks.followers_of(job)
        cold = [number for number, summary in messages.cold.items() if summary.overlaps(ids) or summary.spans(others)]
        for number in sorted([*messages.buckets, *cold]):
            if number in messages.cold:
                await self._loader.load_bucket(queue, number)
            if self._state.queues.get(queue.name) is not queue:
                break
            bucket = messages.buckets.get(number)
            entries = (
                []
                if bucket is None
                else [entry for entry in bucket.available.values() if self.state.job_id_of(entry.id) == job.id]
            )
            if entries:
                removed += self._operations.remove(queue, entries)
                on_step()
            if len(self._state.dirty.garbage) >= GARBAGE_PER_CHECKPOINT:
                await self._commits.checkpoint()
            await pace.pause()
        return removed

    def route(self, chunk: StagedChunk, block: IndexBlock | None, targets: list[list[Queue]], runs: list[int]) -> None:
        """Add a job's next rows to queues.

        Args:
            block: the decoded block of the chunk; None for damaged rows.
            targets: lists of queues.
            runs: flat list target, rows, …; target -1 for rows without a queue.
        """
        size = len(chunk.block) + len(chunk.payload)
        self._commits.check_room(size)
        names = [[queue.name for queue in queues] for queues in targets]
        places = self._choose_places(block, targets, runs) if block is not None else {}
        effect = RouteStagedEffect.of(chunk, names, runs, places)
        effect.apply_block(self._state, block)
        self._commits.effects.append(effect)
        self._commits.new_bytes += size
        self._commits.sync_soon = True
        if block is not None:
            self._commits.stage_all(records_of(chunk, block, runs))

    def _choose_places(self, block: IndexBlock, targets: list[list[Queue]], runs: list[int]) -> dict[str, list[int]]:
        """Return the buckets for the rows of a chunk, by queue: a flat list bucket, rows, …; open their partitions."""
        fillings: dict[str, _Filling] = {}
        operations, row = self._operations, 0
        for queue in chain.from_iterable(targets):
            fillings[queue.name] = _Filling(queue.messages)
            if queue.messages.partitions is not None:  # later, the new partitions of the rows are empty, too
                operations.close_partitions(queue.name, queue.messages.partitions)
        for target, rows in zip(runs[::2], runs[1::2], strict=True):
            for queue in targets[target] if target >= 0 else ():
                filling, partitions = fillings[queue.name], queue.messages.partitions
                if partitions is None or not partitions.rules.by:
                    filling.add(rows)
                    continue
                for number in range(row, row + rows):
                    key = partitions.rules.key_of(block.headers_of(number))
                    filling.add(1, operations.open_partition(queue.name, partitions, key))
            row += rows
        return {name: filling.runs for name, filling in fillings.items()}

    def page(self, after: str, limit: int) -> tuple[list[StagedJob], bool]:
        """Return the jobs after an id, in the order of the ids' bytes, and True if there are more."""
        start = after.encode()
        ids = nsmallest(limit + 1, (id for id in self.state.ids() if id.encode() > start), key=str.encode)
        page: list[StagedJob] = []
        counts = 0
        for job in map(self.state.existing, ids[:limit]):
            counts += len(job.queues)
            if page and counts > _PAGE_COUNTS:
                break
            page.append(job)
        return page, len(ids) > len(page)

    # ------------------------------------------------------------------ collection
    async def forget_old(self, now: int) -> int:
        """Delete jobs that have ended long ago; return the number of expired records."""
        start = keys.kind_range(keys.RecordKind.STAGED_EXPIRY)[0]
        end = keys.staged_expiry_key(max(now - JOB_RETENTION_MS, 0))
        rows = await self._store.scan(start, end, limit=_FORGET_LIMIT)
        for key, value in rows:
            field_types.read_version_only(key, value)
            parsed = keys.parse(key)
            self.state.forget(parsed.name or "", parsed.expires_at_ms or 0)
        return len(rows)

    async def remove_unneeded(self, count: int) -> None:
        """Delete the first unneeded objects, which a sync followed. Errors are logged and retried later.

        Readers of the store and backups may still need the objects: while one has a checkpoint, the objects remain.
        """
        while count:
            size = min(count, _DELETE)
            count -= size
            paths, self.state.unneeded = self.state.unneeded[:size], self.state.unneeded[size:]
            try:
                if await self._is_held():
                    self.state.unneeded += paths
                    break
                self.removed += await asyncio.to_thread(self.folder.open().delete, paths)
            except OpenDataError as exc:
                log.warning("unneeded staged batches can't be removed now: %s", exc)
                self.state.unneeded += paths
                break

    async def _is_held(self) -> bool:
        """Return True if a reader or a backup may need objects that the current state does not need."""
        return await self._store.admin.is_held(self._store.clock.now_ms())

    async def remove_orphans(self, now: int, alone: Callable[[str], AbstractAsyncContextManager[None]]) -> None:
        """Delete old staged objects that no committed job refers to.

        ``alone``: the lock of a job, which its commit and its abort acquire, too.
        """
        try:
            if await self._is_held():  # a reader may need an orphan that a job needed before the last startup
                return
            folder = self.folder.open()
            pages = folder.batches()
            while (page := await asyncio.to_thread(next, pages, None)) is not None:
                old = [file.path for file in page if self._is_old(file, now)]
                for job, paths in groupby(old, lambda path: path.partition("/")[0]):
                    async with alone(job):
                        unneeded = set(self.state.unneeded)
                        orphans = [path for path in paths if path not in unneeded and not self._is_needed(path)]
                        if orphans:
                            self.removed += await asyncio.to_thread(folder.delete, orphans)
        except InvalidURL:
            return
        except OpenDataError as exc:
            log.warning("staged batches of jobs that were never committed can't be listed: %s", exc)

    def _is_old(self, file: FolderEntry, now: int) -> bool:
        """Return True if an object is an orphan unless a message needs it."""
        if is_segment(file.path):
            # in a bucket, a broker that was replaced may not know it yet: its successor's objects are newer
            is_local = isinstance(self._commits.segments, LocalSegments)
            return is_local or file.changed_at_ms < self._opened_at_ms - _CLOCKS_MS
        # bad rows can be read as long as the record of a job that ends immediately
        return file.changed_at_ms < now - (JOB_RETENTION_MS if file.path.endswith(".bad") else self.orphan_age_ms)

    def _is_needed(self, path: str) -> bool:
        """Return True if messages need an object, or may need it soon."""
        segments = self._commits.segments
        is_open = segments is not None and (path == segments.path or path in segments.reserved)
        return is_open or path in self.state.needed or self._state.segments.needs(path)


class _Filling:
    """The buckets for the next rows of a queue. ``runs`` is a flat list bucket, rows, bucket, … of them."""

    def __init__(self, messages: QueueState) -> None:
        self._messages = messages
        self._tails: dict[int, tuple[int, int]] = {}  # the last bucket of each partition, and its used entries
        self.runs: list[int] = []

    def add(self, rows: int, partition: Partition | None = None) -> None:
        """Choose the buckets of the next rows, which are of the same partition."""
        tail: Partition | QueueState = partition if partition is not None else self._messages
        number = 0 if partition is None else partition.number
        bucket, used_entries = self._tails.get(number) or (tail.tail, tail.tail_used)
        while rows:
            if used_entries >= (limit := self._messages.capacity_of(bucket)):
                bucket, used_entries = bucket + 1, 0
                continue
            fitting = min(rows, limit - used_entries)
            if self.runs and self.runs[-2] == bucket:
                self.runs[-1] += fitting
            else:
                self.runs += bucket, fitting
            used_entries += fitting
            rows -= fitting
        self._tails[number] = bucket, used_entries
