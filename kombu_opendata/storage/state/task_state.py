"""Tasks in memory: those that run after their message was acknowledged, and failed attempts that were handled.

A running task belongs to the session that started it. A checkpoint writes one record for each session whose tasks
changed. Tasks whose messages are acknowledged at their end are only in memory, because their leases are stored. Their
sessions report them again after a restart.

A failed attempt that was retried or archived is recorded, so that no user handles it twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain

from ..records import failures as records
from ..records import keys, session_records
from ..records.failures import BLOCK_BITS, Handled
from ..records.session_records import RunningTask
from ..slatedb.ffi import WriteBatch
from ..slatedb.store_reads import Reads

#: queue, message id, and the token of the message's lease
Lease = tuple[str, int, int]


class RunningTasks:
    """The running tasks of one instance.

    Attributes:
        by_lease: the session of each task.
        by_session: the tasks of each session that has any.
        by_queue: the number of the tasks of each queue that had any.
        dirty: the sessions whose tasks changed since the last checkpoint.
        late: the start times of tasks whose leases have not ended, by session and lease, from the session's last
            report. Leases that ended since then may be included: no message in flight has their tokens.
    """

    def __init__(self) -> None:
        self.by_lease: dict[Lease, bytes] = {}
        self.by_session: dict[bytes, dict[Lease, RunningTask]] = {}
        self.by_queue: dict[str, int] = {}
        self.dirty: set[bytes] = set()
        self.late: dict[bytes, dict[Lease, int]] = {}
        self._stored_sessions: set[bytes] = set()

    def start(self, session: bytes, queue: str, task: RunningTask) -> None:
        lease = (queue, task.message_id, task.claimed_at_ms)
        self.by_lease[lease] = session
        self.by_session.setdefault(session, {})[lease] = task
        self.by_queue[queue] = self.by_queue.get(queue, 0) + 1
        self.dirty.add(session)

    def end(self, lease: Lease) -> tuple[bytes, RunningTask] | None:
        """Remove a task that ended; return its session and its record, or None if it does not run."""
        session = self.by_lease.pop(lease, None)
        if session is None:
            return None
        tasks = self.by_session[session]
        task = tasks.pop(lease)
        self.by_queue[lease[0]] -= 1
        if not tasks:
            del self.by_session[session]
        self.dirty.add(session)
        return session, task

    def find(self, queue: str, id: int) -> tuple[bytes, RunningTask] | None:
        """Return the session that runs a message's task, and the newest run, if there is one."""
        lease = max((lease for lease in self.by_lease if lease[1] == id and lease[0] == queue), default=None)
        if lease is None:
            return None
        session = self.by_lease[lease]
        return session, self.by_session[session][lease]

    def ids(self, queues: Collection[str] = ()) -> set[int]:
        """Return the messages of these queues (empty: all) whose tasks run, and some whose tasks have just ended."""
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

    # ------------------------------------------------------------------ the store
    async def load(self, store: Reads) -> None:
        """Load the stored tasks.

        Raises:
            CorruptRecord: a record does not decode.
        """
        async for rows in store.scan_batches(*keys.kind_range(keys.RecordKind.RUNNING_TASKS)):
            for key, value in rows:
                session = keys.parse(key).session or b""
                for queue, tasks in session_records.decode_running_tasks(key, value).items():
                    for task in tasks:
                        self.start(session, queue, task)
                self._stored_sessions.add(session)
        self.dirty.clear()

    def snapshot(self, batch: WriteBatch) -> None:
        """Add the sessions whose tasks changed to a checkpoint's batch."""
        for session in self.dirty:
            tasks = self.by_session.get(session)
            if tasks:
                by_queue: dict[str, list[RunningTask]] = {}
                for lease, task in tasks.items():
                    by_queue.setdefault(lease[0], []).append(task)
                batch.put(keys.running_tasks_key(session), session_records.encode_running_tasks(by_queue))
                self._stored_sessions.add(session)
            elif session in self._stored_sessions:
                batch.delete(keys.running_tasks_key(session))
                self._stored_sessions.discard(session)
        self.dirty.clear()


_LOW = (1 << BLOCK_BITS) - 1


class _Block:
    """256 attempts: a bit for each that was handled, and the handled attempts packed as in their record."""

    __slots__ = ("mask", "packed")

    def __init__(self, mask: int = 0, packed: bytes = b"") -> None:
        self.mask, self.packed = mask, packed


class HandledFailures:
    """The handled attempts in blocks of 256, each of which is a record.

    Blocks are removed with the attempts of the history's log.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._dirty: set[int] = set()

    async def load(self, store: Reads) -> None:
        kind = keys.kind_range(keys.RecordKind.HANDLED_FAILURES)
        async for rows in store.scan_batches(*kind, batch=64):
            for key, value in rows:
                self._add(records.decode_handled(key, value))

    def _add(self, rows: Iterable[Handled]) -> None:
        for row in rows:
            if row.number in self:
                continue
            block = self._blocks.setdefault(row.number >> BLOCK_BITS, _Block())
            block.mask |= 1 << (row.number & _LOW)
            block.packed += records.pack_handled(row)

    # ------------------------------------------------------------------ reading
    def __contains__(self, number: int) -> bool:
        block = self._blocks.get(number >> BLOCK_BITS)
        return block is not None and bool(block.mask >> (number & _LOW) & 1)

    def find(self, number: int) -> Handled | None:
        return next((row for row in self._rows(number >> BLOCK_BITS) if row.number == number), None)

    def numbers(self) -> list[int]:
        blocks = sorted(self._blocks)
        return [number for block in blocks for number in sorted(row.number for row in self._rows(block))]

    def _rows(self, number: int) -> list[Handled]:
        block = self._blocks.get(number)
        packed = None if block is None else records.join_handled(block.packed)
        return [] if packed is None else records.decode_handled(keys.handled_failures_key(number), packed)

    # ------------------------------------------------------------------ changes
    def handled(self, rows: Iterable[Handled]) -> None:
        """Record that these attempts were handled; an attempt that was handled before is unchanged."""
        rows = list(rows)
        self._add(rows)
        self._dirty.update(row.number >> BLOCK_BITS for row in rows)

    def drop_before(self, number: int) -> None:
        """Remove the blocks of attempts that are no longer in the log, which begins with this one."""
        old_blocks = [block for block in self._blocks if (block + 1) << BLOCK_BITS <= number]
        for block in old_blocks:
            del self._blocks[block]
        self._dirty.update(old_blocks)

    @property
    def is_dirty(self) -> bool:
        """True if a checkpoint has records to write."""
        return bool(self._dirty)

    def snapshot(self, batch: WriteBatch) -> None:
        """Add the changes to a checkpoint's batch."""
        for number in self._dirty:
            block = self._blocks.get(number)
            value = None if block is None else records.join_handled(block.packed)
            batch.put_or_delete(keys.handled_failures_key(number), value)
        self._dirty.clear()
