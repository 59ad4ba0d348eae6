"""Running tasks: messages that were acknowledged at the start of their tasks, until these are reported.

A task belongs to the session that started it. A checkpoint writes one record for each session whose tasks changed.

Tasks whose messages are acknowledged at their end are only in memory, because their leases are stored. Their sessions
report them again after a restart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from itertools import chain

from ..records import keys, running_tasks
from ..records.running_tasks import RunningTask
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads

#: queue, message id, and the token of the message's lease
Lease = tuple[str, int, int]


class RunningTasks:
    """The running tasks of one instance.

    Attributes:
        by_lease: the session of each task.
        by_session: the tasks of each session that has any.
        dirty: the sessions whose tasks changed since the last checkpoint.
        late: the start times of tasks by session and lease, for leases that have not ended. It may include leases that
            ended since the session's last report; no message in flight has their tokens.
    """

    def __init__(self) -> None:
        self.by_lease: dict[Lease, bytes] = {}
        self.by_session: dict[bytes, dict[Lease, RunningTask]] = {}
        self.dirty: set[bytes] = set()
        self.late: dict[bytes, dict[Lease, int]] = {}
        self._stored: set[bytes] = set()

    def start(self, session: bytes, queue: str, task: RunningTask) -> None:
        """Add a task that a session runs."""
        lease = (queue, task.message_id, task.claimed_at_ms)
        self.by_lease[lease] = session
        tasks = self.by_session.get(session)
        if tasks is None:
            tasks = self.by_session[session] = {}
        tasks[lease] = task
        self.dirty.add(session)

    def end(self, lease: Lease) -> tuple[bytes, RunningTask] | None:
        """Remove a task that ended; return its session and its record, or None if it does not run."""
        session = self.by_lease.pop(lease, None)
        if session is None:
            return None
        tasks = self.by_session[session]
        task = tasks.pop(lease)
        if not tasks:
            del self.by_session[session]
        self.dirty.add(session)
        return session, task

    def find(self, queue: str, id: int) -> tuple[bytes, RunningTask] | None:
        """Return the session that runs a message's task, and the newest run, if there is one."""
        leases = [lease for lease in self.by_lease if lease[1] == id and lease[0] == queue]
        if not leases:
            return None
        lease = max(leases)
        session = self.by_lease[lease]
        return session, self.by_session[session][lease]

    def ids(self, queues: Collection[str] = ()) -> set[int]:
        """Return the messages whose tasks run, and some that have ended, of these queues or, without names, of all."""
        leases = chain(self.by_lease, *self.late.values())
        return {id for queue, id, _token in leases if not queues or queue in queues}

    def set_late(self, session: bytes, began_at_ms: dict[Lease, int]) -> None:
        """Replace the running tasks of a session's leases; without any, remove the session."""
        if began_at_ms:
            self.late[session] = began_at_ms
        else:
            self.late.pop(session, None)

    def late_since_ms(self, session: bytes, lease: Lease) -> int:
        """Return the start of the task of a message in flight; 0 if unknown."""
        return self.late[session].get(lease, 0) if session in self.late else 0

    def count(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Return for each range of message ids, both ends included, the number of tasks that run."""
        ids = sorted(id for _queue, id, _token in self.by_lease)
        return [bisect_right(ids, last) - bisect_left(ids, first) for first, last in ranges]

    # ------------------------------------------------------------------ the store
    async def load(self, store: Reads) -> None:
        """Load the stored tasks.

        Raises:
            CorruptRecord: a record does not decode.
        """
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.RUNNING_TASKS)):
            for key, value in rows:
                session = keys.parse(key).session or b""
                for queue, tasks in running_tasks.decode(key, value).items():
                    for task in tasks:
                        self.start(session, queue, task)
                self._stored.add(session)
        self.dirty.clear()

    def snapshot(self, batch: WriteBatch) -> None:
        """Add the sessions whose tasks changed to a checkpoint's batch."""
        for session in self.dirty:
            tasks = self.by_session.get(session)
            if tasks:
                by_queue: dict[str, list[RunningTask]] = {}
                for lease, task in tasks.items():
                    by_queue.setdefault(lease[0], []).append(task)
                batch.put(keys.running_tasks_key(session), running_tasks.encode(by_queue))
                self._stored.add(session)
            elif session in self._stored:
                batch.delete(keys.running_tasks_key(session))
                self._stored.discard(session)
        self.dirty.clear()
