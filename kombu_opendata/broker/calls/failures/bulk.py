"""Bulk retries and archiving of failures, in steps: each is one commit together with its marks.

So an interruption leaves each failure either as it was, or handled; and a repeated call finds the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from ....errors import CorruptRecord, InvalidMessage, QueueFull
from ....protocol import messages as m
from ....storage.clock import Clock
from ....storage.commit.commits import Commits
from ....storage.effects.tasks import HandleFailuresEffect
from ....storage.history.failures.failure import ACKNOWLEDGED, LIST_OF, Failure, FailureFilterValues, FailurePosition
from ....storage.history.failures.view import FailureView
from ....storage.messages.payloads import Payloads
from ....storage.operations.archive_and_delete import Selection, SettledMoves
from ....storage.operations.moves import MoveCounts, Moves, MoveTarget
from ....storage.records.failures import DISMISSED, RETRIED
from ....storage.state.store_state import StoreState
from ...delivery.outbox import Outbox
from ...delivery.queues import Queues
from ...instance.replay_scheduler import ReplayScheduler, room
from ...model.queue import BrokerQueue
from ..publish import PublishCalls
from . import task_again

log = logging.getLogger(__name__)

#: how long a call works before it reports its progress
STEP_SECONDS = 0.5
#: number of tasks that are read together and published in one turn of the event loop: at first, at most, and one if the
#: last ones had more bytes than this
_FIRST_TASKS, _MOST_TASKS = 4, 24
_MUCH_BYTES = 1 << 20


@dataclass(slots=True)
class BulkOutcome:
    """The outcome of a call; see :class:`.FailuresRetried` and :class:`.FailuresDismissed`."""

    redriven: int = 0
    published: int = 0
    already: int = 0
    expired: int = 0
    waiting: int = 0
    unmatched: int = 0
    collected: int = 0
    not_tasks: int = 0
    without_queue: int = 0
    paused: int = 0
    deleted: int = 0
    dismissed: int = 0
    damaged: int = 0
    damage: str = ""
    full: str = ""
    next: FailurePosition | None = None

    @property
    def handled(self) -> int:
        """The number of handled failures."""
        return self.redriven + self.published + self.deleted + self.dismissed


@dataclass(slots=True)
class Bulk:
    """One call.

    Attributes:
        target: the queue that receives the messages; empty for their own.
        limit: the maximum number of failures to handle; 0 for no limit.
        go_on: returns whether the client waits for the reply.
    """

    filters: FailureFilterValues
    after: FailurePosition | None
    limit: int
    go_on: Callable[[], bool]
    target: str = ""
    done: BulkOutcome = field(default_factory=BulkOutcome)

    @property
    def left(self) -> int | None:
        """The number of failures that may still be handled; None for no limit."""
        return self.limit - self.done.handled if self.limit else None


@dataclass(frozen=True, slots=True)
class Bulks:
    """The bulk work on the failures of one instance."""

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
    _new_id: Callable[[], str]

    async def retry(self, bulk: Bulk) -> BulkOutcome:
        """Retry failures, the oldest first."""
        return await self._each(bulk, self._retry)

    async def dismiss(self, bulk: Bulk) -> BulkOutcome:
        """Delete failed messages and archive acknowledged failures, the oldest first."""
        return await self._each(bulk, self._dismiss)

    async def _each(self, bulk: Bulk, handle: Callable[[Bulk, list[Failure]], Awaitable[None]]) -> BulkOutcome:
        loop = asyncio.get_running_loop()
        until, outcome = loop.time() + STEP_SECONDS, bulk.done
        outcome.next = bulk.after
        scan = self._view.scan(bulk.filters, lambda _queue: True, bulk.after, descending=False)
        async with aclosing(scan) as scanned:
            async for matching, last, _count in scanned:
                while matching:
                    batch, matching = matching[: bulk.left], matching[bulk.left or len(matching) :]
                    for part in _parts(batch):
                        await handle(bulk, part)
                        if outcome.full or not bulk.go_on() or bulk.left == 0:
                            return outcome  # the rest of this batch is found again
                outcome.next = last
                if loop.time() >= until:
                    return outcome
        outcome.next = None
        return outcome

    # ------------------------------------------------------------------ retries
    async def _retry(self, bulk: Bulk, part: list[Failure]) -> None:
        source, target = (self._queues.get(name) for name in (part[0].open.queue, bulk.target or part[0].open.queue))
        if target is None or target.deleting:
            bulk.done.without_queue += len(part)
        elif target.refuses_publishes:
            bulk.done.paused += len(part)
        elif part[0].open.kind == ACKNOWLEDGED:
            await self._publish(bulk, target, part)
        elif source is not None:
            await self._redrive(bulk, source, target, part)

    async def _redrive(self, bulk: Bulk, source: BrokerQueue, target: BrokerQueue, part: list[Failure]) -> None:
        def on_step(moved: MoveCounts) -> bool:
            self._replays.added(target, moved.ids)
            return bulk.go_on() and not target.deleting and not source.deleting

        first, selection = part[0].open, Selection(frozenset(failure.open.message_id for failure in part))
        way = MoveTarget(target.state(), room(target, always=True), on_step)
        moved = await self._moves.redrive(source.state(), selection, way, LIST_OF[first.kind], first.place)
        outcome = bulk.done
        outcome.redriven += moved.count
        outcome.already += moved.already
        outcome.expired += moved.expired
        outcome.waiting += moved.waiting
        outcome.unmatched += moved.unmatched
        outcome.full = target.name if moved.is_full else ""

    async def _publish(self, bulk: Bulk, target: BrokerQueue, part: list[Failure]) -> None:
        at_once = _FIRST_TASKS
        while part and not bulk.done.full and bulk.go_on():
            batch, part = part[:at_once], part[at_once:]
            envelopes = await asyncio.gather(*(self._read(bulk, failure.open.message_id) for failure in batch))
            tasks = [
                (failure, envelope) for failure, envelope in zip(batch, envelopes, strict=True) if envelope is not None
            ]
            self._publish_some(bulk, target, tasks)
            is_much = sum(len(envelope) for _failure, envelope in tasks) > _MUCH_BYTES
            at_once = 1 if is_much else min(2 * at_once, _MOST_TASKS)
            await asyncio.sleep(0)

    async def _read(self, bulk: Bulk, id: int) -> bytes | None:
        """Read a task; counts the reason if there is none."""
        try:
            envelope = await self._payloads.read(id)
        except CorruptRecord as exc:
            log.error("a failed task can't be run again: %s", exc)
            bulk.done.damaged += 1
            bulk.done.damage = bulk.done.damage or exc.text
            return None
        bulk.done.collected += envelope is None
        return envelope

    def _publish_some(self, bulk: Bulk, target: BrokerQueue, envelopes: list[tuple[Failure, bytes]]) -> None:
        """Publish tasks again. There is no await, so the messages and their marks are in one commit.

        Raises:
            StoreFull: the previous tasks are published, and marked.
        """
        outcome, now, accepts = bulk.done, self._clock.now_ms(), room(target, always=True)
        rows: list[int] = []
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
                rows += failure.open.place, self._publishing.store(message, [target])
                outcome.published += 1
        except QueueFull:
            outcome.full = target.name
        finally:
            if rows:
                self._commits.apply(HandleFailuresEffect(RETRIED, now, rows))
            self._outbox.schedule()

    def _message(self, envelope: bytes, now: int) -> m.Publish | None:
        try:
            return task_again.again(envelope, self._new_id(), now)
        except InvalidMessage:  # with the new headers it has too many
            return None

    # ------------------------------------------------------------------ archiving
    async def _dismiss(self, bulk: Bulk, part: list[Failure]) -> None:
        first = part[0].open
        if first.kind != ACKNOWLEDGED:
            queue = self._state.queues.get(first.queue)
            if queue is not None:
                ids = frozenset(failure.open.message_id for failure in part)
                bulk.done.deleted += await self._settled_moves.delete_some(queue, LIST_OF[first.kind], first.place, ids)
            self._outbox.schedule()
            return
        rows = [
            value
            for failure in part
            if failure.open.place not in self._state.handled
            for value in (failure.open.place, 0)
        ]
        if rows:
            self._commits.check_room(10 * len(rows))
            self._commits.apply(HandleFailuresEffect(DISMISSED, self._clock.now_ms(), rows))
            self._commits.needs_sync = True
        bulk.done.dismissed += len(rows) // 2
        self._outbox.schedule()


def _parts(matching: list[Failure]) -> Iterator[list[Failure]]:
    """Group the failures that are handled together: of one bucket of a list, or acknowledged ones of a queue."""
    parts: dict[tuple[str, str, int], list[Failure]] = {}
    for failure in matching:
        place = failure.open
        bucket = -1 if place.kind == ACKNOWLEDGED else place.place
        parts.setdefault((place.kind, place.queue, bucket), []).append(failure)
    return iter(parts.values())
