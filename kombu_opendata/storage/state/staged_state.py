"""The staged jobs in memory: the ids and counts of their messages, and the needed batch objects.

A job whose tasks have ended is packed, until a message of it is ready again; an object is in memory until all its
messages are deleted. Only effects change this state, live and in replay (docs/rfcs/0008-staged-batches.md).
:mod:`.staged_tasks` counts tasks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from ...protocol.task_reports import STATES
from ..records import field_types, keys, staged_jobs
from ..records.staged_jobs import StagedJob, StagedObject
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads
from .staged_tasks import StagedTasks

#: the indexes of a queue's counts in :attr:`.StagedJob.queues`
ROUTED, DONE, FAILED, REMOVED = range(4)


class StagedBatch(NamedTuple):
    """One batch of a job as its commit names it. Without a ``path`` it was part of the call, so there is no object."""

    path: str
    rows: int
    bytes: int
    checksum: int


#: time over which the rate of a job is averaged
RATE_SECONDS = 60


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
        jobs: by id, the jobs that have tasks which have not ended, or a message to send on completion, or that changed
            since the last checkpoint. The others are packed.
        objects: by the id of their first message.
        needed: paths of all objects that committed jobs need, at the last checkpoint in the store.
        unneeded: paths of objects whose messages were all deleted by a checkpoint in the store.
        active: jobs that are not settled, in the order of their messages' ids.
        completing: settled jobs whose message on completion was not sent, by id.
        tasks: the ends of messages, and later messages of tasks.
        reported: by queue and message, the states of tasks whose messages the next effects of the same commit settle.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, StagedJob] = {}
        self.objects: dict[int, StagedObject] = {}
        self.needed: set[str] = set()
        self.unneeded: list[str] = []
        self.active: list[StagedJob] = []
        self.completing: dict[str, StagedJob] = {}
        self.tasks = StagedTasks()
        self.reported: dict[tuple[str, int], int] = {}
        self._packed: dict[str, bytes] = {}
        self._starts: list[int] = []  # first ids of all jobs with messages
        self._spans: list[tuple[int, str]] = []  # the ends of their ids, which are not included; and the job ids
        self._recent: dict[str, deque[list[int]]] = {}  # of active jobs: the ends of tasks by second
        self._newest_ms = 0
        self._settled_jobs: list[StagedJob] = []  # jobs whose last state is in the current checkpoint
        self._object_starts: list[int] = []
        self._dirty_jobs: set[str] = set()
        self._changed_objects: dict[int, int] = {}  # by first message: live messages dropped since the last snapshot
        self._forgotten: list[str] = []
        self._old_expiries: list[tuple[int, str]] = []
        self._version_1: set[str] = set()
        self._releasing: list[str] = []

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        changes = self._dirty_jobs, self._changed_objects, self._forgotten, self._old_expiries
        return any(changes) or self.tasks.is_dirty

    # ------------------------------------------------------------------ effects
    def commit(
        self, job_id: str, at: int, first_id: int, batches: Sequence[StagedBatch], options: JobOptions
    ) -> StagedJob:
        """Add a job whose messages have the ids from ``first_id`` on."""
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
                self._changed_objects[at_id] = 0
            at_id += batch.rows
        job.digest, job.rate_limit, job.on_complete = options
        if rows:
            self.active.append(job)
            self._starts.append(first_id)
            self._spans.append((first_id + rows, job_id))
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
        job.ended[staged_jobs.REMOVED] += dropped
        if dropped and batch_object is not None:
            self._drop(batch_object, dropped)
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
                self._drop(batch_object, batch_end - max(start, first_id))
        job.ended[staged_jobs.REMOVED] += end_id - first_id
        job.routed, job.cancelled_at_ms = job.rows, max(at, 1)
        self._dirty_jobs.add(job_id)
        self._settle_if_over(job, at)

    def _drop(self, batch_object: StagedObject, messages: int) -> None:
        """Count messages of an object that were never stored."""
        batch_object.live -= messages
        first_id = batch_object.first_id
        self._changed_objects[first_id] = self._changed_objects.get(first_id, 0) + messages

    def complete(self, job_id: str, at: int) -> None:
        """Record that a job's message on completion was sent."""
        job = self.completing.pop(job_id)
        job.on_complete, job.completed_at_ms = b"", max(at, 1)
        self._dirty_jobs.add(job_id)

    def ended(self, queue: str, id: int, kind: int, state: int, at: int = 0) -> None:
        """Count a message that left a queue permanently, and the end of its task in a state of :data:`.END_STATES`.

        A state in ``reported`` has precedence over those that workers report. Only needed if there are ``active`` jobs.
        """
        if self.reported and (reported := self.reported.pop((queue, id), 0)) and state < len(STATES):
            state = reported
        job = self.left(queue, id, kind)
        if job is not None:
            self._end_task(job, id, state, at)

    def acknowledged(self, queue: str, ids: list[int], runs: Sequence[int], at: int) -> None:
        """Count acknowledged messages and the ends of their tasks, as :meth:`ended` does.

        ``runs`` is as in :class:`.AckEffect`. Consumers mostly acknowledge several messages of one job together.
        """
        states = runs[::3] or repeat(0, len(ids))
        job = self._active_job(ids[0])
        if (
            job is None
            or self.reported
            or self.tasks.followers
            or not job.first_id <= min(ids) <= max(ids) < job.first_id + job.rows
            or job.tasks - sum(job.ended) < len(ids)  # some of them do not count
        ):
            for id, state in zip(ids, states, strict=True):
                self.ended(queue, id, DONE, state, at)
            return
        counts = job.counts(queue)
        if counts is not None:
            counts[DONE] += len(ids)
        self.tasks.end_rows(job, ids, states)
        self._count_ends(job, len(ids), at)

    def left(self, queue: str, id: int, kind: int) -> StagedJob | None:
        """Count a message that left a queue, while its task may run; return its job."""
        job = self._active_job(id)
        if job is not None:
            counts = job.counts(queue)
            if counts is not None:
                counts[kind] += 1
            self._dirty_jobs.add(job.id)
        return job

    def finished(self, id: int, state: int, at: int) -> None:
        """Count the end of a task whose message was acknowledged before."""
        job = self._active_job(id)
        if job is not None:
            self._end_task(job, id, state, at)

    def _end_task(self, job: StagedJob, id: int, state: int, at: int) -> None:
        self.tasks.end(job, id, state)
        self._count_ends(job, 1, at)

    def _count_ends(self, job: StagedJob, count: int, at: int) -> None:
        """Count the ends of tasks for the rate of their job, which may be over."""
        self._dirty_jobs.add(job.id)
        seconds = self._recent.get(job.id)
        if seconds is None:
            seconds = self._recent[job.id] = deque(maxlen=RATE_SECONDS)
        second = (at or self._newest_ms) // 1000
        if seconds and seconds[-1][0] >= second:
            seconds[-1][1] += count
        else:
            seconds.append([second, count])
        self._settle_if_over(job, at)

    def joined(self, queue: str, id: int, *, more: bool = True) -> None:
        """Count a stored message that was added to a queue by a replay, a move or a copy.

        ``more``: it remains in its other queues.
        """
        job = self._job_of(id)
        if job is not None:
            self._reopen(job)
            job.add_routed(queue, 1)
            if more:
                self.tasks.add(job, id)

    def back(self, queue: str, id: int, kind: int, *, moved: bool = False) -> None:
        """Count a settled message that is ready again, in its queue or, if it ``moved``, in another one."""
        job = self._job_of(id)
        if job is None:
            return
        self._reopen(job)
        counts = job.counts(queue)
        if counts is not None and counts[kind]:
            counts[kind] -= 1
            counts[ROUTED] -= moved
        self.tasks.add(job, id)

    def moved(self, queue: str, id: int) -> None:
        """Count a waiting message that left its queue for another one, whose counts already include it."""
        job = self._active_job(id)
        counts = None if job is None else job.counts(queue)
        if job is not None and counts is not None:
            counts[ROUTED] -= 1
            self._dirty_jobs.add(job.id)

    def follow(self, id: int, predecessor: int, queues: Sequence[str], *, resumes: bool = False) -> None:
        """Count a new message in these queues, which follows another message of a task.

        ``resumes``: if the job has ended, it is no longer cancelled.
        """
        job = self._job_of(predecessor)
        if job is not None and queues:
            self._reopen(job, resumes=resumes)
            for queue in queues:
                job.add_routed(queue, 1)
            self.tasks.follow(job, id, predecessor, len(queues))

    def job_id_of(self, id: int) -> str | None:
        """Return the id of the job to which a message belongs, as one of its rows or a later message of a task."""
        place = bisect_right(self._starts, id) - 1
        if place >= 0 and id < self._spans[place][0]:
            return self._spans[place][1]
        follower = self.tasks.followers.get(id)
        return None if follower is None else self.job_id_of(follower.first_id)

    def ended_in(self, job_id: str, ids: Iterable[int]) -> set[int]:
        """Return those of some messages with which tasks of a job have ended."""
        job = self.find(job_id)
        return {id for id in ids if job is not None and self.job_id_of(id) == job_id and self.tasks.has_ended(job, id)}

    def _job_of(self, id: int) -> StagedJob | None:
        """Return the job of a message, which stays in memory until the next checkpoint."""
        job_id = self.job_id_of(id)
        if job_id is None:
            return None
        job = self.jobs.get(job_id)
        if job is None:
            job = self.jobs[job_id] = self.existing(job_id)
            self._dirty_jobs.add(job_id)
        return job

    def _active_job(self, id: int) -> StagedJob | None:
        """Return the job of a message, unless the job is settled."""
        job = self.jobs.get(self.job_id_of(id) or "")
        return None if job is None or job.settled_at_ms else job

    def _reopen(self, job: StagedJob, *, resumes: bool = True) -> None:
        """Make a job active again because a message of it joins a queue."""
        self._dirty_jobs.add(job.id)
        if job.settled_at_ms:
            self._old_expiries.append((job.settled_at_ms, job.id))
            self.completing.pop(job.id, None)
            job.settled_at_ms = 0
            if resumes:
                job.cancelled_at_ms = 0
            if job not in self.active:
                insort(self.active, job, key=_first_id)

    def _settle_if_over(self, job: StagedJob, at: int) -> None:
        self._newest_ms = max(self._newest_ms, at)
        if job.is_over and not job.settled_at_ms:
            self._settle(job, at or self._newest_ms)

    def _settle(self, job: StagedJob, at: int) -> None:
        job.settled_at_ms = max(at, 1)
        self._recent.pop(job.id, None)
        if job.on_complete:
            self.completing[job.id] = job

    # ------------------------------------------------------------------ looking up
    def find(self, job_id: str) -> StagedJob | None:
        """Return a job. A packed one is a copy, so changes to it have no effect."""
        return self.jobs.get(job_id) or (self.existing(job_id) if job_id in self._packed else None)

    def existing(self, job_id: str) -> StagedJob:
        """Return a job as :meth:`find`, which must exist."""
        job = self.jobs.get(job_id)
        return job or staged_jobs.decode_job(keys.staged_job_key(job_id), self._packed[job_id])

    def ids(self) -> set[str]:
        """Return the ids of all jobs."""
        return self.jobs.keys() | self._packed.keys()

    def rate(self, job_id: str, now_ms: int) -> float:
        """Return the number of a job's tasks that ended in a second, on average over the last minute."""
        seconds = self._recent.get(job_id)
        if not seconds:
            return 0.0
        first = now_ms // 1000 - RATE_SECONDS
        ended = sum(count for second, count in seconds if second > first)
        return ended / max(min(RATE_SECONDS, now_ms / 1000 - seconds[0][0]), 1.0)

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
        for settled_at, job_id in self._old_expiries:
            batch.delete(keys.staged_expiry_key(settled_at, job_id))
        for job_id in self._forgotten:
            if job_id not in self.jobs:
                batch.delete(keys.staged_job_key(job_id))
        for job_id in self._dirty_jobs:
            job = self.jobs[job_id]
            batch.put(keys.staged_job_key(job_id), staged_jobs.encode_job(job))
            if job.settled_at_ms:
                batch.put(keys.staged_expiry_key(job.settled_at_ms, job_id), field_types.VERSION_ONLY)
                if not job.on_complete:
                    self._settled_jobs.append(job)
        if self._settled_jobs:
            self.active = [job for job in self.active if not job.settled_at_ms]
        self.tasks.snapshot(batch)
        changed, self._changed_objects = self._changed_objects, {}
        self._put_objects(changed, batch)
        self._dirty_jobs, self._forgotten, self._old_expiries = set(), [], []

    def collected(self, ids: Iterable[int], batch: WriteBatch) -> None:
        """Count the messages that this checkpoint deletes; objects without remaining messages are deleted, too."""
        ids = list(ids)
        self.tasks.collected(ids, batch)
        changed = set()
        for id in ids:
            batch_object = self.object_of(id)
            if batch_object is not None:
                batch_object.live -= 1
                changed.add(batch_object.first_id)
        self._put_objects(changed, batch)

    def _put_objects(self, first_ids: Iterable[int], batch: WriteBatch) -> None:
        """Put objects with their live messages as of the snapshot: later effects are repeated after a crash."""
        any_deleted = False
        for first_id in first_ids:
            batch_object = self.objects[first_id]
            live = batch_object.live + self._changed_objects.get(first_id, 0)
            if live > 0:
                batch.put(keys.staged_object_key(first_id), staged_jobs.encode_object(replace(batch_object, live=live)))
                continue
            batch.delete(keys.staged_object_key(first_id))
            del self.objects[first_id]
            self._releasing.append(batch_object.path)
            any_deleted = True
        if any_deleted:
            self._object_starts = sorted(self.objects)

    def end_flush(self) -> None:
        """Pack settled jobs, and release files, after the checkpoint is in the store."""
        for job in self._settled_jobs:
            if self.jobs.get(job.id) is job and job.settled_at_ms and job.id not in self._dirty_jobs:
                self._pack(job)
        self._settled_jobs = []
        self.unneeded += self._releasing
        self.needed.difference_update(self._releasing)
        self._releasing = []

    def _pack(self, job: StagedJob) -> None:
        """Pack a settled job that has no message to send on completion."""
        if not job.on_complete:
            self.jobs.pop(job.id, None)
            self._packed[job.id] = staged_jobs.encode_job(job)

    def forget(self, job_id: str, settled_at_ms: int) -> None:
        """Delete a settled job. Its id may be used again."""
        self._old_expiries.append((settled_at_ms, job_id))
        job = self.find(job_id)
        if job is None or job.settled_at_ms != settled_at_ms:
            return  # a message was ready again since
        self._forgotten.append(job_id)
        self._packed.pop(job_id, None)
        self.jobs.pop(job_id, None)
        self.completing.pop(job_id, None)
        self.active = [other for other in self.active if other is not job]
        self._dirty_jobs.discard(job_id)
        if job.rows:
            place = bisect_left(self._starts, job.first_id)
            del self._starts[place], self._spans[place]
            self.tasks.forget(job)

    async def load(self, store: Reads) -> None:
        """Load all jobs and objects, and the ends of tasks."""
        spans = []
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.STAGED_JOB)):
            for key, value in rows:
                job = staged_jobs.decode_job(key, value)
                self.jobs[job.id] = job
                if job.rows:
                    spans.append((job.first_id, (job.first_id + job.rows, job.id)))
                if job.on_complete and job.settled_at_ms:
                    self.completing[job.id] = job
                elif job.settled_at_ms:
                    self._pack(job)
                elif value[0] == 1:
                    self._version_1.add(job.id)
        spans.sort()
        self._starts, self._spans = [first for first, _span in spans], [span for _first, span in spans]
        self.active = sorted((job for job in self.jobs.values() if not job.settled_at_ms), key=_first_id)
        self._newest_ms = max((job.committed_at_ms for job in self.active), default=0)
        await self.tasks.load(store)
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.STAGED_OBJECT)):
            for key, value in rows:
                batch_object = staged_jobs.decode_object(key, value)
                self.objects[batch_object.first_id] = batch_object
        self._object_starts = sorted(self.objects)
        self.needed = {batch_object.path for batch_object in self.objects.values()}

    def upgrade(self, running: Iterable[int]) -> None:
        """Count running tasks of jobs of version 1, whose messages are done, as not ended."""
        for id in running if self._version_1 else ():
            job = self._active_job(id)
            if job is not None and job.id in self._version_1 and job.ended[0]:
                job.ended[0] -= 1
        self._dirty_jobs |= self._version_1
        self._version_1 = set()
