"""Bulk retry and deletion of failures, in steps.

The work of a step and the marks of the failures that it handled are in one commit. An interruption therefore leaves
each failure either unchanged or handled, and a repeated call continues with the unchanged ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from ...errors import CorruptRecord, InvalidMessage, QueueFull
from ...protocol import messages as m
from ...protocol.retried_task import retried_task
from ...storage.clock import Clock, TimeSlice
from ...storage.commit.commits import Commits
from ...storage.effects.tasks import FollowFailuresEffect, HandleFailuresEffect
from ...storage.history.failure import ACKNOWLEDGED, LIST_OF, Failure, FailureFilterValues, FailurePosition
from ...storage.history.failure_view import FailureView
from ...storage.messages.payloads import Payloads
from ...storage.operations.archive_and_delete import Selection, SettledMoves
from ...storage.operations.moves import Moves, MoveTarget
from ...storage.records.failures import DISMISSED, RETRIED
from ...storage.state.store_state import StoreState
from ..delivery.outbox import Outbox
from ..delivery.queue_registry import Queues
from ..instance.replay_scheduler import ReplayScheduler, room
from ..model.queue import BrokerQueue
from .publish import PublishCalls

log = logging.getLogger(__name__)

#: maximum duration of a call before it reports its progress
STEP_SECONDS = 0.5
#: initial and maximum number of tasks that are read together and published in one turn of the event loop
_FIRST_TASKS, _MOST_TASKS = 4, 24
#: after tasks with more bytes in total, a single task is read next
_MUCH_BYTES = 1 << 20


@dataclass(slots=True)
class Bulk:
    """State of one call."""

    filters: FailureFilterValues
    #: the last failure that an earlier call handled; after the work, the position for the next call, or None
    next: FailurePosition | None
    limit: int  # the maximum number of failures to handle; 0 for no limit
    go_on: Callable[[], bool]  # returns True if the client still waits for the reply
    target: str = ""  # the queue that receives the messages; empty for their own queues
    #: counts so far, as in the reply
    retried: m.FailuresRetried = field(default_factory=lambda: m.FailuresRetried(0))
    deleted: m.FailuresDeleted = field(default_factory=lambda: m.FailuresDeleted(0))

    @property
    def handled(self) -> int:
        return self.retried.handled + self.deleted.handled

    @property
    def left(self) -> int | None:
        """Number of failures that may still be handled; None for no limit."""
        return self.limit - self.handled if self.limit else None


@dataclass(frozen=True, slots=True)
class Bulks:
    """Bulk work on the failures of one instance."""

    _view: FailureView
    _state: StoreState
    _moves: Moves
    _settled_moves: SettledMoves
    _payloads: Payloads
    _commits: Commits
    _clock: Clock
    _publishing: PublishCalls
    _queues: Queues
    _replays: ReplayScheduler
    _outbox: Outbox

    async def retry(self, bulk: Bulk) -> None:
        """Retry failures, the oldest first."""
        await self._each(bulk, self._retry)

    async def delete(self, bulk: Bulk) -> None:
        """Delete failed messages and mark acknowledged failures as handled, the oldest first."""
        await self._each(bulk, self._delete)

    async def _each(self, bulk: Bulk, handle: Callable[[Bulk, list[Failure]], Awaitable[None]]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + STEP_SECONDS
        scan = self._view.scan(bulk.filters, lambda _queue: True, bulk.next, descending=False)
        async with aclosing(scan) as scanned:
            async for matching, last, _count in scanned:
                while matching:
                    batch, matching = matching[: bulk.left], matching[bulk.left or len(matching) :]
                    for part in _parts(batch):
                        await handle(bulk, part)
                        if bulk.retried.full or not bulk.go_on() or bulk.left == 0:
                            return  # the next call examines the rest of this batch again
                bulk.next = last
                if loop.time() >= until:
                    return
        bulk.next = None

    # ------------------------------------------------------------------ retries
    async def _retry(self, bulk: Bulk, part: list[Failure]) -> None:
        source = self._queues.get(part[0].open.queue)
        target = self._queues.get(bulk.target) if bulk.target else source
        if target is None or target.deleting:
            bulk.retried.without_queue += len(part)
        elif target.refuses_publishes:
            bulk.retried.paused += len(part)
        elif part[0].open.kind == ACKNOWLEDGED:
            await self._publish(bulk, target, part)
        elif source is not None:
            await self._redrive(bulk, source, target, part)

    async def _redrive(self, bulk: Bulk, source: BrokerQueue, target: BrokerQueue, part: list[Failure]) -> None:
        def on_step(ids: list[int]) -> bool:
            self._replays.added(target, ids)
            return bulk.go_on() and not target.deleting and not source.deleting

        first, selection = part[0].open, Selection(frozenset(failure.open.message_id for failure in part))
        way = MoveTarget(target.state(), room(target, always=True), on_step)
        moved = await self._moves.redrive(source.state(), selection, way, LIST_OF[first.kind], first.place)
        outcome = bulk.retried
        outcome.redriven += moved.count
        outcome.already += moved.already
        outcome.expired += moved.expired
        outcome.waiting += moved.waiting
        outcome.unmatched += moved.unmatched
        outcome.full = target.name if moved.is_full else ""

    async def _publish(self, bulk: Bulk, target: BrokerQueue, part: list[Failure]) -> None:
        at_once, piece = _FIRST_TASKS, TimeSlice()
        while part and not bulk.retried.full and bulk.go_on():
            batch, part = part[:at_once], part[at_once:]
            envelopes = await asyncio.gather(*(self._read(failure.open.message_id) for failure in batch))
            tasks: list[tuple[Failure, bytes]] = []
            for failure, envelope in zip(batch, envelopes, strict=True):
                if isinstance(envelope, CorruptRecord):
                    log.error("a failed task can't be run again: %s", envelope)
                    bulk.retried.damaged += 1
                    bulk.retried.damage = bulk.retried.damage or envelope.text
                elif envelope is None:
                    bulk.retried.collected += 1
                else:
                    tasks.append((failure, envelope))
            self._publish_some(bulk, target, tasks)
            is_much = sum(len(envelope) for _failure, envelope in tasks) > _MUCH_BYTES
            at_once = 1 if is_much else min(2 * at_once, _MOST_TASKS)
            await piece.pause()

    async def _read(self, id: int) -> bytes | CorruptRecord | None:
        try:
            return await self._payloads.read(id)
        except CorruptRecord as exc:
            return exc

    def _publish_some(self, bulk: Bulk, target: BrokerQueue, envelopes: list[tuple[Failure, bytes]]) -> None:
        """Publish tasks again, and mark their failures as handled.

        The marks are in the same commit as the publishes, as there is no await between them. If StoreFull is raised,
        the tasks that were published before are marked, too.
        """
        outcome = bulk.retried
        now = self._clock.now_ms()
        accepts = room(target, always=True)
        rows: list[int] = []
        followed: list[int] = []
        try:
            for failure, envelope in envelopes:
                if failure.open.place in self._state.handled or target.deleting:
                    outcome.already += 1
                    continue
                message = self._message(envelope, now)
                if message is None:
                    outcome.not_tasks += 1
                    continue
                if not accepts(1, len(message.envelope)):
                    raise QueueFull(queue=target.name)
                id = self._publishing.store(message, [target])
                rows += failure.open.place, id
                if target.stored is not None and self._state.staged.job_id_of(failure.open.message_id) is not None:
                    followed += failure.open.message_id, id
                outcome.published += 1
        except QueueFull:
            outcome.full = target.name
        finally:
            if followed:
                self._commits.apply(FollowFailuresEffect(RETRIED, now, rows, followed, target.name))
            elif rows:
                self._commits.apply(HandleFailuresEffect(RETRIED, now, rows))
            self._outbox.schedule()

    def _message(self, envelope: bytes, now: int) -> m.Publish | None:
        try:
            return retried_task(envelope, now)
        except InvalidMessage:  # with the new headers it has too many
            return None

    # ------------------------------------------------------------------ deleting
    async def _delete(self, bulk: Bulk, part: list[Failure]) -> None:
        first = part[0].open
        if first.kind != ACKNOWLEDGED:
            queue = self._state.queues.get(first.queue)
            if queue is not None:
                ids = frozenset(failure.open.message_id for failure in part)
                which, selection = LIST_OF[first.kind], Selection(ids)
                bulk.deleted.deleted += await self._settled_moves.delete(queue, which, selection, bucket=first.place)
            self._outbox.schedule()
            return
        rows: list[int] = []
        for failure in part:
            if failure.open.place not in self._state.handled:
                rows += failure.open.place, 0
        if rows:
            self._commits.check_room(10 * len(rows))
            self._commits.apply(HandleFailuresEffect(DISMISSED, self._clock.now_ms(), rows))
            self._commits.needs_sync = True
        bulk.deleted.dismissed += len(rows) // 2
        self._outbox.schedule()


def _parts(matching: list[Failure]) -> Iterator[list[Failure]]:
    """Group the failures that are handled together: those of one bucket of a list, or acknowledged in one queue."""
    parts: dict[tuple[str, str, int], list[Failure]] = {}
    for failure in matching:
        place = failure.open
        bucket = -1 if place.kind == ACKNOWLEDGED else place.place
        parts.setdefault((place.kind, place.queue, bucket), []).append(failure)
    return iter(parts.values())
