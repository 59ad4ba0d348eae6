"""Checks of staged jobs, and of the batch objects and payload segments with messages."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any

from ...errors import StoreError
from ...staging.folder_url import StagedFolder
from ...storage.records import keys
from ...storage.records.keys import ParsedKey, RecordKind
from ...storage.records.payload import SegmentUse
from ...storage.records.staged_jobs import StagedJob, StagedObject
from ..records.message_facts import MessageFacts
from .batch_objects import check_object
from .family import CheckContext, Family


class StagedFamily(Family):
    """Family of jobs, objects, ends of tasks, expiries, and segments. Collects all of them, as a broker does."""

    kinds = (
        RecordKind.STAGED_JOB, RecordKind.STAGED_OBJECT, RecordKind.STAGED_EXPIRY, RecordKind.STAGED_ENDS,
        RecordKind.STAGED_FOLLOWER, RecordKind.SEGMENT,
    )  # fmt: skip

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._jobs: dict[str, StagedJob] = {}
        self._objects: dict[int, StagedObject] = {}
        self._expiries: set[bytes] = set()
        self._ends: list[tuple[bytes, int, int]] = []  # key, first message, messages
        self._followers: list[tuple[bytes, int]] = []  # key, first message of the job
        self._starts: list[int] = []
        self._live_counts: Counter[int] = Counter()
        self._segments: dict[str, SegmentUse] = {}

    def record(self, key: ParsedKey, raw: bytes, value: Any) -> None:
        if key.kind is RecordKind.STAGED_OBJECT:
            self._objects[key.id or 0] = value
        elif key.kind is RecordKind.STAGED_EXPIRY:
            self._expiries.add(raw)
        elif key.kind is RecordKind.STAGED_ENDS:
            self._ends.append((raw, key.id or 0, len(value)))
        elif key.kind is RecordKind.SEGMENT:
            self._segments[key.name or ""] = value
        elif key.kind is RecordKind.STAGED_FOLLOWER:
            self._followers.append((raw, value.first_id))
        else:
            self._jobs[key.name or ""] = value
            wrong = "; ".join(self._job(value))
            if wrong:
                self.add("staged-wrong", f"staged job {key.name!r}: {wrong}", key=raw)

    def _job(self, job: StagedJob) -> Iterator[str]:
        if job.routed > job.rows or job.unroutable + job.damaged > job.routed:
            yield f"{job.routed} of {job.rows} rows are routed, {job.unroutable} unroutable, {job.damaged} damaged"
        end = self.context.block_end
        if end is not None and job.first_id + job.rows > end:
            yield f"its messages end with {job.first_id + job.rows - 1}, but ids from {end} on are not assigned yet"
        ended = sum(job.ended)
        if ended > job.tasks or (job.settled_at_ms and ended < job.tasks):
            yield f"{ended} of {job.tasks} tasks have ended, and it is settled since {job.settled_at_ms} ms (0: never)"
        for queue, (routed, done, failed, removed) in job.queues.items():
            if done + failed + removed > routed:
                yield f"{routed} went to queue {queue!r}, but {done} are done, {failed} failed, {removed} removed"

    async def finish(self) -> None:
        self._starts = sorted(self._objects)
        for name, job in self._jobs.items():
            expiry = keys.staged_expiry_key(job.settled_at_ms, name)
            if job.settled_at_ms and expiry not in self._expiries and self.context.store.can_tell(expiry):
                text = f"staged job {name!r} is settled since {job.settled_at_ms} ms, but has no record of its expiry"
                self.add("staged-wrong", text, key=keys.staged_job_key(name))
        self._check_tasks()
        location = self.context.store.location
        folder = StagedFolder(location.url, location.instance)
        try:
            for first_id, batch in sorted(self._objects.items()):
                code, text = await asyncio.to_thread(check_object, folder, first_id, batch)
                if code == "batch-missing" and self.context.is_running:
                    reason = f"{text}; the running broker may have removed it: verify again"
                    self.context.report.incomplete.append(reason)
                elif code:
                    text = f"batch {batch.path} of job {batch.job_id!r}: {text}"
                    file = f"{location.staged or folder.url}/{batch.path}"
                    self.add(code, text, key=keys.staged_object_key(first_id), file=file)
        except StoreError as exc:
            self.context.report.incomplete.append(f"not all batches of staged jobs were checked: {exc.text}")

    def _check_tasks(self) -> None:
        jobs = sorted((job.first_id, job.first_id + job.rows) for job in self._jobs.values() if job.rows)
        if not self.context.sees(RecordKind.STAGED_JOB):
            return
        for raw, first_id, count in self._ends:
            place = bisect_right(jobs, (first_id, keys.MAX_MESSAGE_ID)) - 1
            if place < 0 or first_id + count > jobs[place][1]:
                text = f"the ends of the messages from {first_id} on belong to no staged job"
                self.add("staged-wrong", text, key=raw)
        starts = {first_id for first_id, _end in jobs}
        for raw, first_id in self._followers:
            if first_id not in starts:
                text = f"it follows a message of a job whose first message is {first_id}, but there is no such job"
                self.add("staged-wrong", text, key=raw)

    def message(self, facts: MessageFacts) -> None:
        place = bisect_right(self._starts, facts.id) - 1
        if place >= 0 and facts.metadata is not None:
            first_id = self._starts[place]
            self._live_counts[first_id] += facts.id < first_id + self._objects[first_id].rows

    def end(self) -> None:
        self._check_segments()
        if not self.context.sees(RecordKind.METADATA, RecordKind.STAGED_JOB):
            return
        for first_id, batch in self._objects.items():
            live = self._live_counts[first_id] + self._unrouted(first_id, batch)
            if live != batch.live:
                text = f"batch {batch.path} holds {live} messages that are needed, but its record has {batch.live}"
                self.add("staged-wrong", text, key=keys.staged_object_key(first_id))

    def _check_segments(self) -> None:
        if not self.context.sees(RecordKind.PAYLOAD, RecordKind.LARGE_VALUE, RecordKind.SEGMENT):
            return
        uses = self.context.segment_uses
        for path in self._segments.keys() | uses.keys():
            count, use = self._segments.get(path), uses.get(path)
            if count != use and self.context.store.can_tell(keys.segment_key(path)):
                text = f"segment {path} has {use or 'no messages'}, but its record has {count or 'none'}"
                self.add("staged-wrong", text, key=keys.segment_key(path))

    def _unrouted(self, first_id: int, batch: StagedObject) -> int:
        """Return the number of rows of an object that are not routed yet and so have no records."""
        job = self._jobs.get(batch.job_id)
        if job is None:
            return 0
        return max(first_id + batch.rows - max(first_id, job.first_id + job.routed), 0)
