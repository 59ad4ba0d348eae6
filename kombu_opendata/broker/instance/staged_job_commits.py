"""Commits of staged jobs, their abortion, and the deletion of old jobs and orphaned objects.

A commit first checks the end of each batch, and refuses a batch that is corrupt, truncated or of another job. Then one
effect creates the whole job, and :mod:`.staged_job_runner` routes its messages into queues. Commits and aborts of one
job never run at the same time, so an abort can't remove a batch that a commit has just checked.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from ...errors import (
    CorruptRecord,
    InvalidURL,
    NotFound,
    PreconditionFailed,
    QueueFull,
    QueuePaused,
    RequestError,
    RetryLater,
)
from ...protocol.messages import Blocked
from ...staging.batch_block import encode_block
from ...staging.batch_format import job_folder, with_token
from ...staging.batch_reader import InlineBlock, check_batch, inline_bytes, path_of, read_inline
from ...staging.batch_writer import write_object
from ...staging.job import INLINE_BYTES, INLINE_ROWS, BatchInfo
from ...storage.effects.staged_jobs import StagedChunk
from ...storage.operations.staged_jobs import Staging
from ...storage.records.staged_jobs import StagedJob
from ...storage.state.staged_state import NO_OPTIONS, JobOptions, StagedBatch
from ..delivery.instance_core import Core
from .staged_job_runner import StagingRouter
from .staged_row_router import with_broker_headers

#: number of batches that one call in a thread checks
_CHECK = 32
#: maximum number of such calls at a time
_CHECKS = 4
#: the minimum interval between two searches for orphans
_ORPHANS_SECONDS = 600.0


class StagingService:
    """Staged jobs of one instance."""

    def __init__(self, core: Core, router: StagingRouter, staging: Staging, max_message_bytes: int) -> None:
        self._name = core.name
        self.router = router  # routes committed messages into queues
        self._staging, self._commits, self._clock, self._queues = staging, core.commits, core.clock, core.queues
        self._max_message_bytes = max_message_bytes
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._orphans_at = 0.0

    def blocked(self, job: StagedJob) -> Blocked | None:
        """Return the reason why tasks of a job wait, if there is one other than that workers are busy."""
        if not job.is_routed:
            blocked = self.router.blocked(job.id)
            if blocked is not None:
                return blocked
        for name, (routed, *ends) in job.queues.items():
            queue = self._queues.get(name)
            if queue is None or routed == sum(ends):
                continue
            if queue.is_paused:
                return Blocked(f"queue {name!r} is paused", queue.overrides.paused_at_ms, name)
            if not (queue.consumers or queue.getters or queue.messages.in_flight):
                since_ms = max(queue.used_at_ms, job.committed_at_ms)
                return Blocked(f"queue {name!r} has no consumer", since_ms, name)
        return None

    def report(self) -> dict[str, int]:
        staged = self._staging.state
        return {
            "jobs": len(staged.active),
            "objects": len(staged.objects),
            "waiting_rows": sum(job.rows - job.routed for job in staged.routing()),
            "routed": self.router.planner.routed,
            "unroutable": self.router.planner.unroutable,
            "damaged": self.router.damaged,
        }

    async def commit(
        self, job_id: str, batches: list[BatchInfo], options: JobOptions = NO_OPTIONS
    ) -> tuple[StagedJob, bool]:
        """Commit a job; return it, and True if this call committed it. Nothing is committed if an error is raised."""
        staging = self._staging
        async with self._lock(job_folder(job_id)):
            job = staging.state.find(job_id)
            if job is not None:
                return job, False
            if any(batch.data for batch in batches):
                _check_inline(job_id, batches)
                try:
                    if not options.rate_limit:
                        return self._commit_inline(job_id, batches, options), True
                    batches = await self._as_objects(batches)
                except (QueueFull, QueuePaused) as exc:
                    batches = await self._as_objects(batches, exc)
            paths = await self._check(job_id, batches)
            rows = [_staged(path, batch) for path, batch in zip(paths, batches, strict=True)]
            job = staging.commit(job_id, rows, options)
        self.router.wake()
        return job, True

    async def _check(self, job_id: str, batches: list[BatchInfo]) -> list[str]:
        """Check that all batches match the commit's description; return their paths, in order."""
        if not batches:
            return []
        folder, name = self._staging.folder.open(), self._name
        paths = [path_of(batch, job_id) for batch in batches]
        if len(set(paths)) < len(paths):
            raise RequestError(f"job {job_id!r}: a batch is named twice", job_id=job_id)
        limit = asyncio.Semaphore(_CHECKS)

        def check(some: list[BatchInfo]) -> None:
            for batch in some:
                try:
                    check_batch(folder, batch, name, job_id)
                except CorruptRecord as exc:
                    if "missing" in exc.text:
                        text = f"job {job_id!r}: {exc.text}; was it aborted, or staged for another instance?"
                        raise NotFound(text, uri=batch.uri) from exc
                    raise

        async def check_some(start: int) -> None:
            async with limit:
                await asyncio.to_thread(check, batches[start : start + _CHECK])

        try:
            async with asyncio.TaskGroup() as group:
                for start in range(0, len(batches), _CHECK):
                    group.create_task(check_some(start))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return paths

    def _commit_inline(self, job_id: str, batches: list[BatchInfo], options: JobOptions) -> StagedJob:
        """Commit a job whose batches are part of the call, and route it in the same commit."""
        inline: list[InlineBlock] = []
        room = INLINE_BYTES
        for batch in batches:
            for encoded, block, payload in read_inline(batch, self._name, job_id, self._max_message_bytes, room):
                checked = with_broker_headers(block, payload)
                inline.append(InlineBlock(encoded if checked is block else encode_block(checked), checked, payload))
                room -= inline_bytes(encoded, block)
        plans = self.router.planner.plan_all(inline)
        self._commits.check_room(2 * (INLINE_BYTES - room))
        job = self._staging.commit(job_id, [_staged("", batch) for batch in batches], options)
        for (encoded, block, payload), plan in zip(inline, plans, strict=True):
            first_id = job.first_id + job.routed
            now = self._clock.now_ms()
            chunk = StagedChunk(job_id, first_id, now, job.committed_at_ms, "", 0, block.rows, encoded, payload)
            self.router.planner.apply(chunk, block, plan)
        return job

    async def _as_objects(self, batches: list[BatchInfo], refusal: RetryLater | None = None) -> list[BatchInfo]:
        """Write inline batches as objects, so that their job can wait; raise ``refusal`` if that can't be done."""
        try:
            folder = self._staging.folder.open()
        except InvalidURL:
            if refusal is None:
                raise
            raise refusal from None

        def write() -> list[BatchInfo]:
            copies = [replace(batch, uri=with_token(batch.uri, os.urandom(8).hex())) for batch in batches]
            return [write_object(folder, copy) for copy in copies]

        return await asyncio.to_thread(write)

    async def abort(self, job_id: str, uris: list[str]) -> int:
        """Remove staged batches of a job that is not committed; return their number.

        Raise PreconditionFailed if the job is committed, and RequestError if a URI belongs to another job.
        """
        paths = [path_of(BatchInfo(uri, 0, 0, 0), job_id) for uri in uris]
        staging = self._staging
        async with self._lock(job_folder(job_id)):
            if staging.state.find(job_id) is not None:
                text = f"job {job_id!r} is committed: its messages exist; purge or delete its queues instead"
                raise PreconditionFailed(text, job_id=job_id)
            return await asyncio.to_thread(_remove, staging.folder.open(), paths, job_folder(job_id))

    def _lock(self, folder: str) -> asyncio.Lock:
        """Return the lock of a job's folder, which exists while it is used."""
        return self._locks.setdefault(folder, asyncio.Lock())

    async def collect(self) -> None:
        """Delete the records of old jobs, and old objects that no job needs."""
        now = self._clock.now_ms()
        await self._staging.forget_old(now)
        if asyncio.get_running_loop().time() >= self._orphans_at:
            self._orphans_at = asyncio.get_running_loop().time() + _ORPHANS_SECONDS
            await self._staging.remove_orphans(now, self._lock)


def _check_inline(job_id: str, batches: list[BatchInfo]) -> None:
    if not all(batch.data for batch in batches):
        raise RequestError(f"job {job_id!r}: either all batches are inline, or none", job_id=job_id)
    size, rows = sum(len(batch.data) for batch in batches), sum(batch.rows for batch in batches)
    if size > INLINE_BYTES or rows > INLINE_ROWS:
        raise RequestError(
            f"job {job_id!r}: {rows} rows of {size} bytes are too large to be inline (the limit is {INLINE_ROWS} "
            f"rows and {INLINE_BYTES} bytes): write them as objects",
            limit=INLINE_BYTES,
        )


def _staged(path: str, batch: BatchInfo) -> StagedBatch:
    return StagedBatch(path, batch.rows, batch.bytes, batch.checksum)


def _remove(folder: Any, paths: list[str], job: str) -> int:
    if paths:
        return int(folder.delete(paths))
    return sum(folder.delete([file.path for file in page]) for page in folder.batches(job))
