"""Queue policies: expiry of messages, maximum lengths, deletion of unused queues.

A turn removes messages in memory before its commit. Messages in cold buckets are removed later, in the background, so a
queue with a long backlog may exceed its maximum length until the bucket is loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ...errors import OpenDataError, QueueFull
from ...protocol.queue_arguments import DROP_HEAD, REJECT_PUBLISH_DLX
from ...storage.clock import TimeSlice
from ..model.queue import BrokerQueue
from .instance_core import Core

log = logging.getLogger(__name__)

#: minimum interval between two removals of expired messages
_PACE_SECONDS = 0.02
#: maximum delay of a timer
_MAX_DELAY_SECONDS = 3600.0
#: pause of a queue's maintenance after a failure (a full disk, a corrupt record)
_RETRY_SECONDS = 10.0


class QueuePolicies:
    """Policies of one instance's queues.

    Attributes:
        changed: queues with a maximum length or a deadline that received a message in this turn.
    """

    def __init__(self, core: Core, deliver: Callable[[BrokerQueue], None], grace_ms: int) -> None:
        """Create the policies; ``grace_ms`` is the time in which holders of messages may reconnect after a restart."""
        self._queues = core.queues
        self._deliver = deliver
        self._sessions = core.sessions
        self._clock = core.clock
        self._outbox = core.outbox
        self._failure = core.failure
        self._previous_holders_until_ms = core.clock.now_ms() + grace_ms
        self._loop = asyncio.get_running_loop()
        self.changed: dict[BrokerQueue, None] = {}
        self._busy: set[BrokerQueue] = set()  # queues with background work
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0
        self._tending: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Cancel timers and tasks."""
        if self._timer is not None:
            self._timer.cancel()
        for task in (*self._tasks, *filter(None, [self._tending])):
            task.cancel()

    # ------------------------------------------------------------------ publishing
    def check_room(self, queue: BrokerQueue, size: int, messages: int = 1) -> None:
        """Raise QueueFull, before a publish, if a queue that refuses messages when it is full has no room."""
        if not queue.arguments.rejects or not queue.is_too_long(messages, size):
            return
        self._deliver(queue)  # a waiting consumer may make room
        if queue.is_too_long(messages, size):
            raise QueueFull(
                f"{full_text(queue)}: nothing was stored; publish again when it is shorter",
                queue=queue.name,
                messages=len(queue.messages),
            )

    def added(self, queue: BrokerQueue, id: int, *, is_late: bool = False) -> None:
        """Record a publish to a queue with a maximum length or with deadlines.

        A message whose deadline has passed may still be delivered in this turn, unless it ``is_late``.
        """
        messages = queue.messages
        entry = messages.available.get(id)
        if entry is None:
            return
        if entry.deadline and not is_late and entry.deadline <= self._clock.now_ms():
            messages.fresh.add(id)
        if queue.arguments.overflow == REJECT_PUBLISH_DLX and queue.is_too_long():
            self._deliver(queue)
            if queue.is_too_long() and id in messages.available:
                messages.fresh.discard(id)
                queue.remove((entry,), "maxlen")
        self.changed[queue] = None
        self._outbox.schedule()

    def altered(self, queue: BrokerQueue) -> None:
        """Record that a queue has another maximum length."""
        self.changed[queue] = None
        self._outbox.schedule()

    def end_turn(self) -> None:
        """Remove expired and excess messages, after the deliveries of a turn and before its commit."""
        changed, self.changed = self.changed, {}
        for queue in changed:
            messages = queue.messages
            new_ids, messages.fresh = messages.fresh, set()
            if queue.deleting:
                continue
            queue.remove([messages.available[id] for id in new_ids if id in messages.available], "expired")
            if messages.next_deadline:
                self._wake_at(messages.next_deadline)
            if queue.is_bounded:
                self._trim(queue)

    # ------------------------------------------------------------------ maximum lengths
    def _trim(self, queue: BrokerQueue) -> None:
        """Drop the oldest messages of a queue that is too long, unless the queue refuses new messages instead."""
        if queue.arguments.overflow != DROP_HEAD:
            return
        for _ in range(len(queue.messages)):  # a dead letter may return to the queue
            if not queue.is_too_long() or queue in self._busy:
                return
            entry, cold = queue.messages.oldest()
            if cold is not None:
                self._spawn(queue, queue.drop_oldest())
            elif entry is not None:
                queue.remove((entry,), "maxlen")

    # ------------------------------------------------------------------ time
    def _wake_at(self, at_ms: int) -> None:
        """Schedule the removal of expired messages for this time."""
        if self._timer is not None:
            if self._timer_at_ms <= at_ms:
                return
            self._timer.cancel()
        self._timer_at_ms = at_ms
        wait = (at_ms - self._clock.now_ms()) / 1000
        delay = min(max(wait, _PACE_SECONDS), _MAX_DELAY_SECONDS)
        self._timer = self._loop.call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self._expire_messages()
        except Exception as exc:
            self._failure.fail(exc)

    def _expire_messages(self) -> None:
        now = self._clock.now_ms()
        for queue in self._queues.values():
            if queue.messages.next_deadline:
                self._expire(queue, now)

    def _expire(self, queue: BrokerQueue, now: int) -> None:
        """Remove the expired messages of a queue, and schedule the next removal."""
        messages = queue.messages
        if queue.deleting or queue in self._busy:
            return
        if messages.next_deadline <= now:
            expired = messages.expired(now)
            if expired:
                queue.remove(expired, "expired")
                self._outbox.schedule()
            if 0 < messages.next_deadline <= now:  # in a cold bucket
                self._spawn(queue, queue.expire(now))
                return
        if messages.next_deadline:
            self._wake_at(messages.next_deadline)

    def tick(self) -> None:
        """Check limits, unused queues and single active consumers. Called twice per second."""
        if self._tending is None:
            self._tending = self._loop.create_task(self._tend())

    async def _tend(self) -> None:
        try:
            await self.tend()
        except Exception as exc:
            self._failure.fail(exc)
        finally:
            self._tending = None

    async def tend(self) -> None:
        """Check all queues in slices, because a check of thousands of queues takes milliseconds."""
        async for queue in TimeSlice().over(list(self._queues.values())):
            if not queue.deleting:
                self._check(queue, self._clock.now_ms())

    def _check(self, queue: BrokerQueue, now: int) -> None:
        if queue.messages.next_deadline:
            self._expire(queue, now)
        if queue.is_bounded:
            self._trim(queue)
        if queue.messages.partitions is not None and queue.messages.partitions.has_misplaced:
            queue.repartition()  # they came by a move, a replay or a staged job, or returned
        if queue.active is not None:
            self._check_active(queue)
        elif queue.previous_holders and self._previous_holders_until_ms <= now:
            queue.previous_holders = frozenset()  # the former holders had time to reconnect
            self._queues.wake(queue)
        if queue.consumers or queue.getters or queue.is_paused:
            queue.used_at_ms = now
        elif self._is_unused(queue) and queue.drop() is None and queue not in self._busy:
            self._spawn(queue, self._delete_unused(queue))

    def _is_unused(self, queue: BrokerQueue) -> bool:
        expires, now = queue.arguments.expires_ms, self._clock.now_ms()
        return 0 < expires <= now - queue.used_at_ms and not queue.consumers and not queue.getters

    async def _delete_unused(self, queue: BrokerQueue) -> None:
        async with self._queues.lock:
            if not queue.deleting and self._is_unused(queue):
                log.info("queue %r was not used for %d ms and is deleted", queue.name, queue.arguments.expires_ms)
                await self._queues.delete(queue)

    def _check_active(self, queue: BrokerQueue) -> None:
        """Replace the single active consumer if it has not reconnected since the last tick."""
        session = self._sessions.get(queue.active[0]) if queue.active is not None else None
        if any(consumer.key == queue.active for consumer in queue.consumers):
            queue.active_missing = False
        elif session is not None and (session.connection is None or not queue.active_missing):
            queue.active_missing = session.connection is not None
        else:
            queue.active = None
            queue.active_missing = False
            self._queues.wake(queue)

    # ------------------------------------------------------------------ tasks
    def _spawn(self, queue: BrokerQueue, work: Coroutine[Any, Any, object]) -> None:
        self._busy.add(queue)
        task = self._loop.create_task(self._work(queue, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, queue: BrokerQueue, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except OpenDataError as exc:
            log.error("queue %r: %s", queue.name, exc)
            self._failure.fail_if_store_failed(exc)
            self._loop.call_later(_RETRY_SECONDS, self._busy.discard, queue)
        except Exception as exc:
            self._failure.fail(exc)
        else:
            self._busy.discard(queue)
            if queue.messages.next_deadline and not queue.deleting:
                self._wake_at(queue.messages.next_deadline)
        self._outbox.schedule()


def refusal_text(queue: BrokerQueue) -> str:
    """Return the part of an error text with the reason why a queue accepts no messages."""
    return f"queue {queue.name!r} is paused" if queue.refuses_publishes else full_text(queue)


def full_text(queue: BrokerQueue) -> str:
    """Return the part of an error text that states that a queue is full."""
    length, size = queue.arguments.max_length, queue.arguments.max_length_bytes
    limits = []
    if length >= 0:
        limits.append(f"{length} messages")
    if size >= 0:
        limits.append(f"{size} bytes")
    return f"queue {queue.name!r} is full (its maximum is {' and '.join(limits)})"
