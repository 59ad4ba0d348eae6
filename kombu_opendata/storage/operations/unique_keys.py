"""Unique keys: of the messages with a key, at most one waits or runs, or was published within a time.

**The state of the holder decides.** The record of a key names the message that holds it, and the message's places. The
key is held as long as that message is

===========  =========================================================================
until        the message
===========  =========================================================================
a time       was published less than this time ago
``STARTED``  is available, and not past its deadline
``DONE``     is available and not past its deadline, in flight, or its task is running
===========  =========================================================================

So nothing has to release a key: each end of a message, also of a kind that is added later, ends the hold in the same
commit, and a crash leaves both or neither. A release that is written at each end would cost a look-up for each
acknowledgement, and an end without it would lock the key. A message that was dead-lettered is at another place, and
holds nothing. Nor does one that was moved or redriven, which might return to its old bucket: the commit of the move
releases its key (:meth:`.Idempotency.release`), which another message may have taken before or takes later.

**Revoked tasks.** A worker ends a revoked task when it receives it, which may be after an ETA of days. So the next
publish of the key removes a holder that waits, as if it replaced it. Revoked ids are in memory, as in Celery's workers:
after a restart the task is held again until a worker receives it.

**Deciding without awaiting.** As in :mod:`.repeated_requests`, :meth:`UniqueKeys.find` does not read. If the key, or
the bucket of its holder, is not in memory, the caller enters :meth:`UniqueKeys.loaded` and tries again; then it
publishes and calls :meth:`UniqueKeys.take` without an await in between, so that all are in one commit. Publishes of the
key that arrive in the meantime wait for it, so that the last one of a client that replaces its messages remains.

**Records without a holder.** An acknowledgement, or the end of a task, deletes the record if it is in memory
(:meth:`.IdempotencyState.ended`); :meth:`.Idempotency.sweep` deletes the others. This frees space, and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from ...protocol.unique_key import MAX_SECONDS, UNTIL_STARTED, OnConflict, UniqueKey
from ..engine_parts import EngineParts, EngineService
from ..records.idempotency import DIGEST_BYTES, Sending, UniqueHold, Until
from ..state.queue_buckets import QueueEntry
from ..state.store_state import Queue
from .message_operations import Operations
from .queue_loader import QueueLoader
from .repeated_requests import Idempotency

_NO_DIGEST = bytes(DIGEST_BYTES)
#: revoked ids that are remembered, as many as by a worker of Celery
_MAX_REVOKED = 50_000


class Holder(NamedTuple):
    """The message that holds a key. ``waiting`` has the queues in which it is available."""

    message_id: int
    task_id: str
    waiting: list[tuple[Queue, QueueEntry]]
    is_replaceable: bool
    is_revoked: bool = False


class Decision(NamedTuple):
    """The outcome of a publish: a message that takes the key, one without it, or none."""

    stores: bool
    takes: bool = False
    replaces: bool = False  # the holder is removed


_NEW = Decision(True, takes=True)


def decide(unique: UniqueKey, task_id: str, holder: Holder | None) -> Decision:
    """Return the outcome of a publish of a task (empty: of another message), if ``holder`` has the key."""
    mode = unique.on_conflict
    if holder is None:
        return _NEW
    if mode == OnConflict.KEEP:
        return Decision(True, takes=bool(task_id) and holder.task_id == task_id)  # as its retry
    if (mode == OnConflict.REPLACE or holder.is_revoked) and holder.is_replaceable and holder.waiting:
        return Decision(True, takes=True, replaces=True)
    return Decision(False)


class UniqueKeys(EngineService):
    """The unique keys of one instance."""

    def __init__(
        self, parts: EngineParts, operations: Operations, loader: QueueLoader, idempotency: Idempotency
    ) -> None:
        super().__init__(parts)
        self._operations, self._loader, self._idempotency = operations, loader, idempotency
        self._revoked: dict[str, None] = {}  # oldest first
        self._loading: dict[bytes, asyncio.Event] = {}  # by key, the end of its last publish that loads it

    def revoke(self, task_ids: Iterable[str]) -> None:
        """Let these tasks hold no key while they wait, unless it is held for a time."""
        for task_id in task_ids:
            self._revoked[task_id] = None
        while len(self._revoked) > _MAX_REVOKED:
            del self._revoked[next(iter(self._revoked))]

    def find(self, name: bytes) -> tuple[bool, Holder | None]:
        """Return True if the key with this hash is known, and the message that holds it, if any."""
        is_known, sending = self._idempotency.find(name)
        if sending is None or sending.hold is None:
            return is_known, None
        id, hold, (queues, *_) = sending.ids[0], sending.hold, sending.queues
        waiting, is_held, now = [], hold.until == Until.TIME, self._clock.now_ms()
        for queue_name, bucket in zip(queues, hold.buckets, strict=True):
            queue = self._state.queues.get(queue_name)
            if queue is None:
                continue
            if bucket in queue.messages.cold:
                return False, None
            entry = queue.messages.find(id)
            if entry is None:
                is_held = is_held or (hold.until == Until.DONE and self._state.running.find(queue_name, id) is not None)
            elif id in queue.messages.in_flight:
                is_held = is_held or hold.until == Until.DONE
            elif not entry.deadline or entry.deadline > now:
                is_held = True
                waiting.append((queue, entry))
        is_revoked = hold.task_id in self._revoked and hold.until != Until.TIME
        return True, Holder(id, hold.task_id, waiting, hold.is_replaceable, is_revoked) if is_held else None

    def is_loading(self, name: bytes) -> bool:
        """Return True if an earlier publish loads the key: then a publish must enter :meth:`loaded`."""
        return name in self._loading

    @asynccontextmanager
    async def loaded(self, name: bytes) -> AsyncIterator[None]:
        """Load a key; callers enter in their order."""
        before, done = self._loading.get(name), asyncio.Event()
        self._loading[name] = done
        try:
            if before is not None:
                await before.wait()
            await self.load(name)
            yield
        finally:
            done.set()
            if self._loading[name] is done:
                del self._loading[name]

    async def load(self, name: bytes) -> None:
        """Read a key and the bucket of its holder, until :meth:`find` knows them.

        Raises:
            StoreError: the store can't be read.
        """
        with self._idempotency.held([name]):
            while not self.find(name)[0]:
                await self._idempotency.load([name])
                _is_known, sending = self._idempotency.find(name)
                if sending is not None and sending.hold is not None:
                    for queue_name, bucket in zip(sending.queues[0], sending.hold.buckets, strict=True):
                        queue = self._state.queues.get(queue_name)
                        if queue is not None and bucket in queue.messages.cold:
                            await self._loader.load_bucket(queue, bucket)

    def take(self, name: bytes, unique: UniqueKey, id: int, task_id: str, queues: Sequence[Queue]) -> None:
        """Let a message that was just published to these queues hold the key with this hash, in its commit."""
        entries = [entry for queue in queues if (entry := queue.messages.find(id)) is not None]
        if not entries:  # a full queue has dropped it
            return
        until, ms = Until.TIME, unique.until_ms
        if ms <= 0:
            until, ms = Until.STARTED if ms == UNTIL_STARTED else Until.DONE, 1000 * MAX_SECONDS
        names = tuple([entry.queue for entry in entries])
        hold = UniqueHold(until, not unique.pinned, task_id, tuple([entry.bucket for entry in entries]))
        expires_at = self._clock.now_ms() + ms
        self._idempotency.remember(name, Sending((id,), expires_at, _NO_DIGEST, (names,), hold))

    def remove(self, holder: Holder) -> None:
        """Remove a holder that waits, because the message that was just published replaces it."""
        for queue, entry in holder.waiting:
            if queue.messages.available.get(entry.id) is entry:  # a full queue may have dropped it for the new message
                self._operations.remove(queue, [entry], "replaced")
