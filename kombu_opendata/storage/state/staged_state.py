"""The staged jobs in memory: the ids and counts of their messages, and the needed batch objects.

A job is in memory until all its messages are settled, and an object until all its messages are deleted; the others are
in the store only. Only effects change this state, live and in replay (docs/rfcs/0008-staged-batches.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from ..records import field_types, keys, staged_jobs
from ..records.staged_jobs import REMOVED as REMOVED_TASK
from ..records.staged_jobs import StagedJob, StagedObject
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads

#: the indexes of a queue's counts in :attr:`.StagedJob.queues`
ROUTED, DONE, FAILED, REMOVED = range(4)


class StagedBatch(NamedTuple):
    """One batch of a job as its commit names it. Without a ``path`` it was part of the call, so there is no object."""

    path: str
    rows: int
    bytes: int
    checksum: int


class JobOptions(NamedTuple):
    """Options of a job's commit, as in its record."""

    digest: str = ""
    rate_limit: float = 0.0
    on_complete: bytes = b""


NO_OPTIONS = JobOptions()
_first_id = attrgetter("first_id")


class StagedState:
    """The staged jobs of one instance.

    Attributes:
        jobs: by id, the jobs that have unsettled messages or changed since the last checkpoint.
        objects: by the id of their first message.
        needed: paths of all objects that committed jobs need, at the last checkpoint in the store.
        unneeded: paths of objects whose messages were all deleted by a checkpoint in the store.
        active: jobs that are not settled, in the order of their messages' ids.
        completing: settled jobs whose message on completion was not sent, by id.
        deleted: ids of deleted jobs whose records the store may still have.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, StagedJob] = {}
        self.objects: dict[int, StagedObject] = {}
        self.needed: set[str] = set()
        self.unneeded: list[str] = []
        self.active: list[StagedJob] = []
        self.completing: dict[str, StagedJob] = {}
        self.deleted: set[str] = set()
        self._newest_ms = 0
        self._settled_jobs: list[StagedJob] = []  # jobs whose last state is in the current checkpoint
        self._object_starts: list[int] = []
        self._dirty_jobs: set[str] = set()
        self._new_objects: set[int] = set()
        self._forgotten: list[tuple[str, int]] = []
        self._releasing: list[str] = []

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        return bool(self._dirty_jobs or self._new_objects or self._forgotten)

    # ------------------------------------------------------------------ effects
    def commit(
        self, job_id: str, at: int, first_id: int, batches: Sequence[StagedBatch], options: JobOptions
    ) -> StagedJob:
        """Add a job whose messages have the ids from ``first_id`` on."""
        self.deleted.discard(job_id)
        rows, size = sum(batch.rows for batch in batches), sum(batch.bytes for batch in batches)
        job = self.jobs[job_id] = StagedJob(job_id, first_id, rows, len(batches), size, at, tasks=rows)
        self._dirty_jobs.add(job_id)
        at_id = first_id
        for batch in batches:
            if batch.path:
                self.objects[at_id] = StagedObject(
                    at_id, batch.rows, batch.rows, batch.bytes, batch.checksum, batch.path, job_id
                )
                self._object_starts.append(at_id)
                self.needed.add(batch.path)
                self._new_objects.add(at_id)
            at_id += batch.rows
        job.digest, job.rate_limit, job.on_complete = options
        if rows:
            self.active.append(job)
        else:
            self._settle(job, at)
        self._newest_ms = max(self._newest_ms, at)
        return job

    def routed(self, job_id: str, count: int, dropped: int, damaged: bool, at: int) -> None:
        """Record that the job's next ``count`` rows, all of one batch, were routed, ``dropped`` of them to no queue."""
        job = self.jobs[job_id]
        batch_object = self.object_of(job.first_id + job.routed)
        job.routed += count
        if damaged:
            job.damaged += dropped
        else:
            job.unroutable += dropped
        if dropped and batch_object is not None:
            batch_object.live -= dropped
            self._new_objects.add(batch_object.first_id)
        self._dirty_jobs.add(job_id)
        self._settle_if_over(job, at)

    def cancel(self, job_id: str, at: int) -> None:
        """Record that a job was cancelled, and drop its rows that were not routed."""
        job = self.jobs[job_id]
        first_id, end_id = job.first_id + job.routed, job.first_id + job.rows
        for start in self._object_starts[max(bisect_right(self._object_starts, first_id) - 1, 0) :]:
            batch_object = self.objects[start]
            batch_end = start + batch_object.rows
            if start >= end_id:
                break
            if batch_end > first_id:
                batch_object.live -= batch_end - max(start, first_id)
                self._new_objects.add(start)
        job.ended[REMOVED_TASK] += end_id - first_id
        job.routed, job.cancelled_at_ms = job.rows, max(at, 1)
        self._dirty_jobs.add(job_id)
        self._settle_if_over(job, at)

    def complete(self, job_id: str, at: int) -> None:
        """Record that a job's message on completion was sent."""
        job = self.completing.pop(job_id)
        job.on_complete, job.completed_at_ms = b"", max(at, 1)
        self._dirty_jobs.add(job_id)

    def count(self, queue: str, id: int, kind: int, at: int = 0) -> None:
        """Count a message that left a queue permanently. Only needed if there are ``active`` jobs."""
        job, counts = self._waiting_job(id, queue)
        if job is not None and counts is not None:
            counts[kind] += 1
            self._dirty_jobs.add(job.id)
            if counts[0] == counts[1] + counts[2] + counts[3]:
                self._settle_if_over(job, at)

    def joined(self, queue: str, id: int) -> None:
        """Count a stored message that was added to a queue by a replay, a redrive, a move or a copy."""
        job, _counts = self._waiting_job(id, queue)
        if job is not None:
            job.add_routed(queue, 1)
            self._dirty_jobs.add(job.id)

    def back(self, queue: str, id: int, kind: int, *, moved: bool = False) -> None:
        """Count a settled message that is ready again, in its queue or, if it ``moved``, in another one."""
        job, counts = self._waiting_job(id, queue)
        if job is not None and counts is not None and counts[kind]:
            counts[kind] -= 1
            counts[ROUTED] -= moved
            self._dirty_jobs.add(job.id)

    def moved(self, queue: str, id: int) -> None:
        """Count a waiting message that left its queue for another one, whose counts already include it."""
        job, counts = self._waiting_job(id, queue)
        if job is not None and counts is not None:
            counts[ROUTED] -= 1
            self._dirty_jobs.add(job.id)

    def _waiting_job(self, id: int, queue: str) -> tuple[StagedJob | None, list[int] | None]:
        """Return the job of a message, unless the job is settled, and the job's counts of a queue, if it has any."""
        jobs = self.active
        place = bisect_right(jobs, id, key=_first_id) - 1
        job = jobs[place] if place >= 0 else None
        if job is None or id >= job.first_id + job.rows or job.settled_at_ms:
            return None, None
        return job, job.counts(queue)

    def _settle_if_over(self, job: StagedJob, at: int) -> None:
        self._newest_ms = max(self._newest_ms, at)
        if job.is_over and not job.settled_at_ms:
            self._settle(job, at or self._newest_ms)

    def _settle(self, job: StagedJob, at: int) -> None:
        job.settled_at_ms = max(at, 1)
        if job.on_complete:
            self.completing[job.id] = job

    # ------------------------------------------------------------------ looking up
    def object_of(self, id: int) -> StagedObject | None:
        """Return the object with a message's payload."""
        starts = self._object_starts
        place = bisect_right(starts, id) - 1
        if place < 0:
            return None
        batch_object = self.objects[starts[place]]
        return batch_object if id < batch_object.first_id + batch_object.rows else None

    def unrouted(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of ids that are committed and not routed yet: (first, end), without the end."""
        for job in self.active:
            if not job.is_routed:
                yield job.first_id + job.routed, job.first_id + job.rows

    def routing(self) -> list[StagedJob]:
        """Return the jobs with rows to route, oldest first."""
        return [job for job in self.active if not job.is_routed]

    # ------------------------------------------------------------------ checkpoints
    def snapshot(self, batch: WriteBatch) -> None:
        """Add the changes to a checkpoint's batch."""
        for job_id, settled_at in self._forgotten:
            if job_id not in self.jobs:
                batch.delete(keys.staged_job_key(job_id))
            batch.delete(keys.staged_expiry_key(settled_at, job_id))
        for job_id in self._dirty_jobs:
            job = self.jobs[job_id]
            batch.put(keys.staged_job_key(job_id), staged_jobs.encode_job(job))
            if job.settled_at_ms:
                batch.put(keys.staged_expiry_key(job.settled_at_ms, job_id), field_types.VERSION_ONLY)
                if not job.on_complete:
                    self._settled_jobs.append(job)
        if self._settled_jobs:
            self.active = [job for job in self.active if not job.settled_at_ms]
        self._put_objects(batch)
        self._dirty_jobs, self._forgotten = set(), []

    def collected(self, ids: Iterable[int], batch: WriteBatch) -> None:
        """Count the messages that this checkpoint deletes; objects without remaining messages are deleted, too."""
        for id in ids:
            batch_object = self.object_of(id)
            if batch_object is not None:
                batch_object.live -= 1
                self._new_objects.add(batch_object.first_id)
        self._put_objects(batch)

    def _put_objects(self, batch: WriteBatch) -> None:
        any_deleted = False
        for first_id in self._new_objects:
            batch_object = self.objects[first_id]
            if batch_object.live > 0:
                batch.put(keys.staged_object_key(first_id), staged_jobs.encode_object(batch_object))
                continue
            batch.delete(keys.staged_object_key(first_id))
            del self.objects[first_id]
            self._releasing.append(batch_object.path)
            any_deleted = True
        if any_deleted:
            self._object_starts = sorted(self.objects)
        self._new_objects = set()

    def end_flush(self) -> None:
        """Remove settled jobs from memory, and release files, after the checkpoint is in the store."""
        for job in self._settled_jobs:
            if self.jobs.get(job.id) is job:
                del self.jobs[job.id]
        self._settled_jobs = []
        self.unneeded += self._releasing
        self.needed.difference_update(self._releasing)
        self._releasing = []
        self.deleted = {job_id for job_id, _settled_at in self._forgotten if job_id not in self.jobs}

    def forget(self, job_id: str, settled_at_ms: int) -> None:
        """Delete a settled job. Its id may be used again."""
        self._forgotten.append((job_id, settled_at_ms))
        job = self.jobs.get(job_id)
        if job is not None and job.settled_at_ms == settled_at_ms:
            del self.jobs[job_id]
            self._dirty_jobs.discard(job_id)
            self.completing.pop(job_id, None)
            self.active = [other for other in self.active if other is not job]
        if job_id not in self.jobs:
            self.deleted.add(job_id)

    async def load(self, store: Reads) -> None:
        """Load the jobs that are not settled, and all objects."""
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.STAGED_JOB)):
            for key, value in rows:
                job = staged_jobs.decode_job(key, value)
                if not job.settled_at_ms:
                    self.jobs[job.id] = job
                elif job.on_complete:
                    self.jobs[job.id] = self.completing[job.id] = job
        self.active = sorted((job for job in self.jobs.values() if not job.settled_at_ms), key=_first_id)
        self._newest_ms = max((job.committed_at_ms for job in self.active), default=0)
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.STAGED_OBJECT)):
            for key, value in rows:
                batch_object = staged_jobs.decode_object(key, value)
                self.objects[batch_object.first_id] = batch_object
        self._object_starts = sorted(self.objects)
        self.needed = {batch_object.path for batch_object in self.objects.values()}
