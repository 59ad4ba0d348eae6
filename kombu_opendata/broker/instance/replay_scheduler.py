"""Replay: advances the routing cursors in the background.

A single asyncio task advances all cursors of an instance in turn. A step uses the event loop for a few milliseconds. If
clients were served since the last step, a pause follows, so that clients get most of the event loop's time. The
maintenance duty "route" advances the same cursors, and its report includes the messages that were routed in the
background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import OpenDataError, StoreFull
from ...protocol.queue_arguments import DROP_HEAD
from ...storage.maintain.background_router import Router, Step
from ...storage.records.routing_cursor import Cursor
from ...storage.state.store_state import Queue
from ..delivery.instance_core import Core
from ..delivery.queue_policies import QueuePolicies
from ..model.queue import BrokerQueue

log = logging.getLogger(__name__)

#: approximate time of a step in the event loop
_STEP_SECONDS = 0.006
#: the share of the time that replay uses while clients are served; reading ahead, in a thread, is not counted
_BUSY_SHARE = 0.2
#: how long a cursor waits when a queue or the disk is full
_WAIT_SECONDS = 0.25
#: how long a cursor waits after an error
_RETRY_SECONDS = 10.0
#: steps of each cursor in one run of the maintenance duty
_DUTY_STEPS = 20
#: approximate number of steps that the rate is averaged over
_RATE_STEPS = 50


@dataclass(slots=True)
class _Pace:
    """Recent rate of a cursor, and when its next step may run."""

    rate: float = 0.0  # messages read per second
    not_before: float = 0.0
    is_full: bool = False
    error: str = ""
    ended_at: float | None = None

    def note(self, step: Step, began: float, ended: float) -> None:
        seconds = ended - (began if self.ended_at is None else self.ended_at)
        if step.seen and seconds > 0:
            weight = 1 if self.ended_at is None else 1 / _RATE_STEPS
            self.rate += weight * (step.seen / seconds - self.rate)
        self.ended_at = ended
        self.is_full = step.is_full


class ReplayScheduler:
    """Cursors of one instance."""

    def __init__(self, core: Core, router: Router, cursors: Mapping[str, Cursor], policies: QueuePolicies) -> None:
        self._router = router
        self._cursors = cursors
        self._queues = core.queues
        self._policies = policies
        self._outbox = core.outbox
        self._commits = core.commits
        self._traffic = core.traffic
        self._loop = asyncio.get_running_loop()
        self._paces: dict[str, _Pace] = {}
        self._wanted = asyncio.Event()
        self._stepping = asyncio.Lock()
        self._served = 0
        self.routed = 0  # messages that were put into queues, since startup
        if any(not cursor.is_done for cursor in self._cursors.values()):
            self._wanted.set()

    def wake(self) -> None:
        """Resume after a cursor was added."""
        self._wanted.set()

    # ------------------------------------------------------------------ advancing
    async def run(self) -> None:
        """Advance cursors until cancelled."""
        loop = self._loop
        while True:
            await self._wanted.wait()
            self._router.prune()
            names = [name for name, cursor in self._cursors.items() if not cursor.is_done]
            if not names:
                self._wanted.clear()
                continue
            ready_names = [name for name in names if self._pace(name).not_before <= loop.time()]
            if not ready_names:
                soonest = min(self._pace(name).not_before for name in names)
                await asyncio.sleep(max(soonest - loop.time(), 0.001))
            for name in ready_names:
                began = loop.time()
                await self._advance(name)
                await self._pause(loop.time() - began)

    def _pace(self, name: str) -> _Pace:
        return self._paces.setdefault(name, _Pace())

    async def _pause(self, worked_seconds: float) -> None:
        """Yield the event loop, for longer if clients were served since the last pause."""
        served = self._traffic.total
        busy, self._served = served != self._served, served
        await asyncio.sleep(min(worked_seconds, 4 * _STEP_SECONDS) * (1 / _BUSY_SHARE - 1) if busy else 0)

    async def _advance(self, name: str) -> Step:
        """Run one step of one cursor. An error stops only this cursor."""
        loop, pace = self._loop, self._pace(name)
        queue = self._queues.get(name)
        if queue is None or queue.deleting:
            pace.not_before = loop.time() + _WAIT_SECONDS  # the cursor is deleted with its queue
            return Step([], 0, False)
        began = loop.time()
        try:
            async with self._stepping:
                step = await self._router.step(name, _STEP_SECONDS, room(queue))
        except StoreFull:
            pace.not_before = loop.time() + _WAIT_SECONDS
            pace.error = "the disk is full"
            return Step([], 0, False)
        except OpenDataError as exc:
            if self._commits.failure is not None:
                raise
            log.error("queue %r: the replay waits: %s", name, exc.text)
            pace.error = exc.text
            self._router.forget(name)
            pace.not_before = loop.time() + _RETRY_SECONDS
            return Step([], 0, False)
        self.routed += len(step.ids)
        pace.note(step, began, loop.time())
        pace.error = ""
        if step.is_full:
            pace.not_before = loop.time() + _WAIT_SECONDS
        self.added(queue, step.ids)
        return step

    def added(self, queue: BrokerQueue, ids: list[int]) -> None:
        """Deliver and commit the new messages of a stored queue in this turn."""
        if queue.is_bounded or queue.messages.next_deadline:
            for id in ids:
                self._policies.added(queue, id)
        if ids:
            self._queues.wake(queue)
        self._outbox.schedule()

    async def advance(self) -> None:
        """Advance each cursor by some steps, for the maintenance duty."""
        for name in [name for name, cursor in self._cursors.items() if not cursor.is_done]:
            for _ in range(_DUTY_STEPS):
                step = await self._advance(name)
                await asyncio.sleep(0)
                if step.is_over or step.is_full or not step.seen:
                    break

    # ------------------------------------------------------------------ start
    def start(self, queue: Queue, cursor: Cursor) -> None:
        """Begin to fill a queue; raise PreconditionFailed if the queue is already being filled."""
        self._router.start(queue, cursor)
        self._paces.pop(queue.name, None)
        self.wake()

    def bound(self, queue: str) -> None:
        """Update the cursor of a queue that was bound."""
        self._router.bound(queue)
        self.wake()

    # ------------------------------------------------------------------ reporting
    def report(self, name: str) -> dict[str, Any] | None:
        """Return the progress of a queue's cursor; None if it never had one."""
        cursor = self._cursors.get(name)
        if cursor is None:
            return None
        pace = self._paces.get(name) or _Pace()
        return {
            "queue": name, "start": cursor.start, "position": cursor.position, "end": cursor.end,
            "seen": cursor.seen, "routed": cursor.routed,
            "rate": round(pace.rate, 1) if not cursor.is_done else 0.0, "done": cursor.is_done,
            "again": cursor.again, "waiting": pace.is_full and not cursor.is_done, "error": pace.error,
            "selector": cursor.selector, "started_at_ms": cursor.started_at_ms,
            "changed_at_ms": cursor.changed_at_ms,
        }  # fmt: skip


def room(queue: BrokerQueue, *, always: bool = False) -> Callable[[int, int], bool]:
    """Return a function that checks whether a queue has room for a number of messages and bytes.

    A queue whose publishes are paused has no room. A queue that drops its oldest messages always has room; with
    ``always``, its maximum also applies.
    """
    if queue.refuses_publishes:
        return lambda _messages, _bytes: False
    if not queue.is_bounded or not (always or queue.arguments.overflow != DROP_HEAD):
        return lambda _messages, _bytes: True
    return lambda messages, size: not queue.is_too_long(messages, size)
