"""The ends of staged jobs' messages, and *followers*: later messages of the same tasks.

A task has one message, or several: Celery's retry publishes a new one, and so does a user's retry of an acknowledged
task. A job counts a task by the end of its newest message, and counts by transitions:

=======================================  ==================================================================
transition of a message                  change of the job's counts
=======================================  ==================================================================
it joins a queue, or another one         one more task
it ends                                  one more task in the final state
it ends, and has a follower              one task less
a follower joins after its end           one task less, also in the final state
it joins a queue again after its end     one task less in the final state
=======================================  ==================================================================

The last two need the final state of an earlier message, which a settled list does not have: for each message, a byte
has its end (:class:`~..records.staged_jobs.EndCode`). Blocks of 4,096 bytes are compressed after each checkpoint, so a
job of ten million tasks that succeeded takes some kilobytes. A follower has an object in memory while it may matter:
until it has ended without a failure, or is deleted.

In this way each message that is not ended is one task more than the final states have, whatever the order in which
messages end and followers join, and the job has ended when the two are equal. The order does vary: a retry may join
before or after the end of the message that it follows, a worker that is killed in between runs the message again and
publishes another follower (which replaces the first one), and a task that was lost may still publish its retry.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.task_reports import TaskState
from ..records import keys, staged_jobs
from ..records.staged_jobs import ENDS_ROWS, EndCode, Follower, StagedJob
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads

_OPEN, _UNCOUNTED, _REPLACED = int(EndCode.OPEN), int(EndCode.UNCOUNTED), int(EndCode.REPLACED)
#: ends after which a follower is not needed: a user retries only tasks that failed
_FINAL = {_UNCOUNTED, 1, 1 + TaskState.SUCCEEDED, 1 + TaskState.IGNORED}


class StagedTasks:
    """The ends and followers of one instance.

    Attributes:
        followers: by message id.
    """

    def __init__(self) -> None:
        self.followers: dict[int, Follower] = {}
        self._successors: dict[int, int] = {}  # message → its newest follower
        self._blocks: dict[int, bytes | bytearray] = {}  # by their first message: encoded, or codes that have changed
        self._changed_blocks: set[int] = set()
        self._changed_followers: set[int] = set()

    # ------------------------------------------------------------------ transitions
    def end(self, job: StagedJob, id: int, state: int) -> None:
        """Count the end of a message in one of its queues."""
        follower = self.followers.get(id)
        if follower is not None:
            follower.open -= 1
        if self._code(job, id) == _REPLACED:
            job.tasks -= 1
            self._set_code(job, id, _UNCOUNTED)
            self._release(self._successors.get(id, -1), job)
        else:
            job.ended[state] += 1
            self._set_code(job, id, 1 + state)
        self._release(id, job)

    def end_rows(self, job: StagedJob, ids: Iterable[int], states: Iterable[int]) -> None:
        """Count the ends of rows of a job, each in its only queue, as :meth:`end` does; no message has followers."""
        blocks, first_id, ended = self._blocks, job.first_id, job.ended
        for id, state in zip(ids, states, strict=True):
            place = (id - first_id) % ENDS_ROWS
            block = blocks.get(id - place)
            if type(block) is bytearray and block[place] != _REPLACED:
                ended[state] += 1
                block[place] = 1 + state
                self._changed_blocks.add(id - place)
            else:
                self.end(job, id, state)

    def add(self, job: StagedJob, id: int) -> None:
        """Count a message that joined another queue, or is in a queue again after its end."""
        if id in self.followers:
            self.followers[id].open += 1
            self._changed_followers.add(id)
        code = self._code(job, id)
        if _OPEN < code < _UNCOUNTED:
            job.ended[code - 1] -= 1
        else:
            job.tasks += 1
        if code != _REPLACED:
            self._set_code(job, id, _OPEN)

    def follow(self, job: StagedJob, id: int, predecessor: int, queues: int) -> None:
        """Count a new message in some queues, which follows another message of a task."""
        self._replace(job, predecessor)
        self.followers[id] = Follower(job.first_id, predecessor, queues)
        self._successors[predecessor] = id
        self._changed_followers.add(id)
        job.tasks += queues

    def _replace(self, job: StagedJob, id: int) -> None:
        """Count a message no longer, because its task has a later one; or the newest of those that follow it."""
        while (code := self._code(job, id)) in (_UNCOUNTED, _REPLACED):
            if id not in self._successors:
                return
            id = self._successors[id]
        if code == _OPEN:
            self._set_code(job, id, _REPLACED)
        else:
            job.ended[code - 1] -= 1
            job.tasks -= 1
            self._set_code(job, id, _UNCOUNTED)

    def _release(self, id: int, job: StagedJob) -> None:
        """Remove a follower that has ended, if no message may follow it or its predecessor."""
        follower = self.followers.get(id)
        if follower is None or follower.open or follower.code not in _FINAL:
            return
        if self._code(job, follower.predecessor) != _REPLACED:
            self._remove(id)

    def _remove(self, id: int) -> None:
        follower = self.followers.pop(id)
        if self._successors.get(follower.predecessor) == id:
            del self._successors[follower.predecessor]
        self._changed_followers.add(id)

    def followers_of(self, job: StagedJob) -> list[int]:
        """Return the ids of the followers of a job's messages, in order."""
        return sorted(id for id, follower in self.followers.items() if follower.first_id == job.first_id)

    # ------------------------------------------------------------------ codes
    @staticmethod
    def _is_row(job: StagedJob, id: int) -> bool:
        return job.first_id <= id < job.first_id + job.rows

    def has_ended(self, job: StagedJob, id: int) -> bool:
        """Return True if a message has ended, is not in a queue again, and no later message follows it."""
        return _OPEN < self._code(job, id) < _UNCOUNTED

    def _code(self, job: StagedJob, id: int) -> int:
        follower = self.followers.get(id)
        if follower is not None:
            return follower.code
        row = id - job.first_id
        if not 0 <= row < job.rows:
            return _UNCOUNTED
        start = id - row % ENDS_ROWS
        block = self._blocks.get(start)
        if block is None:
            return _OPEN
        codes = block if isinstance(block, bytearray) else staged_jobs.decode_ends(keys.staged_ends_key(start), block)
        return codes[row % ENDS_ROWS]

    def _set_code(self, job: StagedJob, id: int, code: int) -> None:
        follower = self.followers.get(id)
        if follower is not None:
            follower.code = code
            self._changed_followers.add(id)
            return
        row = id - job.first_id
        if not 0 <= row < job.rows:
            return
        start = id - row % ENDS_ROWS
        block = self._blocks.get(start)
        if not isinstance(block, bytearray):
            empty = bytearray(min(ENDS_ROWS, job.first_id + job.rows - start))
            block = empty if block is None else staged_jobs.decode_ends(keys.staged_ends_key(start), block)
            self._blocks[start] = block
        block[row % ENDS_ROWS] = code
        self._changed_blocks.add(start)

    # ------------------------------------------------------------------ the store
    async def load(self, store: Reads) -> None:
        """Load all ends and followers.

        Raises:
            CorruptRecord: a record does not decode.
        """
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.STAGED_ENDS)):
            for key, value in rows:
                staged_jobs.decode_ends(key, value)
                self._blocks[keys.parse(key).id or 0] = value
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.STAGED_FOLLOWER)):
            for key, value in rows:
                id, follower = keys.parse(key).id or 0, staged_jobs.decode_follower(key, value)
                self.followers[id] = follower
                self._successors[follower.predecessor] = id  # the newest one: the keys are in the order of ids

    def snapshot(self, batch: WriteBatch) -> None:
        """Add the changes to a checkpoint's batch."""
        for start in self._changed_blocks:
            block = self._blocks.get(start)
            if isinstance(block, bytearray):
                block = self._blocks[start] = staged_jobs.encode_ends(block)
            batch.put_or_delete(keys.staged_ends_key(start), block)
        self._changed_blocks = set()
        for id in self._changed_followers:
            follower = self.followers.get(id)
            value = None if follower is None else staged_jobs.encode_follower(follower)
            batch.put_or_delete(keys.staged_follower_key(id), value)
        self._changed_followers = set()

    def collected(self, ids: Iterable[int], batch: WriteBatch) -> None:
        """Remove the followers among the messages that this checkpoint deletes, except those whose tasks run.

        One that has changed since the snapshot remains: a crash would repeat the change, as the end of its task.
        """
        for id in ids if self.followers else ():
            follower = self.followers.get(id)
            if follower is not None and not follower.open and id not in self._changed_followers:
                self._remove(id)
                batch.delete(keys.staged_follower_key(id))

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        return bool(self._changed_blocks or self._changed_followers)

    def forget(self, job: StagedJob) -> None:
        """Remove the ends and followers of a job."""
        for start in range(job.first_id, job.first_id + job.rows, ENDS_ROWS):
            if self._blocks.pop(start, None) is not None:
                self._changed_blocks.add(start)
        for id in self.followers_of(job):
            self._remove(id)
